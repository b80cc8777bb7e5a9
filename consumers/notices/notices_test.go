package notices

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
	"github.com/safedelivr/safedelivr/models/feed"
	"github.com/safedelivr/safedelivr/models/telemetry"
	"github.com/safedelivr/safedelivr/store/memory"
)

// fixture is an installation with a clock of its own.
type fixture struct {
	t     *testing.T
	store models.Store
	now   time.Time
}

// newFixture returns a fixture whose clock is at the beginning of an hour.
func newFixture(t *testing.T) *fixture {
	return &fixture{t: t, store: memory.Open(t), now: time.Now().UTC().Truncate(time.Hour)}
}

func (f *fixture) watch(store Store) *Watch {
	return New("w", []string{"sg", "mg"}, store, control.NewFollower(f.store).Rules(), slog.New(slog.DiscardHandler))
}

// put stores a report.
func (f *fixture) put(kind, name string, v any) {
	raw, err := json.Marshal(v)
	require.NoError(f.t, err)
	require.NoError(f.t, f.store.PutTransient(f.t.Context(), kind, name, raw, time.Hour))
}

// reports stores what a worker reports of sg and mg.
func (f *fixture) reports(worker string, sg, mg telemetry.Health) {
	f.put(telemetry.WorkerReport, worker, telemetry.WorkerState{Providers: []telemetry.ProviderState{
		{Name: "sg", Health: sg}, {Name: "mg", Health: mg},
	}})
}

// unknown stores how many unknown outcomes a worker has counted at sg in this hour.
func (f *fixture) unknown(worker string, n int64) {
	h := telemetry.HistoryHour{}
	h.At("sg", 0).Unknown = n
	kind := telemetry.HistoryKind(f.now)
	require.NoError(f.t, f.store.PutTransient(f.t.Context(), kind, worker, h.Encode(), time.Hour))
}

// rounds makes rounds, one for each second.
func (f *fixture) rounds(w *Watch, n int) {
	f.t.Helper()
	for range n {
		require.NoError(f.t, w.round(f.t.Context(), f.now))
		f.now = f.now.Add(poll)
	}
}

// published returns the notices of the feed.
func (f *fixture) published() (out []models.Notice) {
	page, err := feed.Read(f.t.Context(), f.store, feed.Installation, feed.Query{After: feed.Begin, Limit: 10_000})
	require.NoError(f.t, err)
	for i := range page.Updates {
		require.Equal(f.t, i+1, page.Updates[i].Notice.Number)
		out = append(out, *page.Updates[i].Notice)
	}
	return out
}

// kinds returns the kinds of the notices about a provider.
func (f *fixture) kinds(provider string) (out []models.NoticeKind) {
	for _, n := range f.published() {
		if n.Provider == provider {
			out = append(out, n.Kind)
		}
	}
	return out
}

func (f *fixture) is(state string, ago time.Duration) telemetry.Health {
	return telemetry.Health{State: state, Since: f.now.Add(-ago), Source: "calls", Why: "503"}
}

