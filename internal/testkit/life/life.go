// Package life counts what one mail costs in its whole life: from the request until its last report is counted and the
// agenda has looked at it.
//
// The product runs on a fake clock with a store in memory, and the mail comes alone, so that the counts are always the
// same. The calls of the store can be repeated on another engine, which counts its statements.
package life

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/store/shapes"
)

// Steps are the steps of a life.
var Steps = []string{"accepted, sent", "processed", "delivered", "opened", "a minute later"}

// A Count says how often something was done.
type Count map[string]int

// A Counter counts what an engine does. Its methods may be called concurrently.
type Counter struct {
	mu    sync.Mutex
	count Count
}

// Add counts what was done.
func (c *Counter) Add(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.count == nil {
		c.count = Count{}
	}
	c.count[what]++
}

// Take returns the counts since it was called last.
func (c *Counter) Take() Count {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := c.count
	c.count = nil
	return out
}

// A Life is what the product did for one mail.
type Life struct {
	calls []call
	Steps []Count // what the store and the broker were asked
}

// call is a call of the store.
type call struct {
	step  int // of the life; -1: it is not part of the life, but others may need what it stored
	whats []string
	do    func(ctx context.Context, e shapes.Engine) error
}

// Record runs a mail through its life, on an engine that many processes can use, or only a single one. What the product
// also does when nothing is sent is not counted.
func Record(t *testing.T, single bool) *Life {
	t.Helper()
	l := &Life{}
	synctest.Test(t, func(t *testing.T) {
		p := newProduct(t, single)
		wait := func(d time.Duration) {
			time.Sleep(d)
			synctest.Wait()
		}
		wait(time.Hour)
		idle := map[string]bool{}
		for _, c := range p.recorded.take(-1) {
			for _, what := range c.whats {
				idle[what] = true
			}
		}
		p.send("before@example.com") // caches are filled, and the hour's work is done
		wait(2 * time.Minute)
		calls := p.recorded.take(-1)
		id := p.send("ann@example.com")
		wait(5 * time.Second)
		calls = append(calls, p.recorded.take(0)...)
		for i, kind := range []models.EventKind{models.Processed, models.Delivered, models.Opened} {
			p.report(id, kind)
			wait(5 * time.Second)
			calls = append(calls, p.recorded.take(1+i)...)
		}
		wait(2 * time.Minute)
		calls = append(calls, p.recorded.take(len(Steps)-1)...)
		l.Steps = make([]Count, len(Steps))
		for _, c := range calls {
			if slices.ContainsFunc(c.whats, func(what string) bool { return idle[what] }) {
				continue
			}
			if c.do != nil {
				l.calls = append(l.calls, c)
			}
			if c.step >= 0 {
				l.add(c.step, c.whats)
			}
		}
	})
	return l
}

func (l *Life) add(step int, whats []string) {
	if l.Steps[step] == nil {
		l.Steps[step] = Count{}
	}
	for _, what := range whats {
		l.Steps[step][what]++
	}
}

// Replay makes the calls of a life on another engine, whose statements are counted.
func (l *Life) Replay(t *testing.T, e shapes.Engine, counted *Counter) []Count {
	t.Helper()
	out := make([]Count, len(Steps))
	for _, c := range l.calls {
		counted.Take()
		require.NoError(t, c.do(t.Context(), e), "%v", c.whats)
		if c.step < 0 {
			continue
		}
		if out[c.step] == nil {
			out[c.step] = Count{}
		}
		for what, n := range counted.Take() {
			out[c.step][what] += n
		}
	}
	return out
}

// Verify compares counts with the table of a name in docs/benchmarks.md, which is in a folder. With
// SAFEDELIVR_TEST_UPDATE it writes the table. Lines whose names begin with a capital letter are not part of the sum.
func Verify(t *testing.T, folder, name string, steps []Count) {
	t.Helper()
	path := folder + "/docs/benchmarks.md"
	raw, err := os.ReadFile(path)
	require.NoError(t, err)
	begin, end := "<!-- made by a test: life on "+name+" -->\n", "<!-- end -->"
	before, rest, found := strings.Cut(string(raw), begin)
	require.True(t, found, "%s has no table %q", path, name)
	was, after, found := strings.Cut(rest, end)
	require.True(t, found)
	table := tableOf(steps)
	if os.Getenv("SAFEDELIVR_TEST_UPDATE") != "" {
		require.NoError(t, os.WriteFile(path, []byte(before+begin+table+end+after), 0o644)) //nolint:gosec // as it was
		return
	}
	require.Equal(t, was, table, "A mail costs more or less than %s says. If that is meant, run the test with "+
		"SAFEDELIVR_TEST_UPDATE=yes, and say why in the commit.", path)
}

// tableOf returns a table of counts in Markdown.
func tableOf(steps []Count) string {
	var b strings.Builder
	fmt.Fprintf(&b, "\n| | %s | all |\n|---|%s--:|\n", strings.Join(Steps, " | "), strings.Repeat("--:|", len(Steps)))
	sums := Count{}
	for _, step := range steps {
		for what, n := range step {
			sums[what] += n
		}
	}
	line := func(name string, of func(step Count) int) {
		fmt.Fprintf(&b, "| %s |", name)
		all := 0
		for _, step := range steps {
			n := of(step)
			all += n
			fmt.Fprintf(&b, " %s |", strings.TrimPrefix(fmt.Sprint(n), "0"))
		}
		fmt.Fprintf(&b, " %d |\n", all)
	}
	for _, what := range slices.Sorted(maps.Keys(sums)) {
		line(what, func(step Count) int { return step[what] })
	}
	line("**statements**", func(step Count) (n int) {
		for what, k := range step {
			if what[0] >= 'a' {
				n += k
			}
		}
		return n
	})
	return b.String() + "\n"
}

// send posts a mail and returns the ID of its batch.
func (p *product) send(to string) models.ID {
	r := httptest.NewRequestWithContext(p.Context(), http.MethodPost, "/v1/batches", strings.NewReader(fmt.Sprintf(
		`{"from":"shop@example.com","subject":"Your order","text":"Thank you.","to":[{"email":%q}]}`, to)))
	r.Header.Set("Authorization", "Bearer "+p.key)
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	p.api.ServeHTTP(w, r)
	require.Equal(p, http.StatusAccepted, w.Code, w.Body.String())
	var out struct{ ID models.ID }
	require.NoError(p, json.Unmarshal(w.Body.Bytes(), &out))
	return out.ID
}

// report posts an event of a batch of one.
func (p *product) report(batch models.ID, kind models.EventKind) {
	body, err := json.Marshal([]models.ParsedEvent{{Log: batch.Log(1), Event: models.Event{ID: string(kind), Attempt: 1,
		Kind: kind, At: time.Now()}}})
	require.NoError(p, err)
	r := httptest.NewRequestWithContext(p.Context(), http.MethodPost, "/webhooks/sg", strings.NewReader(string(body)))
	w := httptest.NewRecorder()
	p.hooks.ServeHTTP(w, r)
	require.Equal(p, http.StatusOK, w.Code, w.Body.String())
}
