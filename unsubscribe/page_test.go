package unsubscribe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/inproc/inproctest"
	"github.com/safedelivr/safedelivr/internal/known"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/store/memory"
)

// rig is the page over a store with a batch of two recipients.
type rig struct {
	testing.TB
	store  models.Store
	server *httptest.Server
	batch  models.Batch
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{TB: t, store: memory.Open(t)}
	svc := service.New(service.Deps{
		Store: r.store, Broker: inproctest.New(t, "sg"), Config: service.Config{Sole: true},
	})
	t.Cleanup(svc.Close)
	r.server = httptest.NewServer(New(svc, slog.New(slog.DiscardHandler)))
	t.Cleanup(r.server.Close)
	r.batch = models.Batch{
		ID:          models.NewBatchID(time.Now()),
		User:        "u",
		Content:     models.Content{From: models.Address{Email: "shop@example.com"}, Subject: "s", Text: "t"},
		Category:    "news",
		Lane:        models.Bulk,
		Recipients:  2,
		Chunks:      1,
		Unsubscribe: models.NewUnsubscription(r.server.URL + Path),
	}
	first := models.Chunk{
		ID:         r.batch.ID,
		Recipients: []models.Recipient{{Email: "Ann@example.com"}, {Email: "<b>@example.com"}},
	}
	require.NoError(t, r.store.PutBatch(t.Context(), r.batch, first))
	return r
}

// link returns the link of a recipient, as it is in the mail.
func (r *rig) link(n int, email string) string {
	return r.batch.ForCall(r.batch.ID.Log(n), models.Recipient{Email: email}).Vars[models.UnsubscribeURL]
}

// do makes a request and returns its status and page. A nil form is a GET.
func (r *rig) do(link string, form url.Values) (int, string) {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), time.Minute)
	defer cancel()
	method, body := http.MethodGet, io.Reader(nil)
	if form != nil {
		method, body = http.MethodPost, strings.NewReader(form.Encode())
	}
	req, err := http.NewRequestWithContext(ctx, method, link, body)
	require.NoError(r, err)
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	resp, err := http.DefaultClient.Do(req)
	require.NoError(r, err)
	defer func() { _ = resp.Body.Close() }()
	page, err := io.ReadAll(resp.Body)
	require.NoError(r, err)
	require.Contains(r, resp.Header.Get("Content-Security-Policy"), "default-src 'none'")
	require.Equal(r, "no-store", resp.Header.Get("Cache-Control"))
	return resp.StatusCode, string(page)
}

// entries returns the entries of an address in effect.
func (r *rig) entries(email string) (out []models.Suppression) {
	r.Helper()
	es, err := r.store.SuppressionsOf(r.Context(), "u", models.HashAddress(email))
	require.NoError(r, err)
	for _, e := range es {
		if e.InEffect(time.Now()) {
			out = append(out, e)
		}
	}
	return out
}

// TestPage: following the link changes nothing. The button unsubscribes from the category, and
// the next one undoes that.
func TestPage(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	link := r.link(1, "Ann@example.com")
	status, page := r.do(link, nil)
	require.Equal(t, 200, status)
	require.Contains(t, page, "Ann@example.com will get no more mail of the kind “news” from shop@example.com.")
	require.NotContains(t, page, "<script")
	require.Empty(t, r.entries("ann@example.com"))

	for range 2 {
		status, page = r.do(link, url.Values{})
		require.Equal(t, 200, status)
		require.Contains(t, page, "You are unsubscribed")
		es := r.entries("ann@example.com")
		require.Len(t, es, 1)
		require.Equal(t, models.SuppressionKey{
			Hash: models.HashAddress("ann@example.com"), Category: "news", Reason: models.Unsubscribe,
		}, es[0].SuppressionKey)
		require.Equal(t, models.FromLink, es[0].Origin)
		require.Equal(t, r.batch.ID.Log(1), es[0].Log)
	}
	_, page = r.do(link, nil)
	require.Contains(t, page, "You are unsubscribed")
	_, page = r.do(link, url.Values{"again": {"1"}})
	require.Contains(t, page, "You are subscribed again")
	require.Empty(t, r.entries("ann@example.com"))
	_, page = r.do(link, url.Values{"List-Unsubscribe": {"One-Click"}})
	require.Contains(t, page, "You are unsubscribed")
	require.Len(t, r.entries("ann@example.com"), 1)

	_, page = r.do(r.link(2, "<b>@example.com"), nil)
	require.Contains(t, page, "&lt;b&gt;@example.com")
}

// TestAfterRemoval: the link works when the addresses were removed.
func TestAfterRemoval(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	require.NoError(t, r.store.Redact(t.Context(), r.batch.ID))
	link := r.link(1, "ann@example.com")
	_, page := r.do(link, nil)
	require.Contains(t, page, "You will get no more mail of the kind “news”.")
	status, _ := r.do(link, url.Values{})
	require.Equal(t, 200, status)
	require.Len(t, r.entries("ann@example.com"), 1)
	added, err := r.store.Additions(t.Context(), "u", 0, 10)
	require.NoError(t, err)
	require.Equal(t, []uint64{models.MarkAddress("ann@example.com")}, added[0].Marks)
}