// TestOutageOfAProvider: an outage that several workers see is one failover with one suspension in it. A worker that
// takes over publishes nothing again.
func TestOutageOfAProvider(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a := f.watch(f.store)
	good := f.is(telemetry.Healthy, 0)
	f.reports("a", good, good)
	f.reports("b", good, good)
	f.rounds(a, 2)
	require.Empty(t, f.published())

	failing := f.is(telemetry.Failing, 0)
	f.reports("a", failing, good)
	f.rounds(a, 1)
	require.Empty(t, f.published(), "it may be for a moment")
	f.rounds(a, 2)
	require.Equal(t, []models.NoticeKind{models.FailoverStarted}, f.kinds("sg"))
	suspended := f.is(telemetry.Suspended, 0)
	suspended.Until = f.now.Add(time.Minute)
	f.reports("b", suspended, good)
	f.rounds(a, 2)
	f.reports("a", f.is(telemetry.Suspended, 0), good)
	f.rounds(a, 2)
	during := []models.NoticeKind{models.FailoverStarted, models.ProviderSuspended}
	require.Equal(t, during, f.kinds("sg"))
	n := f.published()[1]
	require.Equal(t, []any{"calls", "503", suspended.Since, suspended.Until}, []any{n.Reason, n.Why, n.Since, n.Until})

	b := f.watch(f.store)
	f.reports("b", f.is(telemetry.Probing, 0), good)
	f.rounds(b, 3)
	f.reports("a", failing, good)
	f.reports("b", good, good)
	f.rounds(b, 10)
	require.Equal(t, append(during, models.ProviderRecovered), f.kinds("sg"))
	f.reports("a", good, good)
	f.rounds(b, 10)
	f.rounds(f.watch(f.store), 10)
	require.Equal(t, append(during, models.ProviderRecovered, models.FailoverEnded), f.kinds("sg"))
	require.Equal(t, failing.Since, f.published()[3].Since)
	require.Empty(t, f.kinds("mg"))
}

// TestMoments: a call that fails now and then is no outage, and one that ends for a moment goes on.
func TestMoments(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w, good := f.watch(f.store), f.is(telemetry.Healthy, 0)
	for range 5 {
		f.reports("a", f.is(telemetry.Failing, 0), good) // another call each time
		f.rounds(w, 1)
	}
	require.Empty(t, f.published())
	bad := f.is(telemetry.Suspended, 0)
	for range 3 {
		f.reports("a", bad, good)
		f.rounds(w, 3)
		f.reports("a", good, good)
		f.rounds(w, int(calm/poll)-1)
	}
	require.Equal(t, []models.NoticeKind{models.FailoverStarted, models.ProviderSuspended}, f.kinds("sg"))
	require.NoError(t, f.store.PutTransient(t.Context(), telemetry.WorkerReport, "a", nil, 0))
	f.rounds(w, 20)
	require.Len(t, f.published(), 2, "it is not known how the provider does")
}

// TestCounts: differences are published when there are more, and unknown outcomes once a minute with their number.
func TestCounts(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w := f.watch(f.store)
	minute := func(differences int) {
		f.put(telemetry.RecountReport, telemetry.NewestRecount, telemetry.Recount{At: f.now, Differences: differences})
		f.rounds(w, int(unknownEvery/poll))
	}
	f.unknown("a", 3)
	minute(0)
	f.unknown("a", 5)
	f.unknown("b", 7)
	minute(2)
	minute(2)
	minute(1)
	w = f.watch(f.store)
	minute(2)
	var got []string
	for _, n := range f.published() {
		got = append(got, fmt.Sprint(n.Kind, " ", n.Provider, " ", n.Count))
	}
	require.Equal(
		t,
		[]string{"outcome.unknown sg 3", "check.difference  2", "outcome.unknown sg 9", "check.difference  2"},
		got,
	)
	f.now = f.now.Add((unknownBack + 1) * time.Hour)
	f.unknown("b", 1)
	minute(2)
	require.Equal(t, int64(1), f.published()[4].Count)
}

// errKilled is the error of all calls of a worker that was killed.
var errKilled = errors.New("the worker was killed")

// faulty is the store of a worker that is killed before or after a call that changes something.
type faulty struct {
	models.Store
	before, after bool
}

func (s *faulty) AppendFeed(ctx context.Context, owner string, e models.FeedEntry) error {
	if s.before {
		return errKilled
	}
	err := s.Store.AppendFeed(ctx, owner, e)
	if s.after {
		return errKilled
	}
	return err
}

