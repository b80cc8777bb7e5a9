package quota

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/internal/testkit"

	"github.com/safedelivr/safedelivr/models"
)

func TestMain(m *testing.M) { testkit.VerifyNoLeaks(m) }

// memory is a Store in memory. Every answer to a claim is lost once if lossy is set.
type memory struct {
	models.ClaimStore
	models.DocumentStore
	lossy bool

	mu         sync.Mutex
	claims     map[string]models.Claim
	asked      int                  // how often a claim was read
	transients map[string]time.Time // by name, until when
	down       bool
	documents  map[string]models.Document // by owner and key
	batches    []models.ID                // of the user u
	oldest     int                        // how often the oldest was asked for
	removed    *models.ID                 // the newest batch without content
}

func newMemory() *memory {
	return &memory{
		claims: map[string]models.Claim{}, transients: map[string]time.Time{}, documents: map[string]models.Document{},
	}
}

func (m *memory) Claim(_ context.Context, key string, c models.Claim, _ time.Duration) (models.Claim, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	there, ok := m.claims[key]
	if !ok {
		m.claims[key] = c
		if m.lossy {
			return models.Claim{}, models.ErrOutcomeUnknown
		}
		return c, nil
	}
	return there, nil
}

func (m *memory) Claimed(_ context.Context, key string) (models.Claim, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asked++
	if c, ok := m.claims[key]; ok {
		return c, nil
	}
	return models.Claim{}, models.ErrNotFound
}

func (m *memory) PutTransient(_ context.Context, _, name string, _ []byte, ttl time.Duration) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.down {
		return models.ErrUnavailable
	}
	m.transients[name] = time.Now().Add(ttl)
	return nil
}

func (m *memory) Transient(context.Context, string, string) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.removed == nil {
		return nil, models.ErrNotFound
	}
	return m.removed[:], nil
}

func (m *memory) Transients(context.Context, string) (map[string][]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[string][]byte{}
	for name, until := range m.transients {
		if time.Now().Before(until) {
			out[name] = nil
		}
	}
	return out, nil
}

func (m *memory) setDown() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.down = true
}

func user(limits models.Limits) []Subject { return []Subject{{ID: "ada", Limits: limits}} }

// refusal returns how an error refuses a request.
func refusal(t *testing.T, err error) *Exceeded {
	t.Helper()
	var e *Exceeded
	require.ErrorAs(t, err, &e)
	return e
}

func TestSlicesAddUp(t *testing.T) {
	t.Parallel()
	for _, limit := range []int64{1, 5, 63, 64, 65, 1000, 999_999, 1_000_000_000_000} {
		w := newWindow(user(models.Limits{models.RecipientsPerDay: limit})[0], models.RecipientsPerDay, time.Now())
		require.Equal(t, limit, w.before(w.slices()), limit)
		for i := range w.slices() {
			require.Positive(t, w.size(i), "%d: %d", limit, i)
		}
	}
}

// Processes that share a store never admit more than the limit, even if the answers to
// their claims are lost.
func TestProcessesShareAWindow(t *testing.T) {
	t.Parallel()
	for _, l := range []models.Limit{models.RecipientsPerHour, models.UrgentRecipientsPerHour} {
		t.Run(string(l), func(t *testing.T) {
			t.Parallel()
			processesShareAWindow(t, l)
		})
	}
}

func processesShareAWindow(t *testing.T, l models.Limit) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		const limit, processes, most = 10_000, 4, 30
		store := newMemory()
		store.lossy = true
		subjects := user(models.Limits{l: limit})
		var admitted atomic.Int64
		var all sync.WaitGroup
		for range processes {
			g := New(store, &Processes{})
			for n := range int64(most) {
				all.Go(func() {
					for {
						_, err := g.Take(t.Context(), subjects, []Amount{{Limit: l, N: n + 1}})
						if err != nil {
							refusal(t, err)
							return
						}
						admitted.Add(n + 1)
					}
				})
			}
		}
		all.Wait()
		require.LessOrEqual(t, admitted.Load(), int64(limit))
		require.Equal(t, int64(limit), admitted.Load(), "requests for 1 recipient use the rest")
	})
}

