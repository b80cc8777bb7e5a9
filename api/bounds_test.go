package api

import (
	"context"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models/settings"
	"github.com/safedelivr/safedelivr/service"
)

// TestNestingIsBounded: a value that is nested without end is refused.
func TestNestingIsBounded(t *testing.T) {
	t.Parallel()
	open := decoders(t, service.Config{Limits: settings.Limits{Recipients: 1000}})
	for _, head := range []string{`{"x":`, `{"to":[`, `{"to":{"a":`, `{"to":[{"vars":`} {
		d := open()
		e := &endless{text: "[[[["}
		p := failed(t, d.readJSON(io.MultiReader(strings.NewReader(head), io.LimitReader(e, 4<<20))))
		require.Equal(t, "bad_json", p.Code, head)
		require.Less(t, e.read, 1<<20)
		d.Close()
	}
}

// TestClientLeaves: reading ends soon after the client has left, although the body goes on.
func TestClientLeaves(t *testing.T) {
	t.Parallel()
	svc := service.New(service.Deps{Config: service.Config{Limits: settings.Limits{Recipients: 1_000_000},
		SpoolDir: t.TempDir()}})
	t.Cleanup(svc.Close)
	ctx, leave := context.WithCancel(t.Context())
	leave()
	d := newDecoder(svc.NewIntake(ctx, service.Caller{}))
	defer d.Close()
	require.ErrorIs(t, d.readJSON(strings.NewReader(`{"to":[`+numbered(0, 5000)+`]}`)), context.Canceled)
	require.Less(t, d.Count(), 500)
	d = newDecoder(svc.NewIntake(ctx, service.Caller{}))
	defer d.Close()
	require.ErrorIs(t, d.readForm(strings.NewReader("to="+each(5000, "r%d@b.de"))), context.Canceled)
	require.Less(t, d.Count(), 500)
}

// each returns n texts that format makes of the numbers from 0 on, separated by commas.
func each(n int, format string) string {
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		_, _ = fmt.Fprintf(&b, format, i)
	}
	return b.String()
}

// TestUnlistedMistakesAreCheap: the answer to a body with many unknown fields lists some of them. The decoder looks for
// the nearest field only for those, because that takes some 300 allocations.
func TestUnlistedMistakesAreCheap(t *testing.T) {
	const fields = 8_000
	open := decoders(t, service.Config{Limits: settings.Limits{Recipients: 10, Content: 1 << 20},
		SpoolDir: t.TempDir()}, "sg")
	body := "{" + each(fields, `"subjec%d":1`) + "}"
	work := func() {
		d := open()
		defer d.Close()
		require.NoError(t, d.readJSON(strings.NewReader(body)))
		require.Equal(t, fields, d.Found())
	}
	require.Less(t, testing.AllocsPerRun(1, work)/fields, 50.0)
}
