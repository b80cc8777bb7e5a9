package drill

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// addition is what an entry of a suppression list adds.
type addition struct{ email, reason, category string }

func additionOf(s *client.Suppression) addition { return addition{s.Email, s.Reason, s.Category} }

// publishedWrongly says what is wrong with the published additions to a list; "" if nothing is. An addition may be
// published again with the same ID. It may have another one if events of several mails added the address at the same
// time, or if the request was repeated.
func publishedWrongly(listed map[addition]bool, added []client.AddedSuppression, repeated map[string]bool) string {
	byID, published := map[string]client.AddedSuppression{}, map[addition]client.AddedSuppression{}
	for _, s := range added {
		what := additionOf(&s.Suppression)
		if !listed[what] {
			return fmt.Sprintf("the addition of %v was published, and it is not on the list", what)
		}
		if before, ok := byID[s.ID]; ok && additionOf(&before.Suppression) != what {
			return fmt.Sprintf("the additions of %v and %v have the ID %s", additionOf(&before.Suppression), what, s.ID)
		}
		before, ok := published[what]
		atOnce := s.Origin == string(models.FromEvent) && !s.At.Equal(before.At)
		if ok && before.ID != s.ID && !atOnce && !repeated[s.Email] {
			return fmt.Sprintf("the addition of %v has the IDs %s and %s", what, before.ID, s.ID)
		}
		byID[s.ID], published[what] = s, s
	}
	for what := range listed {
		if _, ok := published[what]; !ok {
			return fmt.Sprintf("%v is on the suppression list, and its addition was not published", what)
		}
	}
	return ""
}

// notices are what operators read about providers and suppression lists.
type notices struct {
	scenario     *scenario
	environment  *environment
	user         *account
	mail         *traffic
	suppressions *suppressions
	incident     *incident
	res          *Result
	failedOver   map[string][]failover // the failovers of each provider
}

// list reads the notices of some types.
func (n *notices) list(ctx context.Context, types ...string) (out []client.Notice, err error) {
	for o := (client.NoticeOptions{Types: types}); ; {
		page, err := n.user.client.NoticePage(ctx, o)
		if err != nil {
			return nil, err
		}
		out = append(out, page.Notices...)
		if !page.More {
			return out, nil
		}
		o.Cursor = page.Next
	}
}

// failover is a time in which mail goes around a provider, as notices say.
type failover struct {
	since, published time.Time
	ended            time.Time // zero: it lasts
	reason, why      string
}

// failovers returns the failovers of each provider, and says what is wrong with their notices; "" if nothing is.
func (n *notices) failovers(ctx context.Context) (out map[string][]failover, wrong string, err error) {
	all, err := n.list(ctx, client.FailoverStarted, client.FailoverEnded)
	out, wrong = failoversOf(all)
	return out, wrong, err
}

func failoversOf(all []client.Notice) (out map[string][]failover, wrong string) {
	out = map[string][]failover{}
	for i := range all {
		n, list := &all[i], out[all[i].Provider]
		last := len(list) - 1
		lasts := last >= 0 && list[last].ended.IsZero()
		switch {
		case n.Type == client.FailoverStarted && !lasts:
			out[n.Provider] = append(list, failover{since: n.Since, published: n.At, reason: n.Reason, why: n.Why})
		case n.Type == client.FailoverEnded && lasts && list[last].since.Equal(n.Since):
			list[last].ended = n.At
		default:
			wrong = fmt.Sprintf("notice %d has %s of %s since %s, which does not follow on the one before",
				n.Number, n.Type, n.Provider, n.Since)
		}
	}
	return out, wrong
}

// isPublished reports whether there was a notice of a failover of a provider that was not over before the fault.
func (n *notices) isPublished(ctx context.Context, provider string) bool {
	all, _, err := n.failovers(ctx)
	list := all[provider]
	if err != nil || len(list) == 0 {
		return false
	}
	last := &list[len(list)-1]
	return last.ended.IsZero() || last.ended.After(n.incident.brokenAt)
}

// count waits until everyone's suppression list and the health of the providers are as in the notices.
func (n *notices) count(ctx context.Context) error {
	why := ""
	err := poll(ctx, n.mail.bound(patience), "the notices are true", func() (_ bool, err error) {
		all, err := n.list(ctx, client.SuppressionAdded)
		if err != nil {
			return false, err
		}
		var added []client.AddedSuppression
		for i := range all {
			added = append(added, *all[i].Suppression)
		}
		if why, err = n.suppressions.differ(ctx, n.user.client, added, client.Everyone()); why == "" && err == nil {
			why, err = n.lastsWrongly(ctx)
		}
		return why == "", err
	})
	if why != "" && ctx.Err() == nil {
		n.res.wrong("the notices: %s", why)
		return nil
	}
	return err
}