// TestUsageIsFound: each process finds out how much all have used. What it knows itself it does not read, and a Trial
// reads it once for many questions.
func TestUsageIsFound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, usageIsFound)
}

func usageIsFound(t *testing.T) {
	const limit, l = 1000, models.RecipientsPerDay
	subject := user(models.Limits{l: limit})
	for used := int64(1); used <= limit; used += 37 {
		store := newMemory()
		first, other := New(store, &Processes{}), New(store, &Processes{})
		_, err := first.Take(t.Context(), subject, []Amount{{Limit: l, N: used}})
		require.NoError(t, err)
		own, err := first.claimed(t.Context(), subject[0], l, time.Now())
		require.NoError(t, err)
		require.Equal(t, used, own)
		require.LessOrEqual(t, store.asked, 1, "the first slice that it has not claimed")
		all, err := other.claimed(t.Context(), subject[0], l, time.Now())
		require.NoError(t, err)
		w := first.window(subject[0], l, time.Now())
		require.Equal(t, w.before(w.next), all, "all slices that the first has claimed")

		store.asked = 0
		trial := first.NewTrial()
		for range limit - used {
			require.NoError(t, trial.Take(t.Context(), subject, []Amount{{Limit: l, N: 1}}))
		}
		require.LessOrEqual(t, store.asked, 1)
		refusal(t, trial.Take(t.Context(), subject, []Amount{{Limit: l, N: 1}}))
	}
}

// TestLaterWindows: what is taken of a later hour is counted in that hour, by all processes together, also after a
// process has forgotten the hour.
func TestLaterWindows(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const limit = 100
		store := newMemory()
		g, other := New(store, &Processes{}), New(store, &Processes{})
		subjects := user(models.Limits{models.UrgentRecipientsPerHour: limit})
		begin := time.Now()
		take := func(g *Guard, hour int, n int64) error {
			at := begin.Add(time.Duration(hour) * time.Hour)
			_, err := g.Take(t.Context(), subjects, []Amount{{Limit: models.UrgentRecipientsPerHour, N: n, At: at}})
			return err
		}
		require.NoError(t, take(g, 5, limit))
		require.Equal(t, 6*time.Hour, refusal(t, take(g, 5, 1)).After)
		refusal(t, take(other, 5, 1))
		require.NoError(t, take(g, -1, limit), "now at the earliest")
		refusal(t, take(g, 0, 1))

		taken := 0
		for take(g, 6, 1) == nil {
			taken++
			for hour := range maxWindows {
				require.NoError(t, take(other, 7+hour, 1))
			}
			if take(other, 6, 1) == nil {
				taken++
			}
		}
		require.LessOrEqual(t, taken, limit)
		require.Greater(t, taken, limit/2, "what is forgotten is little")
		require.LessOrEqual(t, len(other.subjects["ada"].windows), maxWindows)

		time.Sleep(5 * time.Hour)
		refusal(t, take(g, 5, 1))
		used, err := g.Usage(t.Context(), subjects[0])
		require.NoError(t, err)
		require.Equal(t, []any{models.UrgentRecipientsPerHour, int64(limit)}, []any{used[4].Limit, used[4].Used})
	})
}

func TestWindowEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g, ctx := New(newMemory(), &Processes{}), t.Context()
		subjects := user(models.Limits{models.RecipientsPerHour: 100, models.RecipientsPerDay: 150})
		take := func(n int64) (func(), error) {
			return g.Take(ctx, subjects, []Amount{
				{Limit: models.RecipientsPerHour, N: n},
				{Limit: models.RecipientsPerDay, N: n},
			})
		}
		time.Sleep(10 * time.Minute)
		_, err := take(101)
		require.Zero(t, refusal(t, err).After, "it never fits")
		back, err := take(100)
		require.NoError(t, err)
		_, err = take(1)
		require.Equal(t, &Exceeded{
			Subject: "ada",
			Limit:   models.RecipientsPerHour,
			Value:   100,
			After:   50 * time.Minute,
		}, refusal(t, err))
		back()
		_, err = take(100)
		require.NoError(t, err, "what was given back")
		time.Sleep(50 * time.Minute)
		_, err = take(60)
		require.Equal(t, models.RecipientsPerDay, refusal(t, err).Limit)
		_, err = take(50)
		require.NoError(t, err, "the refused request gave its part of the hour back")
		used, err := g.Usage(ctx, subjects[0])
		require.NoError(t, err)
		require.Equal(t, []int64{50, 150}, []int64{used[2].Used, used[3].Used})
		other, err := New(g.store, &Processes{}).Usage(ctx, subjects[0])
		require.NoError(t, err)
		require.GreaterOrEqual(t, other[2].Used, int64(50), "an upper bound")
		require.Less(t, other[2].Used, int64(63), "what was claimed and given back counts for other processes")
	})
}

func TestRequestsPerSecond(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		processes := &Processes{}
		g := New(newMemory(), processes)
		begin := func(limit int64) (n int) {
			for {
				end, err := g.Begin(user(models.Limits{models.RequestsPerSecond: limit}))
				if err != nil {
					require.Positive(t, refusal(t, err).After)
					return n
				}
				end()
				n++
			}
		}
		require.Equal(t, 10, begin(10))
		time.Sleep(time.Second)
		require.Equal(t, 10, begin(10))
		processes.live.Store(2)
		time.Sleep(time.Second)
		require.Equal(t, 5, begin(10), "half of it is the other process's")
		time.Sleep(500 * time.Millisecond)
		require.Equal(t, 2, begin(10))
		time.Sleep(time.Second)
		require.Equal(t, 5, begin(20), "what the old limit left")
		time.Sleep(time.Second)
		require.Equal(t, 10, begin(20))
	})
}

// A request counts against its user and its key, or against none of them.
func TestUserAndKey(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := New(newMemory(), &Processes{})
		both := []Subject{
			{ID: "ada", Limits: models.Limits{models.RequestsPerSecond: 10, models.RequestsAtOnce: 2}},
			{ID: "key", Limits: models.Limits{models.RequestsPerSecond: 1}},
		}
		end, err := g.Begin(both)
		require.NoError(t, err)
		_, err = g.Begin(both)
		require.Equal(t, "key", refusal(t, err).Subject)
		known := g.Known(both)
		require.Equal(t, models.RequestsPerSecond, known[0].Limit)
		require.Zero(t, known[0].Left(), "of the key least is left")
		_, err = g.Begin(both[:1])
		require.NoError(t, err)
		_, err = g.Begin(both[:1])
		require.Equal(t, models.RequestsAtOnce, refusal(t, err).Limit)
		end()
		_, err = g.Begin(both[:1])
		require.NoError(t, err)
	})
}

func TestSpoolIsBounded(t *testing.T) {
	t.Parallel()
	g := New(newMemory(), &Processes{})
	subjects := user(models.Limits{models.SpoolBytes: 1000})
	require.NoError(t, g.Spool(subjects, 0, 800))
	require.Positive(t, refusal(t, g.Spool(subjects, 0, 201)).After)
	require.Zero(t, refusal(t, g.Spool(subjects, 800, 201)).After, "it never fits")
	require.NoError(t, g.Spool(subjects, 800, -800))
	require.NoError(t, g.Spool(subjects, 0, 1000))
}

// run runs a process until the test ends.
func run(t *testing.T, p *Processes, store *memory, name string) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	var ended sync.WaitGroup
	ended.Go(func() { p.Run(ctx, store, name, func(err error) { require.NoError(t, err) }) })
	t.Cleanup(func() { stop(); ended.Wait() })
	synctest.Wait()
}

