package drill

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// TestPublishedWrongly requires that each addition to a list is published, with one ID, and nothing else.
func TestPublishedWrongly(t *testing.T) {
	t.Parallel()
	at := time.Now()
	added := func(id, email, origin string, ago time.Duration) client.AddedSuppression {
		return client.AddedSuppression{
			ID:          id,
			Suppression: client.Suppression{Email: email, Reason: "manual", Origin: origin, At: at.Add(-ago)},
		}
	}
	a, b := added("1", "a@x.test", "api", 0), added("2", "b@x.test", "event", 0)
	listed := map[addition]bool{{"a@x.test", "manual", ""}: true, {"b@x.test", "manual", ""}: true}
	for name, c := range map[string]struct {
		published []client.AddedSuppression
		again     string
		wrong     string
	}{
		"all":                   {published: []client.AddedSuppression{a, b}},
		"again":                 {published: []client.AddedSuppression{a, b, a}},
		"by two events at once": {published: []client.AddedSuppression{a, b, added("3", "b@x.test", "event", 1)}},
		"by a repeated request": {published: []client.AddedSuppression{a, b, added("3", "a@x.test", "api", 1)}, again: a.Email},
		"one is missing":        {published: []client.AddedSuppression{a}, wrong: "its addition was not published"},
		"another ID": {
			published: []client.AddedSuppression{a, b, added("3", "a@x.test", "api", 1)}, wrong: "has the IDs 1 and 3",
		},
		"another ID of one event": {
			published: []client.AddedSuppression{a, b, added("3", "b@x.test", "event", 0)}, wrong: "has the IDs 2 and 3",
		},
		"one ID of two": {published: []client.AddedSuppression{a, added("1", "b@x.test", "event", 0)}, wrong: "have the ID 1"},
		"not on the list": {
			published: []client.AddedSuppression{a, b, added("3", "c@x.test", "api", 0)}, wrong: "is not on the list",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			why := publishedWrongly(listed, c.published, map[string]bool{c.again: true})
			if c.wrong == "" {
				require.Empty(t, why)
			} else {
				require.Contains(t, why, c.wrong)
			}
		})
	}
}

// TestFailoversDiffer requires that each failover begins and ends once, is about calls that failed, and that no other
// is about the same calls.
func TestFailoversDiffer(t *testing.T) {
	t.Parallel()
	began := time.Now().Add(-time.Hour)
	at := func(second int) time.Time { return began.Add(time.Duration(second) * time.Second) }
	failed := func(from, to int) outage {
		f := telemetry.FailedCalls{From: at(from), Known: at(from), Last: at(to - 1), To: at(to)}
		return outage{FailedCalls: f}
	}
	started := func(n, since int) client.Notice {
		return client.Notice{
			Type:     client.FailoverStarted,
			Provider: "sg",
			Number:   n,
			Since:    at(since),
			At:       at(since + 2),
		}
	}
	ended := func(n, since, until int) client.Notice {
		return client.Notice{Type: client.FailoverEnded, Provider: "sg", Number: n, Since: at(since), At: at(until)}
	}
	silent := started(1, 10)
	silent.Reason = telemetry.Silence
	type notices []client.Notice
	for name, c := range map[string]struct {
		published notices
		outages   []outage
		wrong     string
	}{
		"two outages": {
			notices{started(1, 10), ended(2, 10, 35), started(3, 60)}, []outage{failed(10, 29), failed(60, 70)}, "",
		},
		"with a pause":   {notices{started(1, 10), ended(2, 10, 35)}, []outage{failed(10, 20), failed(22, 29)}, ""},
		"of two workers": {notices{started(1, 10), ended(2, 10, 35)}, []outage{failed(10, 29), failed(12, 28)}, ""},
		"just after the end": {
			notices{started(1, 10), ended(2, 10, 35), started(3, 30)}, []outage{failed(10, 25), failed(30, 50)}, "",
		},
		"silence":       {notices{silent}, nil, ""},
		"for a moment":  {nil, []outage{failed(10, 11)}, ""},
		"started twice": {notices{started(1, 10), started(2, 10)}, []outage{failed(10, 29)}, "does not follow"},
		"ended twice": {
			notices{started(1, 10), ended(2, 10, 35), ended(3, 10, 35)}, []outage{failed(10, 29)}, "does not follow",
		},
		"ended otherwise": {notices{started(1, 10), ended(2, 11, 35)}, []outage{failed(10, 29)}, "does not follow"},
		"published twice": {
			notices{started(1, 10), ended(2, 10, 20), started(3, 22), ended(4, 22, 35)}, []outage{failed(10, 29)},
			"and failovers since",
		},
		"no outage": {notices{started(1, 10), ended(2, 10, 35)}, []outage{failed(60, 70)}, "no call failed then"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			all, why := failoversOf(c.published)
			if why == "" {
				require.NotContains(
					t,
					failoversDiffer(all["sg"], slices.Clone(c.outages), began, false),
					"and failovers since",
				)
				why = failoversDiffer(all["sg"], c.outages, began, true)
			}
			if c.wrong == "" {
				require.Empty(t, why)
			} else {
				require.Contains(t, why, c.wrong)
			}
		})
	}
}
