package client_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
)

// feedServer is a server with a feed. A cursor is the number of the next update.
type feedServer struct {
	updates []string // logs
	fail    int      // number of the request that fails, from 1
	calls   int
}

func (s *feedServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s.calls++; s.calls == s.fail {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	from, _ := strconv.Atoi(r.URL.Query().Get("cursor"))
	limit, _ := strconv.Atoi(r.URL.Query().Get("limit"))
	to := min(from+limit, len(s.updates))
	page := client.UpdatePage{
		Updates:    []client.Update{},
		UpdatesEnd: client.UpdatesEnd{Next: strconv.Itoa(to), More: to < len(s.updates), Complete: time.Unix(int64(to), 0)},
	}
	for n := from; n < to; n++ {
		page.Updates = append(page.Updates, client.Update{Log: s.updates[n], Number: 1})
	}
	_ = json.NewEncoder(w).Encode(page)
}

// TestUpdatesGoOn: an iterator ends at the end of the feed. It goes on behind the last update that it returned: after
// new ones came, after an error, and after its loop was left.
func TestUpdatesGoOn(t *testing.T) {
	t.Parallel()
	feed := &feedServer{updates: []string{"a", "b", "c", "d", "e"}, fail: 2}
	server := httptest.NewServer(feed)
	defer server.Close()
	u := client.New(server.URL, "key").Updates(client.UpdateOptions{PageSize: 2})
	read := func(most int) (logs []string, failed error) {
		for v, err := range u.All(t.Context()) {
			if err != nil {
				return logs, err
			}
			if logs = append(logs, v.Log); len(logs) == most {
				break
			}
		}
		return logs, nil
	}
	logs, err := read(10)
	require.Error(t, err)
	require.Equal(t, []string{"a", "b"}, logs)
	require.Equal(t, "2", u.Cursor())
	logs, err = read(1)
	require.NoError(t, err)
	require.Equal(t, []string{"c"}, logs)
	require.Equal(t, "2", u.Cursor(), "a reader that begins here gets c again, and nothing is missing")
	logs, err = read(10)
	require.NoError(t, err)
	require.Equal(t, []string{"d", "e"}, logs)
	require.Equal(t, "5", u.Cursor())
	feed.updates = append(feed.updates, "f")
	logs, err = read(10)
	require.NoError(t, err)
	require.Equal(t, []string{"f"}, logs)
	require.True(t, time.Unix(6, 0).Equal(u.Complete()))
}

// TestUpdatesFollow: an iterator that waits ends when the time range is complete, or with its context.
func TestUpdatesFollow(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(&feedServer{updates: []string{"a", "b", "c"}})
	defer server.Close()
	c := client.New(server.URL, "key")
	n := 0
	for _, err := range c.Updates(client.UpdateOptions{Wait: time.Second, To: time.Unix(3, 0)}).All(t.Context()) {
		require.NoError(t, err)
		n++
	}
	require.Equal(t, 3, n)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for _, err := range c.Updates(client.UpdateOptions{Wait: time.Second}).All(ctx) {
		if err != nil {
			require.ErrorIs(t, err, context.Canceled)
			break
		}
		if n++; n == 6 {
			cancel()
		}
	}
	require.Equal(t, 6, n)
}

// TestCountUpdates adds the counts of all parts of the feed.
func TestCountUpdates(t *testing.T) {
	t.Parallel()
	pages := map[string]string{
		"":  `{"counts": {"log.failed": 2}, "next_cursor": "a", "more": true}`,
		"a": `{"counts": {"log.failed": 3, "log.queued": 1}, "next_cursor": "b", "more": false}`,
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write([]byte(pages[r.URL.Query().Get("cursor")]))
	}))
	defer server.Close()
	n, err := client.New(server.URL, "key").CountUpdates(t.Context(), client.UpdateOptions{})
	require.NoError(t, err)
	require.Equal(t, map[string]int64{"log.failed": 5, "log.queued": 1}, n.Counts)
	require.Equal(t, client.UpdatesEnd{Next: "b"}, n.UpdatesEnd)
}
