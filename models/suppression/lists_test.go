package suppression

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
	"github.com/safedelivr/safedelivr/store/memory"
)

// entry returns an entry that suppresses all mail to an address.
func entry(email string) models.Suppression {
	return models.NewSuppression(email, models.Manual, models.FromAPI, time.Now())
}

// find returns the suppressed among addresses.
func find(t testing.TB, l *Lists, mail Mail, addresses ...string) (out []string) {
	t.Helper()
	f, err := l.Suppressed(t.Context(), mail, len(addresses), func(i int) string { return addresses[i] }, 0)
	require.NoError(t, err)
	for i, a := range addresses {
		if _, ok := f.Suppressed[i]; ok {
			out = append(out, a)
		}
	}
	return out
}

// TestSuppressed: the user's own list and everyone's suppress an address in any case, and the
// list of another user does not.
func TestSuppressed(t *testing.T) {
	t.Parallel()
	s := memory.Open(t)
	own, other := New(s, DefaultMemory), New(s, DefaultMemory) // of two processes
	ctx, mail := t.Context(), Mail{User: "u"}
	require.Empty(t, find(t, other, mail, "a@x.example"))
	require.NoError(t, own.Add(ctx, "u", entry("A@x.example")))
	require.NoError(t, own.Add(ctx, models.EveryonesList, entry("b@x.example")))
	require.NoError(t, own.Add(ctx, "v", entry("c@x.example")))
	all := []string{"a@x.example", "a@X.example", "b@x.example", "c@x.example", "d@x.example"}
	for _, l := range []*Lists{own, other, New(s, 0)} {
		require.Equal(t, all[:3], find(t, l, mail, all...))
		require.Equal(t, all[2:4], find(t, l, Mail{User: "v"}, all...))
	}

	added := entry("d@x.example")
	added.Category, added.Reason = "news", models.Unsubscribe
	gone := entry("e@x.example")
	gone.Expires = time.Now().Add(-time.Second)
	removed := entry("a@x.example")
	removed.Removed, removed.At = true, removed.At.Add(time.Second)
	require.NoError(t, own.Add(ctx, "u", added, gone, removed))
	all = []string{"a@x.example", "d@x.example", "e@x.example"}
	require.Empty(t, find(t, other, mail, all...))
	require.Equal(t, all[1:2], find(t, other, Mail{User: "u", Category: "news"}, all...))
	require.Empty(t, find(t, other, Mail{User: "u", Category: "news", PassUnsubscribes: true}, all...))
}

// TestChanged: after an address was added, every process notices that it must look again, also
// if the address was on the list before.
func TestChanged(t *testing.T) {
	t.Parallel()
	s := memory.Open(t)
	own, other := New(s, DefaultMemory), New(s, DefaultMemory)
	ctx, mail := t.Context(), Mail{User: "u"}
	at := func(int) string { return "a@x.example" }
	look := func() Found {
		t.Helper()
		f, err := other.Suppressed(ctx, mail, 1, at, control.MaxRuleAge)
		require.NoError(t, err)
		return f
	}
	changed := func(f Found) bool {
		t.Helper()
		c, err := other.Changed(ctx, mail, &f, 0)
		require.NoError(t, err)
		return c
	}
	f := look()
	require.False(t, changed(f))
	require.NoError(t, own.Add(ctx, "u", entry("a@x.example")))
	require.True(t, changed(f))

	removed := entry("a@x.example")
	removed.Removed, removed.At = true, removed.At.Add(time.Second)
	require.NoError(t, own.Add(ctx, "u", removed))
	f = look()
	require.Empty(t, f.Suppressed)
	again := entry("a@x.example")
	again.At = again.At.Add(2 * time.Second)
	require.NoError(t, own.Add(ctx, "u", again))
	require.True(t, changed(f))
	require.Len(t, look().Suppressed, 1)
}

// TestAddTogether: many processes add to a list at once, and none loses an addition.
func TestAddTogether(t *testing.T) {
	t.Parallel()
	s := memory.Open(t)
	const writers, each = 6, 20
	done := make(chan error)
	for w := range writers {
		l := New(s, DefaultMemory)
		go func() {
			for n := range each {
				if err := l.Add(t.Context(), "u", entry(fmt.Sprintf("%d.%d@x.example", w, n))); err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
	}
	for range writers {
		require.NoError(t, <-done)
	}
	var all []string
	for w := range writers {
		for n := range each {
			all = append(all, fmt.Sprintf("%d.%d@x.example", w, n))
		}
	}
	require.Equal(t, all, find(t, New(s, DefaultMemory), Mail{User: "u"}, all...))
}

// TestMemory: lists that were not used for longer are dropped, a list that does not fit is
// still right, and the marks of all lists stay within the budget.
func TestMemory(t *testing.T) {
	t.Parallel()
	s := memory.Open(t)
	big := New(s, DefaultMemory)
	for _, u := range []string{"a", "b", "c"} {
		var es []models.Suppression
		for n := range 2500 {
			es = append(es, entry(fmt.Sprint(n, "@x.example")))
		}
		require.NoError(t, big.Add(t.Context(), u, es...))
	}
	require.Equal(t, 7500, big.marks)
	small := New(s, 4000*markBytes)
	for range 2 {
		for _, u := range []string{"a", "b", "c"} {
			require.Equal(t, []string{"7@x.example"}, find(t, small, Mail{User: u}, "7@x.example", "7@y.example"))
			require.LessOrEqual(t, small.marks, small.budget)
		}
	}
	tiny := New(s, 1000*markBytes)
	require.Equal(t, []string{"7@x.example"}, find(t, tiny, Mail{User: "a"}, "7@x.example", "7@y.example"))
	require.Zero(t, tiny.marks)
	require.NoError(t, tiny.Add(t.Context(), "a", entry("new@x.example")))
	require.Equal(t, []string{"new@x.example"}, find(t, big, Mail{User: "a"}, "new@x.example"))
}

// manyMarks is a store with one list of many random marks.
type manyMarks struct {
	models.Store
	n int
}

func (m manyMarks) Additions(_ context.Context, list string, after, limit int) ([]models.SuppressionAddition, error) {
	if list != "u" {
		return nil, nil
	}
	random := rand.New(rand.NewPCG(1, uint64(after)))
	var out []models.SuppressionAddition
	for i := after + 1; i <= m.n/1000 && len(out) < limit; i++ {
		a := models.SuppressionAddition{Number: i, Marks: make([]uint64, 1000)}
		for k := range a.Marks {
			a.Marks[k] = random.Uint64()
		}
		out = append(out, a)
	}
	return out, nil
}

// BenchmarkMillion checks a chunk of 1,000 recipients against a list of a million.
func BenchmarkMillion(b *testing.B) {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	l := New(manyMarks{n: 1_000_000}, DefaultMemory)
	addresses := make([]string, 1000)
	for i := range addresses {
		addresses[i] = fmt.Sprint("recipient.", i, "@domain.example")
	}
	look := func() {
		_, err := l.Suppressed(b.Context(), Mail{User: "u"}, len(addresses), func(i int) string { return addresses[i] },
			control.MaxRuleAge)
		require.NoError(b, err)
	}
	look()
	runtime.GC()
	runtime.ReadMemStats(&after)
	for b.Loop() {
		look()
	}
	b.ReportMetric(float64(int64(after.HeapAlloc)-int64(before.HeapAlloc))/1e6, "bytes/entry")
}
