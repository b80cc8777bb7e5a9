package webhooks

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/internal/priority"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// board keeps reports in memory, as long as it is not told to fail.
type board struct {
	mu   sync.Mutex
	rows map[string]map[string][]byte
	fail bool
}

func newBoard() *board { return &board{rows: map[string]map[string][]byte{}} }

func (b *board) PutTransient(_ context.Context, kind, name string, value []byte, _ time.Duration) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fail {
		return errors.New("away")
	}
	if b.rows[kind] == nil {
		b.rows[kind] = map[string][]byte{}
	}
	b.rows[kind][name] = value
	return nil
}

func (b *board) Transients(_ context.Context, kind string) (map[string][]byte, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fail {
		return nil, errors.New("away")
	}
	return maps.Clone(b.rows[kind]), nil
}

func (b *board) failing(v bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fail = v
}

func (b *board) gaps(t *testing.T) (out []telemetry.Outage) {
	t.Helper()
	rows, err := b.Transients(context.Background(), telemetry.OutageRecord)
	require.NoError(t, err)
	for _, raw := range rows {
		var g telemetry.Outage
		require.NoError(t, json.Unmarshal(raw, &g))
		out = append(out, g)
	}
	slices.SortFunc(out, func(a, b telemetry.Outage) int { return a.From.Compare(b.From) })
	return out
}

// TestHeard: when a provider posted last is written down, soon for the first
// time and after a trouble of the store.
func TestHeard(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBoard()
		s := New(nil, nil, nil, priority.New(), nil)
		defer s.Close()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { s.Watch(ctx, b, "a"); close(done) }()
		last := func() (at time.Time) {
			rows, err := b.Transients(t.Context(), telemetry.LastReceived)
			require.NoError(t, err)
			if raw := rows["sg"]; raw != nil {
				require.NoError(t, json.Unmarshal(raw, &at))
			}
			return at
		}
		synctest.Wait()
		require.True(t, last().IsZero())
		first := time.Now().UTC()
		s.heard.note("sg", first)
		synctest.Wait()
		require.Equal(t, first, last(), "the first one at once")
		b.failing(true)
		second := first.Add(time.Second)
		s.heard.note("sg", second)
		time.Sleep(time.Minute)
		b.failing(false)
		time.Sleep(time.Minute)
		require.Equal(t, second, last())
		third := second.Add(time.Hour)
		s.heard.note("sg", third)
		cancel()
		<-done
		require.Equal(t, third, last(), "before it ends")
	})
}

// TestGapsOfTheDoor: every time in which posts may have been lost is written
// down: while nobody listened, while the store was away, and while the process
// stood still.
func TestGapsOfTheDoor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBoard()
		open := func(name string) (s *Server, shut func()) {
			s = New(nil, nil, nil, priority.New(), nil)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() { s.Watch(ctx, b, name); close(done) }()
			return s, func() { cancel(); <-done; s.Close() }
		}
		covers := func(g telemetry.Outage, from, to time.Time) {
			t.Helper()
			require.False(t, g.From.After(from), "%v begins after %v", g, from)
			require.False(t, g.To.Before(to), "%v ends before %v", g, to)
			require.Less(t, g.To.Sub(g.From), to.Sub(from)+2*time.Minute)
		}
		_, shut := open("a")
		time.Sleep(95 * time.Second)
		require.Empty(t, b.gaps(t), "the first start of all")
		shut()
		stopped := time.Now()
		time.Sleep(3 * time.Second) // shorter than a beat

		s, shut := open("a2")
		time.Sleep(time.Second)
		require.Len(t, b.gaps(t), 1)
		covers(b.gaps(t)[0], stopped, stopped.Add(3*time.Second))

		time.Sleep(time.Hour)
		require.Len(t, b.gaps(t), 1, "while it is open there is none")

		lost := time.Now()
		s.lapse.note(lost) // a post that could not be stored
		b.failing(true)
		time.Sleep(5 * time.Minute)
		again := time.Now()
		s.lapse.note(again)
		b.failing(false)
		time.Sleep(time.Minute)
		gaps := b.gaps(t)[1:]
		require.NotEmpty(t, gaps)
		covers(telemetry.Outage{From: gaps[0].From, To: gaps[len(gaps)-1].To}, lost, again)
		shut()

		// Killed: the last beat is all there is.
		b2 := newBoard()
		require.NoError(
			t,
			b2.PutTransient(t.Context(), telemetry.ReceiverLiveness, "old", []byte(`"1999-02-03T04:05:06Z"`), 0),
		)
		b = b2
		_, shut = open("new")
		time.Sleep(time.Second)
		require.Len(t, b.gaps(t), 1)
		require.Equal(t, 1999, b.gaps(t)[0].From.Year(), "the clock of this test begins in 2000")
		shut()
	})
}

// TestDoorWithAWrongClock: a door whose clock was ahead hides no gap after it.
func TestDoorWithAWrongClock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBoard()
		raw, err := json.Marshal(time.Now().UTC().Add(10 * time.Minute))
		require.NoError(t, err)
		require.NoError(t, b.PutTransient(t.Context(), telemetry.ReceiverLiveness, "ahead", raw, 0))
		stopped := time.Now()
		time.Sleep(3 * time.Second)
		s := New(nil, nil, nil, priority.New(), nil)
		defer s.Close()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { s.Watch(ctx, b, "right"); close(done) }()
		synctest.Wait()
		gaps := b.gaps(t)
		cancel()
		<-done
		require.Len(t, gaps, 1)
		require.False(t, gaps[0].From.After(stopped))
		require.False(t, gaps[0].To.Before(stopped.Add(3*time.Second)))
	})
}

// A door that dies beside others leaves a gap, once, whoever of them writes it; one
// that is shut in peace, and one that was dead before, leave none.
func TestDoorOfAnotherDies(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBoard()
		long, err := json.Marshal(time.Now().UTC())
		require.NoError(t, err)
		require.NoError(t, b.PutTransient(t.Context(), telemetry.ReceiverLiveness, "dead before", long, 0))
		open := func(name string) (stop func()) {
			s := New(nil, nil, nil, priority.New(), nil)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() { s.Watch(ctx, b, name); close(done) }()
			synctest.Wait()
			return func() { cancel(); <-done; s.Close() }
		}
		first, second, peaceful := open("first"), open("second"), open("peaceful")
		started := len(b.gaps(t)) // since who was dead before
		beat := func(name string) {
			raw, err := json.Marshal(time.Now().UTC())
			require.NoError(t, err)
			require.NoError(t, b.PutTransient(t.Context(), telemetry.ReceiverLiveness, name, raw, 0))
		}
		for range 3 {
			beat("dies")
			time.Sleep(doorBeat)
		}
		died := time.Now().Add(-doorBeat)
		peaceful()
		time.Sleep(time.Minute)
		gaps := b.gaps(t)
		require.Len(t, gaps, started+1)
		g := gaps[len(gaps)-1]
		require.False(t, g.From.After(died), "%v", g)
		require.True(t, g.To.After(died.Add(doorAway)), "%v", g)
		time.Sleep(time.Hour)
		require.Len(t, b.gaps(t), started+1)
		first()
		second()
	})
}