// lastsWrongly says of which provider a failover lasts by the notices, although it is healthy; "" if of none. It keeps
// the failovers.
func (n *notices) lastsWrongly(ctx context.Context) (why string, err error) {
	if n.failedOver, why, err = n.failovers(ctx); why != "" || err != nil {
		return why, err
	}
	shown, err := n.user.client.ListProviders(ctx)
	for i := range shown.Providers {
		p := &shown.Providers[i]
		list := n.failedOver[p.Name]
		healthy := p.Health != nil && p.Health.State == telemetry.Healthy
		if n := len(list); healthy && n > 0 && list[n-1].ended.IsZero() {
			return fmt.Sprintf("the failover of %s since %s has not ended", p.Name, list[n-1].since), nil
		}
	}
	return "", err
}

// outage is a time in which calls of a worker to a provider failed.
type outage struct {
	telemetry.FailedCalls
	published bool
	begun     time.Time // when the failover began that began in it; zero: none did
}

func (o *outage) end() time.Time { return models.LaterOf(o.Last, o.To) }

const (
	// calmLeast is how long before its end a failover is over at least. What fails meanwhile is another one.
	calmLeast = 4 * time.Second
	// calmMost is how long before a failover begins the call may have failed that it is about.
	calmMost = 5 * time.Second
	// surelyPublished is how long calls have to fail until that is a failover on the busiest machine.
	surelyPublished = 10 * time.Second
)

// compareOutages compares the failovers with the failed calls that workers have stored.
func (n *notices) compareOutages(ctx context.Context) error {
	if n.scenario.clocksOff {
		return nil
	}
	var reports map[string][]byte
	err := n.environment.withStore(ctx, func(s models.Store) (err error) {
		reports, err = s.Transients(ctx, telemetry.FailedCallsReport)
		return err
	})
	if err != nil {
		return err
	}
	outages := map[string][]outage{}
	for _, raw := range reports {
		var of telemetry.FailedCallsOf
		if err := json.Unmarshal(raw, &of); err != nil {
			return err
		}
		for provider, list := range of {
			for _, f := range list {
				outages[provider] = append(outages[provider], outage{FailedCalls: f})
			}
		}
	}
	// A worker that does not run publishes nothing. When it goes on, it publishes what it knew before.
	running := n.incident.ran() && n.scenario.needs != needsStore && n.scenario.needs != needsOwnStore
	for provider, list := range n.failedOver {
		if why := failoversDiffer(list, outages[provider], n.incident.began, running); why != "" {
			n.res.wrong("the notices of %s: %s", provider, why)
		}
	}
	for provider, list := range outages {
		for _, o := range list {
			if running && !o.published && !o.From.Before(n.incident.began) && o.end().Sub(o.Known) > surelyPublished {
				n.res.wrong("calls to %s failed from %s to %s, and no failover was published", provider, o.From, o.end())
			}
		}
	}
	return nil
}

// failoversDiffer says how failovers since a time differ from the times in which calls failed; "" if they do not: each
// failover is about failed calls, and, if all workers ran, no two begin in one of these times. It notes which times are
// published.
func failoversDiffer(list []failover, outages []outage, since time.Time, running bool) string {
	for _, f := range list {
		until := time.Now()
		if !f.ended.IsZero() {
			until = f.ended.Add(-calmLeast)
		}
		known := f.reason == telemetry.Silence || strings.HasPrefix(f.why, "answers take") // no call failed
		for i := range outages {
			o := &outages[i]
			if o.From.After(until) || o.end().Before(f.since.Add(-calmMost)) {
				continue
			}
			known = true
			o.published = o.published || !o.end().Before(f.since)
			if f.since.Before(o.From) || f.since.After(o.end()) {
				continue // it began before, or just after
			}
			if running && !o.begun.IsZero() {
				return fmt.Sprintf("calls failed from %s to %s, and failovers since %s and %s were published",
					o.From, o.end(), o.begun, f.since)
			}
			o.begun = f.since
		}
		if !known && f.published.After(since) {
			return fmt.Sprintf("a failover since %s was published, and no call failed then", f.since)
		}
	}
	return ""
}
