package cluster

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/internal/testkit"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// reportBoard is the part of a store that a cluster needs, on the clock of the test.
type reportBoard struct {
	mu    sync.Mutex
	rows  map[string][]byte
	until map[string]time.Time

	shadowed bool // writes change nothing
}

func newReportBoard() *reportBoard {
	return &reportBoard{rows: map[string][]byte{}, until: map[string]time.Time{}}
}

func (b *reportBoard) PutTransient(_ context.Context, _, name string, value []byte, ttl time.Duration) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.shadowed {
		return nil
	}
	if ttl == 0 {
		delete(b.rows, name)
		return nil
	}
	b.rows[name], b.until[name] = value, time.Now().Add(ttl)
	return nil
}

func (b *reportBoard) Transients(context.Context, string) (map[string][]byte, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for name := range b.rows {
		if !time.Now().Before(b.until[name]) {
			delete(b.rows, name)
		}
	}
	return maps.Clone(b.rows), nil
}

// hand is one worker of the test. It sends as fast as it may, until it is frozen, cut off
// from the store, or killed.
type hand struct {
	board   *reportBoard
	cluster *Cluster
	acc     *provider.Provider
	cancel  context.CancelFunc
	mu      sync.Mutex
	now     handState
}

type handState int

const (
	working handState = iota
	frozen            // nothing runs
	cutOff            // it runs, without the store
)

func (h *hand) set(s handState) {
	h.mu.Lock()
	h.now = s
	h.mu.Unlock()
}

func (h *hand) get() handState {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.now
}

// thaw waits while the worker is frozen.
func (h *hand) thaw(ctx context.Context) {
	for h.get() == frozen && ctx.Err() == nil {
		time.Sleep(7 * time.Millisecond)
	}
}

func (h *hand) PutTransient(ctx context.Context, kind, name string, value []byte, ttl time.Duration) error {
	time.Sleep(rand.N(30 * time.Millisecond)) // the way to the store
	h.thaw(ctx)
	if h.get() == cutOff || ctx.Err() != nil {
		return errors.New("no store")
	}
	return h.board.PutTransient(ctx, kind, name, value, ttl)
}

func (h *hand) Transients(ctx context.Context, kind string) (map[string][]byte, error) {
	time.Sleep(rand.N(30 * time.Millisecond))
	h.thaw(ctx)
	if h.get() == cutOff || ctx.Err() != nil {
		return nil, errors.New("no store")
	}
	all, err := h.board.Transients(ctx, kind)
	time.Sleep(rand.N(30 * time.Millisecond)) // the way back
	h.thaw(ctx)
	return all, err
}

// sends records the recipients that a provider receives.
type sends struct {
	all sync.WaitGroup // of the workers' goroutines
	mu  sync.Mutex
	at  []time.Time
	n   []int
}

func startHand(ctx context.Context, name string, board *reportBoard, limit float64, seen *sends) *hand {
	h := &hand{board: board}
	h.cluster = New(h, memberConfig(name))
	spec := provider.Spec{Adapter: idleAdapter{}, Provider: models.Provider{Name: "sg", Rate: limit, Concurrency: 8}}
	ps, err := provider.NewSet([]provider.Spec{spec}, &health, h.cluster)
	if err != nil {
		panic(err)
	}
	h.acc = ps.Get("sg")
	h.cluster.Carry(ps, provider.NewFlows())
	ps.OnChange(h.cluster.Wake)
	ctx, h.cancel = context.WithCancel(ctx)
	seen.all.Go(func() {
		_ = h.cluster.Join(ctx)
		h.cluster.Run(ctx)
	})
	seen.all.Go(func() {
		for ctx.Err() == nil {
			h.thaw(ctx)
			n := 1 + rand.N(min(5, h.acc.CallSize(time.Now()))) // small calls, so that the bucket is never full
			wait := h.acc.Take(models.Bulk, provider.Load{Recipients: n})
			if wait > 0 {
				time.Sleep(min(wait, 20*time.Millisecond))
				continue
			}
			seen.mu.Lock()
			seen.at, seen.n = append(seen.at, time.Now()), append(seen.n, n)
			seen.mu.Unlock()
		}
	})
	return h
}