// TestForgedLinks: a link that was not made for a mail is refused, and changes nothing.
func TestForgedLinks(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	other := models.NewUnsubscription(r.server.URL + Path)
	good := r.link(1, "ann@example.com")
	for _, link := range []string{
		other.URL + other.Token(r.batch.ID.Log(1), "ann@example.com"),
		other.URL + other.Token(models.NewBatchID(time.Now()).Log(1), "ann@example.com"),
		good[:len(good)-1],
		good + "A",
		other.URL,
		other.URL + "x",
	} {
		for _, form := range []url.Values{nil, {}, {"again": {"1"}}} {
			status, page := r.do(link, form)
			require.Equal(t, 404, status, link)
			require.Contains(t, page, "This link is not valid")
		}
	}
	added, err := r.store.Additions(t.Context(), "u", 0, 10)
	require.NoError(t, err)
	require.Empty(t, added)
}

// TestStrangersAreLimited: the page answers 429 after too many requests.
func TestStrangersAreLimited(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	h, ok := r.server.Config.Handler.(*Handler)
	require.True(t, ok)
	h.clicks.SetBurst(1)
	h.clicks.SetLimit(0)
	h.clicks.Allow()
	status, page := r.do(r.link(1, "ann@example.com"), url.Values{})
	require.Equal(t, 429, status)
	require.Contains(t, page, "Try again in a few seconds")
	require.Empty(t, r.entries("ann@example.com"))
}

// TestMadeUpLinks: links that are made up do not keep out genuine requests with one click, whether they are well formed
// and of one address, or not.
func TestMadeUpLinks(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	h, ok := r.server.Config.Handler.(*Handler)
	require.True(t, ok)
	get := func(path, from string) int {
		rec := httptest.NewRecorder()
		req := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
		req.RemoteAddr = from + ":1"
		h.ServeHTTP(rec, req)
		return rec.Code
	}
	h.opens.SetLimit(0)
	for range 2 * burst {
		require.Equal(t, http.StatusNotFound, get(Path+"made-up", "192.0.2.1"))
	}
	genuine, err := url.Parse(r.link(1, "ann@example.com"))
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, get(genuine.Path, "192.0.2.1"), "they cost nothing")
	foreign := Path + strings.Repeat("A", len(strings.TrimPrefix(genuine.Path, Path)))
	refused := 0
	for i := range 2 * addressBurst {
		if get(foreign, fmt.Sprintf("[2001:db8::%x]", i)) == http.StatusTooManyRequests {
			refused++
		}
	}
	require.Positive(t, refused, "one client with many addresses is limited")
	require.Equal(t, http.StatusOK, get(genuine.Path, "192.0.2.3"), "and keeps out no other")
	for range 2 * burst {
		h.opens.Allow()
	}
	status, _ := r.do(r.link(1, "ann@example.com"), url.Values{})
	require.Equal(t, http.StatusOK, status, "clicks have a limit of their own")
}

// TestGenuineLinksAreKnown: a request with a link of ours is verified, and one with a made-up link is not.
func TestGenuineLinksAreKnown(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for link, want := range map[string]bool{
		r.link(1, "ann@example.com"): true,
		r.server.URL + Path + models.NewUnsubscription("").Token(r.batch.ID.Log(1), "ann@example.com"): false,
	} {
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			verified := false
			ctx := known.With(t.Context(), func() { verified = true })
			path := strings.TrimPrefix(link, r.server.URL)
			r.server.Config.Handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, method, path, nil))
			require.Equal(t, want, verified, "%s %s", method, link)
		}
	}
}

// brokenStore is a store that cannot be read.
type brokenStore struct{ models.Store }

func (brokenStore) Batch(context.Context, models.ID) (models.Batch, error) {
	return models.Batch{}, errors.New("broken")
}

// TestTroubleNamesItsTime: a page that asks to try again later says when to mail programs, too.
func TestTroubleNamesItsTime(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	svc := service.New(service.Deps{
		Store: brokenStore{r.store}, Broker: inproctest.New(t, "sg"), Config: service.Config{Sole: true},
	})
	t.Cleanup(svc.Close)
	h := New(svc, slog.New(slog.DiscardHandler))
	link := strings.TrimPrefix(r.link(1, "ann@example.com"), r.server.URL)
	for _, c := range []struct {
		status int
		text   string
		after  string
	}{{503, "Try again in a minute.", "60"}, {429, "Try again in a few seconds.", "10"}} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, link, http.NoBody))
		require.Equal(t, c.status, w.Code)
		require.Contains(t, w.Body.String(), c.text)
		require.Equal(t, c.after, w.Header().Get("Retry-After"))
		h.clicks.SetBurst(0) // no click is left, however long the test takes
	}
}
