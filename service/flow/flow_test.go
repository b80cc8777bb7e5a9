package flow

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// begun is when the histories of these tests begin.
var begun = time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)

func at(ms int) time.Time { return begun.Add(time.Duration(ms) * time.Millisecond) }

// script is the record of a chunk as it comes about.
type script struct{ Record }

func (s *script) entry(kind models.EntryKind, began time.Time, provider string, who models.Set) int {
	n := len(s.Entries) + 1
	s.Entries = append(s.Entries, models.Entry{
		Number:     n,
		Kind:       kind,
		At:         began,
		Recipients: who,
		Provider:   provider,
		CallEnds:   began.Add(time.Minute),
	})
	return n
}

// call adds a call that ended with an answer of one class.
func (s *script) call(began, ended int, provider string, who models.Set, class models.Class) {
	s.answer(s.entry(models.Attempt, at(began), provider, who), at(ended),
		models.Part{Class: class, Recipients: who, Status: statusOf[class]})
}

func (s *script) answer(n int, ended time.Time, parts ...models.Part) {
	s.Outcomes = append(s.Outcomes, models.Outcome{Attempt: n, At: ended, Parts: parts})
}

var statusOf = map[models.Class]int{
	models.Accepted: 202, models.Unavailable: 503, models.Throttled: 429, models.AccountClass: 401,
	models.RejectedRequest: 400,
}

// of returns the flow of a batch with one chunk.
func (s *script) of(now int, health ...Health) Flow {
	return Of(1, []Record{s.Record}, map[string][]Health{"sg": health}, at(now))
}

// An outage is from the first failed call until a call succeeds. It counts what was rerouted
// because of it.
func TestOutage(t *testing.T) {
	t.Parallel()
	var s script
	s.call(0, 50, "sg", models.SetOf(1), models.Accepted)
	s.call(100, 200, "sg", models.SetOf(2, 3), models.Unavailable)
	s.call(250, 300, "mg", models.SetOf(2), models.Accepted)
	s.call(400, 500, "sg", models.SetOf(3), models.Unavailable) // the same provider again
	s.call(550, 600, "mg", models.SetOf(3), models.Accepted)
	lasting := Outage{
		Provider: "sg",
		From:     at(100),
		To:       at(500),
		Failed:   2,
		Rerouted: 2,
		Failover: 150 * time.Millisecond,
		Through:  []string{"mg"},
		Why:      "503 Service Unavailable",
	}
	require.Equal(t, []Outage{lasting}, s.of(5000).Outages, "it is unknown how long it was")

	own := telemetry.FailedCalls{From: at(100), Known: at(200), Last: at(500), Calls: 2}
	lasting.Lasts = true
	f := s.of(5000, Health{own, true})
	require.Equal(t, []Outage{lasting}, f.Outages)
	require.Len(t, f.Providers[0].Accepted, 21, "steps of 250 ms until now")

	probed := own
	probed.To = at(2100) // with mail of another batch
	over := lasting
	over.Lasts, over.Over, over.To = false, true, at(2100)
	require.Equal(t, []Outage{over}, s.of(5000, Health{probed, true}).Outages)

	s.call(1500, 1600, "sg", models.SetOf(4), models.Accepted)
	over.To = at(1600)
	require.Equal(t, []Outage{over}, s.of(5000, Health{own, true}).Outages)

	earlier := telemetry.FailedCalls{From: at(60), Known: at(70), Last: at(500), Calls: 9} // with mail of other batches
	over.From = at(60)
	require.Equal(t, []Outage{over}, s.of(5000, Health{earlier, true}).Outages)
}

