package api

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

// TestSpoolDir: only large requests need the directory, and leave nothing in it.
func TestSpoolDir(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	large := batchOf(t, `{"to": [`+numbered(0, 20_000)+`]}`)
	t.Run("missing", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, func(s *setup) { s.service.SpoolDir = filepath.Join(dir, "missing") })
		f.accepted(f.post(batchOf(t, `{}`)))
		r := f.post(large)
		require.Equal(t, http.StatusServiceUnavailable, r.Status)
		require.Equal(t, "spool_unavailable", r.problem(t).Code)
		require.NotEmpty(t, r.Header.Get("Retry-After"))
		require.Len(t, f.store.writes(), 1, "only the small request was stored")
	})
	t.Run("present", func(t *testing.T) {
		t.Parallel()
		used := t.TempDir()
		f := newFixture(t, func(s *setup) { s.service.SpoolDir = used })
		_, b, _ := f.accepted(f.post(large))
		require.Equal(t, 20, b.Chunks)
		require.Equal(
			t,
			http.StatusUnprocessableEntity,
			f.post(batchOf(t, `{"lane": "x", "to": [`+numbered(0, 20_000)+`]}`)).Status,
		)
		left, err := os.ReadDir(used)
		require.NoError(t, err)
		require.Empty(t, left)
	})
}

// TestDisconnect: if a client disconnects during a request, nothing is sent.
func TestDisconnect(t *testing.T) {
	t.Parallel()
	body := batchOf(t, `{"to": [`+numbered(0, 3000)+`]}`)
	for name, kind := range map[string][2]string{
		"JSON": {"application/json", body},
		"form": {
			"application/x-www-form-urlencoded",
			"from=a@b.de&subject=s&body=b&to=" + strings.Repeat("a@b.de,", 1000),
		},
		"multipart": {
			"multipart/form-data; boundary=X",
			"--X\r\nContent-Disposition: form-data; name=\"to\"\r\n\r\n" + strings.Repeat("a@b.de,", 1000) + "\r\n--X--\r\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			for _, part := range []int{1, len(kind[1]) / 2, len(kind[1]) - 1} {
				c, err := net.Dial("tcp", strings.TrimPrefix(f.url, "http://"))
				require.NoError(t, err)
				_, err = fmt.Fprintf(
					c,
					"POST /v1/batches HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n"+
						"Content-Type: %s\r\nContent-Length: %d\r\n\r\n%s",
					f.secret,
					kind[0],
					len(kind[1]),
					kind[1][:part],
				)
				require.NoError(t, err)
				require.NoError(t, c.(*net.TCPConn).CloseWrite())
				_, err = io.Copy(io.Discard, c) // until the server closes the connection
				require.NoError(t, err)
				require.NoError(t, c.Close())
			}
			require.Empty(t, f.store.writes())
		})
	}
	t.Run("during the writes", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		ctx, leave := context.WithCancel(t.Context())
		var once sync.Once
		seen := make(chan struct{})
		f.store.before("PutChunk", func() {
			once.Do(func() { leave(); <-seen })
		})
		done := make(chan struct{})
		ts := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			go func() { <-r.Context().Done(); close(seen) }()
			f.server.ServeHTTP(w, r)
			close(done)
		})
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		srv := &http.Server{Handler: ts, ReadHeaderTimeout: time.Minute}
		go func() { _ = srv.Serve(l) }()
		defer func() { _ = srv.Close() }()
		req, err := http.NewRequestWithContext(
			ctx,
			http.MethodPost,
			"http://"+l.Addr().String()+"/v1/batches",
			strings.NewReader(body),
		)
		require.NoError(t, err)
		req.Header.Set("Authorization", "Bearer "+f.secret)
		req.Header.Set("Content-Type", "application/json")
		_, err = f.client.Do(req)
		require.ErrorIs(t, err, context.Canceled)
		<-done
		require.NotContains(t, f.store.writes(), "PutBatch")
		require.Empty(t, read[batchList](f, "/v1/batches").Batches)
	})
}

// hangingBroker accepts no message and blocks until the caller gives up or the test ends.
type hangingBroker struct {
	models.Broker
	end chan struct{}
}

func (h hangingBroker) Publish(ctx context.Context, _ ...models.Message) error {
	select {
	case <-ctx.Done():
	case <-h.end:
	}
	return models.ErrUnavailable
}

// TestHangingBroker: batches are accepted although the broker hangs.
func TestHangingBroker(t *testing.T) {
	t.Parallel()
	end := make(chan struct{})
	f := newFixture(t, func(s *setup) {
		s.broker = func(b models.Broker) models.Broker { return hangingBroker{b, end} }
	})
	t.Cleanup(func() { close(end) })
	for range 12 {
		f.accepted(f.post(batchOf(t, `{}`)))
	}
}

// TestAnnouncements: each chunk is announced once, in its lane.
func TestAnnouncements(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	svc := f.serve(Config{})
	a, _, _ := f.accepted(f.post(batchOf(t, `{"to": [`+numbered(0, 2500)+`]}`)))
	u, _, _ := f.accepted(f.post(batchOf(t, `{}`)))
	svc.Close() // publishes the queued announcements
	svc.Close()
	got := map[models.Lane][]models.ID{}
	for lane, n := range map[models.Lane]int{models.Bulk: 3, models.Urgent: 1} {
		ctx, cancel := context.WithCancel(t.Context())
		var mu sync.Mutex
		handle := func(_ context.Context, m models.Message) models.Disposition {
			mu.Lock()
			defer mu.Unlock()
			if got[lane] = append(got[lane], m.ID); len(got[lane]) == n {
				cancel()
			}
			return models.Done()
		}
		require.NoError(t, f.broker.Subscribe(ctx, models.Queue{Kind: models.BatchMessage, Lane: lane}, 1, handle))
		cancel()
	}
	require.ElementsMatch(t, []models.ID{a.ID, a.ID.Chunk(1), a.ID.Chunk(2)}, got[models.Bulk])
	require.Equal(t, []models.ID{u.ID}, got[models.Urgent])
}
