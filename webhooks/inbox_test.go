package webhooks

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/internal/priority"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/announce"
)

// TestStoreUnavailable checks that a provider is asked to retry while the store is
// unavailable, and that the retried post is stored.
func TestStoreUnavailable(t *testing.T) {
	t.Parallel()
	for name, err := range map[string]error{
		"unavailable": models.ErrUnavailable,
		"unknown":     models.ErrOutcomeUnknown,
		"closed":      models.ErrClosed,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, Provider{"sg", accepting("")})
			var away atomic.Bool
			away.Store(true)
			f.inbox.before = func() error {
				if away.Load() {
					return err
				}
				return nil
			}
			status, body := f.post(t, "sg", nil, strings.NewReader("[1]"))
			require.Equal(t, http.StatusServiceUnavailable, status)
			require.JSONEq(t, `{"code": "store_unavailable"}`, body)
			require.Empty(t, f.inbox.stored(t))
			away.Store(false)
			status, _ = f.post(t, "sg", nil, strings.NewReader("[1]"))
			require.Equal(t, http.StatusOK, status)
			require.Len(t, f.inbox.stored(t), 1)
			_, refused := f.server.Counts()
			require.Equal(t, map[string]int64{"store_unavailable": 1}, refused)
		})
	}
}

// TestProviderDisconnects checks that a complete post is stored even if its client
// no longer waits for the answer.
func TestProviderDisconnects(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Provider{"sg", accepting("")})
	ctx, leave := context.WithCancel(t.Context())
	f.inbox.before = func() error { leave(); return nil }
	req := httptest.NewRequestWithContext(ctx, http.MethodPost, "/webhooks/sg", strings.NewReader("[1]"))
	f.server.ServeHTTP(httptest.NewRecorder(), req)
	require.Error(t, ctx.Err())
	require.Len(t, f.inbox.stored(t), 1)
}

// TestConcurrentPosts checks that each post that was answered 200 is stored and
// announced.
func TestConcurrentPosts(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Provider{"sg", accepting("")}, Provider{"mg", accepting("")})
	const n = 200
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			provider := []string{"sg", "mg"}[i%2]
			rec := httptest.NewRecorder()
			f.server.ServeHTTP(
				rec,
				httptest.NewRequestWithContext(
					t.Context(),
					http.MethodPost,
					"/webhooks/"+provider,
					strings.NewReader(strconv.Itoa(i)),
				),
			)
			if rec.Code != http.StatusOK {
				t.Errorf("post %d: %d", i, rec.Code)
			}
		})
	}
	wg.Wait()
	seen := map[string]bool{}
	stored := f.inbox.stored(t)
	ids := map[models.ID]bool{}
	for _, in := range stored {
		ids[in.ID] = true
		for _, p := range in.Posts {
			seen[in.Provider+string(p.Body)] = true
		}
	}
	require.Len(t, seen, n)
	for _, m := range f.announced(t, len(stored)) {
		require.True(t, ids[m.ID], "announced once, and stored")
		delete(ids, m.ID)
	}
	require.Empty(t, ids)
}

// hangingBroker blocks each Publish until its context ends.
type hangingBroker struct{ asked atomic.Int32 }

func (h *hangingBroker) Publish(ctx context.Context, _ ...models.Message) error {
	h.asked.Add(1)
	<-ctx.Done()
	return models.ErrUnavailable
}

// nullInbox discards all entries.
type nullInbox struct{}

func (nullInbox) PutInbox(context.Context, models.Inbox) error { return nil }

// TestBrokerHangs checks that posts are answered at once even if more announcements
// wait than the queue holds, and that Close returns soon.
func TestBrokerHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := &hangingBroker{}
		s := New(testDoor, nullInbox{}, h, []Provider{{"sg", accepting("")}}, priority.New(), nil)
		began := time.Now()
		for range announce.QueueSize + 1000 {
			rec := httptest.NewRecorder()
			s.ServeHTTP(
				rec,
				httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/webhooks/sg", strings.NewReader("[]")),
			)
			require.Equal(t, http.StatusOK, rec.Code)
		}
		require.Zero(t, time.Since(began), "no post waited")
		s.Close()
		s.Close()
		require.LessOrEqual(t, time.Since(began), announce.BrokerTime)
		require.Positive(t, h.asked.Load())
	})
}
