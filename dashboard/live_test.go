package dashboard

import (
	"bufio"
	"context"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/dashboard/login"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
)

// events are those of a live page.
type events struct {
	testing.TB
	*bufio.Scanner
	leave func()
}

// live opens the events of a page until leave is called, or the test ends.
func (b *browser) live(path string) *events {
	b.Helper()
	ctx, leave := context.WithTimeout(b.Context(), 5*time.Minute)
	b.Cleanup(leave)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, b.url+path, http.NoBody)
	require.NoError(b, err)
	resp, err := b.client.Do(r)
	require.NoError(b, err)
	b.Cleanup(func() { _ = resp.Body.Close() })
	require.Equal(b, "text/event-stream", resp.Header.Get("Content-Type"))
	return &events{b.TB, bufio.NewScanner(resp.Body), leave}
}

// until reads up to an event that has a text.
func (e *events) until(want string) {
	e.Helper()
	for e.Scan() {
		if strings.Contains(e.Text(), want) {
			return
		}
	}
	require.NoError(e, e.Err())
	e.Fatalf("the stream ended before %q", want)
}

// TestLive stops a batch and expects the new state in its stream of events.
func TestLive(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newBubbleRig(t, nil)
		b := f.byLink(login.LocalUser())
		id := f.batchOf("local", nil, service.Recipient{Email: "a@example.com"})
		live := b.live("/live/batches/" + id.String())
		live.until("is-queued")
		_, _, err := f.service.Commands.Batch(
			t.Context(),
			service.Caller{User: "local"},
			models.StopBatch,
			id.String(),
			"",
			service.Repeat{},
		)
		require.NoError(t, err)
		live.until("Stopped")
		live.leave()
		synctest.Wait()
		before := f.store.batches.Load()
		require.Positive(t, before)
		time.Sleep(time.Minute)
		require.Equal(t, before, f.store.batches.Load(), "a feed without watchers still runs")
	})
}

// TestTooManyLivePages: a live page too many is answered with 503, and the page itself can still be read.
func TestTooManyLivePages(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.byLink(login.LocalUser())
	for range 50 {
		b.live("/live/batches")
	}
	a := b.get("/live/batches")
	require.Equal(t, http.StatusServiceUnavailable, a.StatusCode)
	require.Equal(t, "60", a.Header.Get("Retry-After"))
	require.Contains(t, a.text, "You have 50 pages open that update by themselves.")
	require.Equal(t, http.StatusOK, b.get("/batches").StatusCode)
}
