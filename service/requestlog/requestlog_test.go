package requestlog

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/internal/testkit"

	"github.com/safedelivr/safedelivr/models"
)

func TestMain(m *testing.M) { testkit.VerifyNoLeaks(m) }

// memory is a store in memory. Values do not end.
type memory struct {
	mu     sync.Mutex
	values map[string]map[string][]byte
	err    error
	block  chan struct{} // writes wait for it; nil: they do not
	began  chan struct{} // gets a value when a write waits
	puts   int
}

func (m *memory) PutTransient(ctx context.Context, kind, name string, value []byte, _ time.Duration) error {
	m.mu.Lock()
	block := m.block
	m.mu.Unlock()
	if block != nil {
		select {
		case m.began <- struct{}{}:
		default:
		}
		select {
		case <-block:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err != nil {
		return m.err
	}
	m.puts++
	if m.values == nil {
		m.values = map[string]map[string][]byte{}
	}
	if m.values[kind] == nil {
		m.values[kind] = map[string][]byte{}
	}
	m.values[kind][name] = value
	return nil
}

func (m *memory) Transients(_ context.Context, kind string) (map[string][]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.values[kind], m.err
}

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

// all reads all lines of a key, in pages of n.
func all(t *testing.T, l *Log, key string, n int) (out []Line) {
	t.Helper()
	for before := (models.ID{}); ; before = out[len(out)-1].ID {
		page, err := l.List(t.Context(), key, before, n)
		require.NoError(t, err)
		require.LessOrEqual(t, len(page), n)
		if out = append(out, page...); len(page) < n {
			return out
		}
	}
}

// clock is a clock that tests set.
type clock struct {
	mu sync.Mutex
	at time.Time
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = c.at.Add(d)
}

// TestLines: the lines of a key are listed newest first, over hours and processes, and end after
// a week.
func TestLines(t *testing.T) {
	t.Parallel()
	store, c := &memory{}, &clock{at: time.Date(2026, 1, 31, 22, 0, 0, 0, time.UTC)}
	one, two := New(store, discard()), New(store, discard())
	one.now, two.now = c.now, c.now
	defer one.Close()
	defer two.Close()
	var want []string
	for i := range 30 {
		l := one
		if i%3 == 0 {
			l = two
		}
		request := fmt.Sprint("r", i)
		l.Add("k", Line{Method: "GET", Path: "/v1/batches", Status: 200 + i, Request: request})
		l.Add("other", Line{Request: "x"})
		want = append([]string{request}, want...)
		c.add(7 * time.Minute)
	}
	require.NoError(t, two.Write(t.Context()))
	for _, n := range []int{1, 7, 100} {
		var got []string
		for _, line := range all(t, one, "k", n) {
			got = append(got, line.Request)
		}
		require.Equal(t, want, got)
	}
	c.add(Keep - time.Hour)
	require.Len(t, all(t, one, "k", 100), 8, "those of the last hour of the week")
	require.Empty(t, all(t, one, "unknown", 10))
}

// TestAddNeverWaits: while the store hangs or fails, requests are recorded at once, in bounded
// memory; what is too much is counted; and everything that was kept is written later.
func TestAddNeverWaits(t *testing.T) {
	t.Parallel()
	store := &memory{block: make(chan struct{}), began: make(chan struct{}, 1)}
	l := New(store, discard())
	defer l.Close()
	l.Add("k0", Line{Status: 200})
	wrote := make(chan error)
	go func() { wrote <- l.Write(t.Context()) }()
	<-store.began
	for i := range 3 * maxUnwritten { // the writer hangs
		l.Add(fmt.Sprint("k", i%20), Line{Status: 200})
	}
	l.mu.Lock()
	require.Equal(t, maxUnwritten, l.waiting)
	l.mu.Unlock()
	store.mu.Lock()
	store.err = errors.New("unavailable")
	close(store.block)
	store.mu.Unlock()
	require.Error(t, <-wrote)
	store.mu.Lock()
	store.err = nil
	store.mu.Unlock()
	require.NoError(t, l.Write(t.Context()))
	l.Add("k1", Line{Status: 201})
	lines := all(t, l, "k1", 500)
	require.Len(t, lines, maxUnwritten/20+1)
	require.Equal(t, 2*maxUnwritten/20, lines[0].Omitted)
	require.LessOrEqual(t, store.puts, 20*6, "lines are written together")
}

// TestLinesOfAnHour: an hour has a bounded number of lines of a key.
func TestLinesOfAnHour(t *testing.T) {
	t.Parallel()
	store, c := &memory{}, &clock{at: time.Date(2026, 1, 31, 22, 0, 0, 0, time.UTC)}
	l := New(store, discard())
	l.now = c.now
	defer l.Close()
	for range maxHour + 10 {
		l.Add("k", Line{Status: 200})
	}
	require.Len(t, all(t, l, "k", 1000), maxHour)
	c.add(time.Hour)
	l.Add("k", Line{Status: 200})
	newest, err := l.List(t.Context(), "k", models.ID{}, 1)
	require.NoError(t, err)
	require.Equal(t, 10, newest[0].Omitted)
}