// most returns how far the worst window exceeds limit x window + burst.
func (s *sends) most(limit, burst float64) (worst float64) {
	// The worst window begins and ends with a call: a running maximum of
	// (sent - limit x time) finds it in one pass.
	sum, low := 0.0, 0.0
	worst = -burst
	for i := range s.at {
		level := sum - limit*s.at[i].Sub(s.at[0]).Seconds()
		if i == 0 || level < low {
			low = level
		}
		sum += float64(s.n[i])
		worst = max(worst, sum-limit*s.at[i].Sub(s.at[0]).Seconds()-low-burst)
	}
	return worst
}

func (s *sends) between(from, to time.Time) (n int) {
	for i, at := range s.at {
		if !at.Before(from) && at.Before(to) {
			n += s.n[i]
		}
	}
	return n
}

// TestSharesHold: workers join, die, freeze for longer than they count as members, resume, and
// lose the store. The provider never receives more than its limit, and most of it while the
// number of workers is steady.
func TestSharesHold(t *testing.T) {
	t.Parallel()
	for range 8 {
		synctest.Test(t, func(t *testing.T) {
			const limit = 200.0
			ctx, stop := context.WithCancel(t.Context())
			board, seen := newReportBoard(), &sends{}
			begun := time.Now()
			a := startHand(ctx, "a", board, limit, seen)
			time.Sleep(30 * time.Second)
			steady1 := time.Now()
			b := startHand(ctx, "b", board, limit, seen)
			c := startHand(ctx, "c", board, limit, seen)
			d := startHand(ctx, "d", board, limit, seen)
			time.Sleep(30 * time.Second)
			steady4 := time.Now()
			b.set(frozen) // for longer than it counts as a member
			c.set(frozen) // for less than that
			time.Sleep(time.Duration(5+rand.N(3)) * time.Second)
			c.set(working)
			d.cancel() // it leaves
			time.Sleep(15 * time.Second)
			b.set(working)
			time.Sleep(time.Duration(rand.N(6000)) * time.Millisecond)
			a.set(cutOff)
			time.Sleep(20 * time.Second)
			a.set(working)
			time.Sleep(10 * time.Second)
			c.set(frozen) // killed: it never comes back
			time.Sleep(40 * time.Second)
			end := time.Now()
			stop()
			seen.all.Wait()

			// Workers that send all the time have empty buckets, so much less than the burst comes
			// on top. A share that two workers use by mistake would exceed that.
			require.LessOrEqual(t, seen.most(limit, limit), 1e-6, "more than limit x window + burst")
			require.LessOrEqual(t, seen.most(limit, limit/4+20), 1e-6, "more than the shares in use")
			for name, w := range map[string][2]time.Time{
				"one":  {begun.Add(5 * time.Second), steady1},
				"four": {steady4.Add(-15 * time.Second), steady4},
				"two":  {end.Add(-20 * time.Second), end},
			} {
				used := float64(seen.between(w[0], w[1])) / (limit * w[1].Sub(w[0]).Seconds())
				require.Greater(t, used, 0.8, "of the limit, with %s", name)
			}
		})
	}
}

// atOnce counts the calls that run at a provider at once.
type atOnce struct {
	mu        sync.Mutex
	now, most int
	held      time.Duration // the sum of the calls' times
}

func (a *atOnce) call(took time.Duration) {
	a.mu.Lock()
	a.now++
	a.most = max(a.most, a.now)
	a.held += took
	a.mu.Unlock()
	time.Sleep(took)
	a.mu.Lock()
	a.now--
	a.mu.Unlock()
}

// calling makes a worker start long calls as fast as it may.
func (h *hand) calling(ctx context.Context, provider *atOnce, all *sync.WaitGroup) {
	all.Go(func() {
		for ctx.Err() == nil {
			h.thaw(ctx)
			if h.acc.Ready() {
				if release, ok := h.acc.Slots.Try(models.Bulk); ok {
					all.Go(func() {
						provider.call(20*time.Second + rand.N(10*time.Second))
						release()
					})
				}
			}
			time.Sleep(10 * time.Millisecond)
		}
	})
}