// TestPublishedOnce: workers see random things of a provider, and are killed before or after they publish. Failovers
// and suspensions begin and end in turn, and a suspension is within a failover. In the end the feed agrees with what
// workers see. No unknown outcome is missed or published twice.
func TestPublishedOnce(t *testing.T) {
	t.Parallel()
	for run := range 15 {
		seed := rand.Uint64()
		t.Run(fmt.Sprint(run), func(t *testing.T) {
			t.Parallel()
			defer func() {
				if t.Failed() {
					t.Log("seed", seed)
				}
			}()
			random := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // a test
			f := newFixture(t)
			stores := []*faulty{{Store: f.store}, {Store: f.store}}
			watches := []*Watch{f.watch(stores[0]), f.watch(stores[1])}
			states := []string{
				telemetry.Healthy,
				telemetry.Healthy,
				telemetry.Failing,
				telemetry.Suspended,
				telemetry.Probing,
			}
			good := f.is(telemetry.Healthy, 0)
			unknown := int64(0)
			for range 150 {
				if random.IntN(4) == 0 {
					f.reports("a", f.is(states[random.IntN(len(states))], 0), good)
				}
				if random.IntN(4) == 0 {
					unknown += random.Int64N(5)
					f.unknown("a", unknown)
				}
				i := random.IntN(2)
				if random.IntN(6) == 0 {
					stores[i].before, stores[i].after = random.IntN(2) == 0, true
				}
				if err := watches[i].round(t.Context(), f.now); err != nil {
					require.ErrorIs(t, err, errKilled)
					stores[i].before, stores[i].after = false, false
					watches[i] = f.watch(stores[i])
				}
				f.now = f.now.Add(time.Duration(random.IntN(3000)) * time.Millisecond)
				if hour := f.now.Truncate(time.Hour); f.now.Sub(hour) > 50*time.Minute {
					f.now = hour // the unknown outcomes are all of one hour
				}
			}
			f.reports("a", good, good)
			f.rounds(f.watch(f.store), int(unknownEvery/poll)+1)
			checkOrder(t, f.published(), unknown)
		})
	}
}

// checkOrder checks the notices of a time after which all is well.
func checkOrder(t *testing.T, published []models.Notice, unknown int64) {
	t.Helper()
	failover, suspended := false, false
	for _, n := range published {
		switch n.Kind { // there is no other
		case models.FailoverStarted:
			require.False(t, failover)
			failover = true
		case models.ProviderSuspended:
			require.True(t, failover)
			require.False(t, suspended)
			suspended = true
		case models.ProviderRecovered:
			require.True(t, suspended)
			suspended = false
		case models.FailoverEnded:
			require.True(t, failover)
			require.False(t, suspended)
			failover = false
		case models.UnknownOutcomes:
			unknown -= n.Count
		}
	}
	require.False(t, failover || suspended, "all is well")
	require.Zero(t, unknown)
}

// TestStalledQueue: a queue that delivers to no worker causes one notice while reports name it, and another one when it
// stalls again later.
func TestStalledQueue(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w := f.watch(f.store)
	stalled := telemetry.StalledQueue{Queue: "sg.bulk", Since: f.now, Waiting: 17}
	f.put(telemetry.StalledQueueReport, "sg.bulk", stalled)
	f.rounds(w, 3)
	f.put(telemetry.StalledQueueReport, "sg.bulk", telemetry.StalledQueue{Queue: "sg.bulk", Since: f.now, Waiting: 20})
	f.rounds(f.watch(f.store), 3) // another worker
	published := f.published()
	require.Len(t, published, 1)
	require.Equal(t, models.QueueStalled, published[0].Kind)
	require.EqualValues(t, 17, published[0].Count)
	require.Contains(t, published[0].Text(), "17 messages waited")
	require.Contains(t, published[0].Text(), "sg.bulk")

	require.NoError(t, f.store.PutTransient(t.Context(), telemetry.StalledQueueReport, "sg.bulk", nil, 0))
	f.rounds(w, 1)
	f.put(telemetry.StalledQueueReport, "sg.bulk", stalled)
	f.rounds(w, 3)
	require.Len(t, f.published(), 2)
}
