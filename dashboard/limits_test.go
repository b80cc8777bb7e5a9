package dashboard

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/dashboard/web"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
)

// TestPagesAreLimited: the pages of a user are limited as requests to the API are, and counted apart from them.
func TestPagesAreLimited(t *testing.T) {
	f := newRigOf(t, service.Config{Quotas: models.Limits{models.RequestsAtOnce: 1}}, nil)
	ann := models.User{ID: models.NewUserID(), Name: "ann", Created: time.Now().UTC()}
	require.NoError(t, f.store.CreateUser(t.Context(), ann))
	b := f.byLink(ann)
	who := service.Caller{User: ann.ID}
	end, _, err := f.service.Limits.Admit(t.Context(), who)
	require.NoError(t, err)
	defer end()
	require.Equal(t, http.StatusOK, b.get("/settings").StatusCode, "a request to the API does not count")
	end, err = f.service.Limits.AdmitPage(t.Context(), who)
	require.NoError(t, err)
	a := b.get("/settings")
	require.Equal(t, http.StatusTooManyRequests, a.StatusCode)
	require.NotEmpty(t, a.Header.Get("Retry-After"))
	require.Contains(t, a.text, "Your limit requests_at_once of 1 is reached.")
	end()
	require.Equal(t, http.StatusOK, b.get("/settings").StatusCode)
}

// TestOnlyFeedsAreFree: a page counts while it is made, for any kind of answer that the browser accepts.
func TestOnlyFeedsAreFree(t *testing.T) {
	t.Parallel()
	f := newRigOf(t, service.Config{Quotas: models.Limits{models.RequestsAtOnce: 1}}, nil)
	routes, free := map[string]web.Handler{}, false
	for _, route := range []string{"GET /batches", "POST /compose", "GET /live/overview"} {
		routes[route] = func(_ http.ResponseWriter, r *http.Request, v *web.Visitor) error {
			end, err := f.service.Limits.AdmitPage(r.Context(), v.Caller())
			if free = err == nil; free {
				end()
			}
			return err
		}
	}
	frame, err := web.New(web.Config{Store: f.store, People: f.service.People, Limits: f.service.Limits,
		Log:      slog.New(slog.DiscardHandler),
		Accounts: f.board.accounts, Public: &url.URL{Scheme: "http", Host: "localhost"}, Providers: web.NewProviders(nil)})
	require.NoError(t, err)
	defer frame.Close()
	pages := frame.Serve(web.Routes{Users: routes})
	session := httptest.NewRecorder()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody)
	require.NoError(t, frame.BeginSession(session, r, web.Session{User: "ann", Began: time.Now()}))
	for route, want := range map[string]bool{"GET /batches": false, "POST /compose": false, "GET /live/overview": true} {
		method, path, _ := strings.Cut(route, " ")
		r := httptest.NewRequestWithContext(t.Context(), method, path, http.NoBody)
		r.Header.Set("Accept", "text/event-stream")
		r.Header.Set("Sec-Fetch-Site", "same-origin")
		r.AddCookie(session.Result().Cookies()[0]) //nolint:bodyclose // a recorder's
		free = !want
		pages.ServeHTTP(httptest.NewRecorder(), r)
		require.Equal(t, want, free, route)
	}
}

// TestFormsOfStrangersAreBounded: forms that come without a session have little memory while they are read, and those
// of one address keep out no other.
func TestFormsOfStrangersAreBounded(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	form := url.Values{"subject": {"Hello"}}
	require.Contains(t, f.browser().post("/compose", form).text, `value="Hello"`)
	for range 4 { // slow forms of another address
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/compose", nil)
		r.RemoteAddr = "192.0.2.1:1"
		slow, sent := io.Pipe()
		r.Body = slow
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		done := make(chan struct{})
		go func() {
			defer close(done)
			f.board.ServeHTTP(httptest.NewRecorder(), r)
		}()
		_, err := io.WriteString(sent, "subject=")
		require.NoError(t, err)
		t.Cleanup(func() {
			_ = sent.Close()
			<-done
		})
	}
	require.Contains(t, f.browser().post("/compose", form).text, `value="Hello"`)
}