// TestProcessesShareSpool: the processes that use a store hold no more bytes of a user together than the limit. One
// that starts admits nothing until the other one counts it, and says that this passes.
func TestProcessesShareSpool(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var one, two Processes
		store := newMemory()
		first, second := New(store, &one), New(store, &two)
		subjects := user(models.Limits{models.SpoolBytes: 1000})
		run(t, &one, store, "one")
		require.NoError(t, first.Spool(subjects, 0, 1000), "it is alone")
		require.NoError(t, first.Spool(subjects, 1000, -1000))
		run(t, &two, store, "two")
		require.Equal(t, spoolRetry, refusal(t, second.Spool(subjects, 0, 400)).After)
		time.Sleep(heartbeat)
		synctest.Wait()
		held := int64(0)
		for _, g := range []*Guard{first, second} {
			for range 20 {
				if g.Spool(subjects, 0, 100) == nil {
					held += 100
				}
			}
			require.Equal(t, spoolRetry, refusal(t, g.Spool(subjects, 0, 100)).After)
			require.EqualValues(t, 1000, g.Known(subjects)[0].Used)
		}
		require.EqualValues(t, 1000, held)
		large := refusal(t, first.Spool(subjects, 500, 1))
		require.Equal(t, []any{time.Duration(0), int64(500)}, []any{large.After, large.Share}, "it never fits into one")
		large = refusal(t, first.Spool(subjects, 500, 501))
		require.Equal(t, []any{time.Duration(0), int64(0)}, []any{large.After, large.Share}, "it never fits")
	})
}

// TestStartingProcess: two processes divide the requests that a user may make at once. One that starts admits as little
// as it can until the other one counts it; one that is alone does not wait.
func TestStartingProcess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var one, two Processes
		store := newMemory()
		atOnce := func(p *Processes) (n int) {
			g := New(store, p)
			for {
				end, err := g.Begin(user(models.Limits{models.RequestsAtOnce: 10}))
				if err != nil {
					require.Equal(t, models.RequestsAtOnce, refusal(t, err).Limit)
					return n
				}
				defer end()
				n++
			}
		}
		run(t, &one, store, "one")
		require.Equal(t, 10, atOnce(&one), "it is alone")
		time.Sleep(heartbeat / 2)
		run(t, &two, store, "two")
		require.Equal(t, []int{10, 1}, []int{atOnce(&one), atOnce(&two)}, "one does not know of two")
		time.Sleep(heartbeat)
		synctest.Wait()
		require.Equal(t, []int{5, 5}, []int{atOnce(&one), atOnce(&two)})
	})
}

// TestJoinedProcessHasItsShare: a process that has joined others admits its whole share at once, whatever it was asked
// for before.
func TestJoinedProcessHasItsShare(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var one, two Processes
		store := newMemory()
		run(t, &one, store, "one")
		run(t, &two, store, "two")
		g := New(store, &two)
		admitted := func() (n int) {
			for {
				end, err := g.Begin(user(models.Limits{models.RequestsPerSecond: 1000}))
				if err != nil {
					require.Equal(t, models.RequestsPerSecond, refusal(t, err).Limit)
					return n
				}
				end()
				n++
			}
		}
		for began := time.Now(); two.Joining(); synctest.Wait() { // the heartbeat may be due at the same time
			require.LessOrEqual(t, admitted(), 1)
			require.Less(t, time.Since(began), 2*heartbeat)
			time.Sleep(time.Millisecond)
		}
		require.Equal(t, 500, admitted())
		require.Zero(t, admitted())
	})
}

func TestProcessesAreCounted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newMemory()
		var one, two Processes
		require.EqualValues(t, 1, one.Count())
		first, stopFirst := context.WithCancel(t.Context())
		second, stopSecond := context.WithCancel(t.Context())
		var failures atomic.Int64
		fail := func(err error) {
			require.ErrorIs(t, err, models.ErrUnavailable)
			failures.Add(1)
		}
		go one.Run(first, store, "one", fail)
		go two.Run(second, store, "two", fail)
		time.Sleep(heartbeat + time.Second)
		require.EqualValues(t, 2, one.Count())
		stopSecond()
		time.Sleep(heartbeat)
		require.EqualValues(t, 1, one.Count())
		store.setDown()
		time.Sleep(heartbeat)
		require.EqualValues(t, 1, one.Count(), "the last count stays")
		require.Positive(t, failures.Load())
		stopFirst()
		synctest.Wait()
	})
}