// A refusal of mail is no outage. Neither is a bounce of accepted mail, a retry, or a retry by a user.
func TestNoOutage(t *testing.T) {
	t.Parallel()
	var s script
	all := models.SetTo(10)
	s.call(0, 100, "sg", all, models.Accepted)
	s.call(1000, 1100, "mg", all, models.Accepted) // all of them bounced
	s.entry(models.Ending, at(1200), "", all)
	s.entry(models.Release, at(2000), "", all)
	s.call(2001, 2100, "sg", all, models.RejectedRequest)
	s.call(2200, 2300, "mg", all, models.RejectedHereClass)
	n := s.entry(models.Attempt, at(3000), "sg", all)
	s.answer(n, at(3001), models.Part{Class: models.Unavailable, Recipients: all, Reason: models.StartByPassed})
	n = s.entry(models.Attempt, at(3100), "sg", all)
	s.answer(n, at(3101), models.Part{Class: models.AccountClass, Recipients: all, Reason: models.SenderNotVerified})
	f := s.of(9000)
	require.Empty(t, f.Outages)
	for _, p := range f.Providers {
		require.Zero(t, sumOf(p.Failed))
	}
}

// What a user sent again was not rerouted because of the outage.
func TestManualRetryIsNotRerouted(t *testing.T) {
	t.Parallel()
	var s script
	s.call(0, 100, "sg", models.SetOf(1, 2), models.Unavailable)
	s.call(200, 300, "mg", models.SetOf(1), models.Accepted)
	s.entry(models.Ending, at(400), "", models.SetOf(2))
	s.entry(models.Release, at(5000), "", models.SetOf(2))
	s.call(5001, 5100, "mg", models.SetOf(2), models.Accepted)
	o := s.of(9000).Outages
	require.Len(t, o, 1)
	require.EqualValues(t, 2, o[0].Failed)
	require.EqualValues(t, 1, o[0].Rerouted)
}

// The rate counts what calls accepted, when they did. Calls that failed or are running are
// not in it.
func TestRateCountsAcceptedCalls(t *testing.T) {
	t.Parallel()
	var s script
	s.call(0, 600, "sg", models.SetTo(10), models.Accepted)
	s.call(0, 100, "mg", models.SetOf(11), models.Unavailable)
	n := s.entry(models.Attempt, at(700), "sg", models.SetOf(12, 13, 14))
	s.answer(n, at(800),
		models.Part{Class: models.Accepted, Recipients: models.SetOf(12)},
		models.Part{Class: models.RejectedRecipient, Recipients: models.SetOf(13)},
		models.Part{Class: models.Unknown, Recipients: models.SetOf(14)},
	)
	s.entry(models.Attempt, at(900), "sg", models.SetOf(15))
	f := Of(2, []Record{s.Record}, nil, at(1000)) // one of two chunks
	require.True(t, f.Running)
	require.Equal(t, begun, f.From)
	require.Equal(t, 250*time.Millisecond, f.Step)
	mg, sg := f.Providers[0], f.Providers[1]
	require.Equal(t, []float64{0, 0, 10 * 2 * 4, 1 * 2 * 4}, sg.Accepted)
	require.Equal(t, []int64{0, 0, 0, 2}, sg.Failed)
	require.Equal(t, []float64{0, 0, 0, 0}, mg.Accepted)
	require.Equal(t, []int64{2, 0, 0, 0}, mg.Failed)
	require.False(t, Of(2, []Record{s.Record}, nil, at(61_000)).Running, "it can be running no longer")
}

func TestFlowWithoutCalls(t *testing.T) {
	t.Parallel()
	require.Equal(t, Flow{Chunks: 3}, Of(3, nil, nil, begun))
}

// A flow has at most maxSteps+1 steps, however long the batch took.
func TestNumberOfSteps(t *testing.T) {
	t.Parallel()
	for _, ms := range []int{0, 1000, 60_000, 3_600_000, 7 * 86_400_000} {
		var s script
		s.call(0, 0, "sg", models.SetOf(1), models.Accepted)
		s.call(ms, ms, "sg", models.SetOf(2), models.Accepted)
		require.LessOrEqual(t, len(s.of(ms).Providers[0].Accepted), maxSteps+1, ms)
	}
}

func sumOf(all []int64) (sum int64) {
	for _, n := range all {
		sum += n
	}
	return sum
}
