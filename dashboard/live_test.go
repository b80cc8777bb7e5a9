package dashboard

import (
	"bufio"
	"context"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
)

// TestLive stops a batch and expects the new state in its stream of events.
func TestLive(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.byLink(LocalUser())
	id := f.batchOf("local", nil, service.Recipient{Email: "a@example.com"})
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, f.url+"/live/batches/"+id.String(), http.NoBody)
	require.NoError(t, err)
	resp, err := b.client.Do(r)
	require.NoError(t, err)
	defer resp.Body.Close()
	require.Equal(t, "text/event-stream", resp.Header.Get("Content-Type"))
	lines := bufio.NewScanner(resp.Body)
	until := func(want string) {
		t.Helper()
		for lines.Scan() {
			if strings.Contains(lines.Text(), want) {
				return
			}
		}
		require.NoError(t, lines.Err())
		t.Fatalf("the stream ended before %q", want)
	}
	until("is-queued")
	_, _, err = f.service.ControlBatch(
		t.Context(),
		service.Caller{User: "local"},
		models.StopBatch,
		id.String(),
		"",
		service.Repeat{},
	)
	require.NoError(t, err)
	until("Stopped")
	cancel()
	require.Eventually(t, func() bool {
		f.board.live.mu.Lock()
		defer f.board.live.mu.Unlock()
		return len(f.board.live.feeds) == 0
	}, time.Minute, 10*time.Millisecond, "a feed without watchers still runs")
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

// A user may have a bounded number of live pages, which takes none from others.
func TestLivePagesAreBounded(t *testing.T) {
	t.Parallel()
	h := newHub(slog.New(slog.DiscardHandler))
	defer h.close()
	var leave []func()
	for range livePages {
		leave = append(leave, h.enter("ann"))
	}
	require.Nil(t, h.enter("ann"))
	other := h.enter("bob")
	require.NotNil(t, other)
	leave[0]()
	again := h.enter("ann")
	require.NotNil(t, again)
	for _, l := range append(leave[1:], other, again) {
		l()
	}
	require.Empty(t, h.pages)
}