// TestCallsAtOnce: no more calls run at once than a provider allows, even if workers join while
// others have calls running that they began under a larger share. While the number of workers is
// steady, almost as many run.
func TestCallsAtOnce(t *testing.T) {
	t.Parallel()
	for range testkit.Mails(1, 5) {
		synctest.Test(t, func(t *testing.T) {
			ctx, stop := context.WithCancel(t.Context())
			board, seen, provider := newReportBoard(), &sends{}, &atOnce{}
			var all sync.WaitGroup
			start := func(name string) *hand {
				h := startHand(ctx, name, board, 10, seen)
				h.calling(ctx, provider, &all)
				return h
			}
			used := func(over time.Duration) float64 {
				provider.mu.Lock()
				before := provider.held
				provider.mu.Unlock()
				time.Sleep(over)
				provider.mu.Lock()
				defer provider.mu.Unlock()
				return float64(provider.held-before) / float64(over) / 8
			}
			start("a")
			time.Sleep(time.Minute)
			require.Greater(t, used(10*time.Minute), 0.6, "seven of eight: one is kept for urgent mail")
			b, c := start("b"), start("c")
			time.Sleep(2 * time.Minute)
			b.set(frozen)
			time.Sleep(30 * time.Second)
			b.set(working)
			start("d")
			time.Sleep(2 * time.Minute)
			c.set(frozen) // killed
			time.Sleep(2 * time.Minute)
			require.Greater(t, used(10*time.Minute), 0.4, "each keeps one for urgent mail")
			stop()
			seen.all.Wait()
			all.Wait()
			require.LessOrEqual(t, provider.most, 8)
		})
	}
}

// TestMaxCalls: a worker leaves free the calls that others run beyond their shares, and those that
// they may begin before they know of a new worker.
func TestMaxCalls(t *testing.T) {
	t.Parallel()
	running := func(size, calls int) heartbeat {
		return heartbeat{Size: size, Running: map[string]int{"sg": calls}}
	}
	for name, c := range map[string]struct {
		n, rank int
		others  []heartbeat // of ranks 0, 1, … without this worker's
		want    int
	}{
		"alone":                         {8, 0, nil, 8},
		"within their shares":           {8, 2, []heartbeat{running(3, 3), running(3, 1)}, 2},
		"one has all":                   {8, 1, []heartbeat{running(2, 8)}, 0},
		"one has some beyond its share": {8, 1, []heartbeat{running(2, 6)}, 2},
		"it has too many itself":        {8, 0, []heartbeat{running(2, 2)}, 4},
		"the other does not know it":    {8, 1, []heartbeat{running(1, 0)}, 0},
		"two share what one must leave": {9, 2, []heartbeat{running(3, 6), {Size: 3}}, 1},
	} {
		k := New(nil, memberConfig("w"))
		now := 0
		for rank := range len(c.others) + 1 {
			name := string(rune('a' + rank))
			k.members = append(k.members, name)
			if rank != c.rank {
				k.others[name] = &member{beat: c.others[now]}
				now++
			}
		}
		k.size, k.rank = len(k.members), c.rank
		require.Equal(t, c.want, k.MaxCalls("sg", c.n, provider.Share{Size: k.size, Rank: c.rank}), name)
	}
}

// TestHealthIsShared: the next heartbeat of a worker reports to the others that a provider is
// unhealthy, or healthy again.
func TestHealthIsShared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		board, seen := newReportBoard(), &sends{}
		a, b := startHand(ctx, "a", board, 10, seen), startHand(ctx, "b", board, 10, seen)
		time.Sleep(3 * time.Second)
		usable := func(h *hand) bool { ok, _ := h.acc.Health.Usable("a.test", time.Now(), false); return ok }
		require.True(t, usable(b))
		for range 5 {
			settle, ok := a.acc.Health.Begin("a.test", 1)
			require.True(t, ok)
			settle([]models.Part{{Class: models.Unavailable, Text: "answered 503"}}, time.Millisecond)
		}
		require.False(t, usable(a))
		time.Sleep(1200 * time.Millisecond)
		require.False(t, usable(b), "known within a beat")
		require.Equal(t, telemetry.Suspended, b.acc.Health.Report(time.Now(), control.ProviderMode{}).State)
		require.Equal(t, "answered 503", b.acc.Health.Report(time.Now(), control.ProviderMode{}).Why)

		time.Sleep(5 * time.Second)
		for range 2 { // probes succeed
			settle, ok := a.acc.Health.Begin("a.test", 1)
			require.True(t, ok)
			settle([]models.Part{{Class: models.Accepted}}, time.Millisecond)
		}
		time.Sleep(1200 * time.Millisecond)
		require.True(t, usable(b))
		stop()
		seen.all.Wait()
	})
}
