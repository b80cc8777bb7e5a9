package dashboard

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

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
		b := f.byLink(LocalUser())
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
		f.board.live.mu.Lock()
		defer f.board.live.mu.Unlock()
		require.Empty(t, f.board.live.feeds, "a feed without watchers still runs")
	})
}

// TestSharedFeeds checks that pages with the same content share one reader.
func TestSharedFeeds(t *testing.T) {
	t.Parallel()
	h := newHub(nil)
	defer h.close()
	reads := 0
	open := func() source {
		reads++
		return source{
			read:   func(context.Context) (any, error) { return 1, nil },
			render: func(any) (parts, error) { return parts{"n": []byte("1")}, nil },
		}
	}
	var leaves []func()
	for range 200 {
		_, leave := h.join("key", open)
		leaves = append(leaves, leave)
	}
	require.Equal(t, 1, reads)
	for _, leave := range leaves {
		leave()
	}
	require.Empty(t, h.feeds)
}

// A user may have a bounded number of live pages, which takes none from others, and all users together.
func TestLivePagesAreBounded(t *testing.T) {
	t.Parallel()
	h := newHub(slog.New(slog.DiscardHandler))
	defer h.close()
	var leave []func()
	enter := func(user string) error {
		l, err := h.enter(user)
		if err == nil {
			leave = append(leave, l)
		}
		return err
	}
	for range livePages {
		require.NoError(t, enter("ann"))
	}
	require.ErrorContains(t, enter("ann"), "You have 50 pages open")
	require.NoError(t, enter("bob"))
	leave[0]()
	leave = leave[1:]
	require.NoError(t, enter("ann"))
	for n := range allLivePages - livePages - 1 {
		require.NoError(t, enter(fmt.Sprint("user ", n)))
	}
	require.ErrorContains(t, enter("eve"), "1000 pages that update by themselves are open")
	for _, l := range leave {
		l()
	}
	require.Empty(t, h.pages)
	require.Zero(t, h.open)
}

// TestTooManyLivePages: a live page too many is answered with 503, and the page itself can still be read.
func TestTooManyLivePages(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.byLink(LocalUser())
	for range livePages {
		leave, err := f.board.live.enter("local")
		require.NoError(t, err)
		defer leave()
	}
	a := b.get("/live/batches")
	require.Equal(t, http.StatusServiceUnavailable, a.StatusCode)
	require.Equal(t, "60", a.Header.Get("Retry-After"))
	require.Contains(t, a.text, "You have 50 pages open that update by themselves.")
	require.Equal(t, http.StatusOK, b.get("/batches").StatusCode)
}
