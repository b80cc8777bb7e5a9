//go:build full

package api

import (
	"io"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models/settings"
	"github.com/safedelivr/safedelivr/service"
)

// processorTime returns the processor time that this process has used.
func processorTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u) // it never fails for the own process
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// cost returns the processor time that f takes if nothing disturbs it.
func cost(f func()) time.Duration {
	best := time.Hour
	for range 3 {
		start := processorTime()
		f()
		best = min(best, processorTime()-start)
	}
	return best
}

// TestCostIsLinear: four times the request takes about four times as long to check, not
// sixteen. It does not run in parallel, so that other tests do not disturb it.
func TestCostIsLinear(t *testing.T) {
	open := decoders(t, service.Config{Limits: settings.Limits{Recipients: 1_000_000, Content: 100 << 20},
		SpoolDir: t.TempDir()}, "sg")
	x := strings.Repeat
	for name, c := range map[string]struct {
		n    int
		body func(n int) string
	}{
		"unknown members":       {8_000, func(n int) string { return "{" + each(n, `"m%d":1`) + "}" }},
		"long names":            {10, func(n int) string { return "{" + each(n, `"m%d`+x("m", 60_000)+`":1`) + "}" }},
		"providers":             {8_000, func(n int) string { return `{"providers":[` + each(n, `"p%d"`) + "]}" }},
		"one provider":          {8_000, func(n int) string { return `{"providers":[` + x(`"sg",`, n) + `"sg"` + "]}" }},
		"placeholders":          {8_000, func(n int) string { return `{"text":"` + each(n, `{{a%d}}`) + `"}` }},
		"malformed":             {20_000, func(n int) string { return `{"text":"` + x("{{a", n) + `"}` }},
		"braces":                {100_000, func(n int) string { return `{"text":"` + x("{", n) + `"}` }},
		"escapes":               {20_000, func(n int) string { return `{"text":"` + x(`\u00e9`, n) + `"}` }},
		"nested":                {2_000, func(n int) string { return `{"x":` + x("[", n) + x("]", n) + "}" }},
		"to nested":             {2_000, func(n int) string { return `{"to":` + x(`{"":`, n) + "1" + x("}", n) + "}" }},
		"address":               {8_000, func(n int) string { return `{"to":["a@` + x("ü", n) + `.de"]}` }},
		"address with comments": {8_000, func(n int) string { return `{"to":["` + x("(", n) + `a@b.de"]}` }},
		"members of recipients": {8_000, func(n int) string { return `{"to":[{` + each(n, `"m%d":1`) + `}]}` }},
		"variables":             {8_000, func(n int) string { return `{"to":[{"vars":{` + each(n, `"m%d":1`) + `}}]}` }},
		"recipients × placeholders": {5_000, func(n int) string {
			return `{"text":"` + each(100, "{{v%d}}") + `","to":[{"email":"a@b.de","vars":{` + each(100, `"v%d":1`) + `}},` +
				each(n, `"r%d@b.de"`) + `]}`
		}},
		"sets of variables": {500, func(n int) string {
			return `{"text":"` + each(100, "{{v%d}}") + `","to":[` + each(n, `{"email":"r%d@b.de","vars":{"x%[1]d":1}}`) + `]}`
		}},
	} {
		t.Run(name, func(t *testing.T) {
			requireLinear(t, c.n, checking(c.body, open, (*decoder).readJSON))
		})
	}
}

// checking returns the work of reading and checking a body of size n.
func checking(
	body func(n int) string, open func() *decoder, read func(*decoder, io.Reader) error,
) func(n int) (work func()) {
	return func(n int) func() {
		body := body(n)
		return func() {
			d := open()
			defer d.Close()
			if read(d, strings.NewReader(body)) == nil {
				_, _ = d.Check()
			}
		}
	}
}

// requireLinear requires that the work of a size four times as large costs less than ten times as much.
func requireLinear(t *testing.T, n int, prepare func(n int) (work func())) {
	t.Helper()
	small, large := prepare(n), prepare(4*n)
	var once, four time.Duration
	for range 10 { // other processes may disturb some of them
		once, four = cost(small), cost(large)
		if four < 10*once+5*time.Millisecond {
			return
		}
	}
	require.Less(t, four, 10*once+5*time.Millisecond)
}

// TestCostOfForms: as TestCostIsLinear, for forms.
func TestCostOfForms(t *testing.T) {
	open := decoders(t, service.Config{Limits: settings.Limits{Recipients: 1_000_000, Content: 100 << 20},
		SpoolDir: t.TempDir()}, "sg")
	x := strings.Repeat
	for name, c := range map[string]struct {
		n    int
		body func(n int) string
	}{
		"unknown fields": {8_000, func(n int) string { return strings.ReplaceAll(each(n, "m%d=1"), ",", "&") }},
		"providers":      {8_000, func(n int) string { return "providers=" + each(n, "p%d") }},
		"quotes":         {20_000, func(n int) string { return "to=" + x(`"a",`, n) }},
		"comments":       {20_000, func(n int) string { return "to=" + x("(", n) }},
		"addresses":      {8_000, func(n int) string { return "to=" + each(n, "r%d@b.de") }},
		"percent":        {20_000, func(n int) string { return "text=" + x("%7B", n) }},
	} {
		t.Run(name, func(t *testing.T) {
			requireLinear(t, c.n, checking(c.body, open, (*decoder).readForm))
		})
	}
}

// held returns the bytes that are reachable.
func held() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc) //nolint:gosec // less than 2^63
}

// TestMistakesHoldNoMemory: what is kept of a request does not grow with the number and the
// size of the mistakes in it. It does not run in parallel: it measures the whole heap.
func TestMistakesHoldNoMemory(t *testing.T) {
	open := decoders(t, service.Config{Limits: settings.Limits{Recipients: 1_000_000}, SpoolDir: t.TempDir()}, "sg")
	name := strings.Repeat("m", 60_000)
	for what, body := range map[string]string{
		"unknown members": "{" + each(300_000, `"m%d":1`) + "}",
		"long names":      "{" + each(200, `"%d`+name+`":1`) + "}",
		"providers":       `{"providers":[` + each(80_000, `"p%d"`) + "]}",
		"variables":       `{"to":[` + each(200, `{"email":"r%d@b.de","vars":{"`+name+`":1}}`) + "]}",
	} {
		t.Run(what, func(t *testing.T) {
			d := open()
			defer d.Close()
			before := held()
			require.NoError(t, d.readJSON(strings.NewReader(body)))
			_, err := d.Check()
			require.Error(t, err)
			require.Less(t, held()-before, int64(1<<20))
			require.Positive(t, d.Found())
			runtime.KeepAlive(d)
		})
	}
}
