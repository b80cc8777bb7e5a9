package dashboard

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"testing"
	"testing/synctest"
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

// missingBody is the body of a request that never comes, and the answer to it. Both share a deadline.
type missingBody struct {
	*httptest.ResponseRecorder
	deadline time.Time
	waited   bool
}

// SetReadDeadline is for http.ResponseController.
func (m *missingBody) SetReadDeadline(t time.Time) error {
	m.deadline = t
	return nil
}

// Read implements io.Reader.
func (m *missingBody) Read([]byte) (int, error) {
	m.waited = true
	time.Sleep(time.Until(m.deadline))
	return 0, os.ErrDeadlineExceeded
}

// Close implements io.Closer.
func (*missingBody) Close() error { return nil }

// TestFormsOfStrangersAreNotAwaited: the answer to a form without a session does not wait for a body that never comes.
// One that could be kept has two seconds to begin.
func TestFormsOfStrangersAreNotAwaited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newBubbleRig(t, nil)
		batch, forms := models.ID{1}, 0
		for _, room := range f.board.rooms {
			for _, routes := range []map[string]web.Handler{room.Open, room.Users, room.Operators} {
				for pattern := range routes {
					method, path, _ := strings.Cut(pattern, " ")
					if method != http.MethodPost {
						continue
					}
					forms++
					for _, kind := range []string{
						"", "application/json", "application/x-www-form-urlencoded", "multipart/form-data; boundary=b",
					} {
						body := &missingBody{ResponseRecorder: httptest.NewRecorder(), deadline: time.Now().Add(time.Hour)}
						r := httptest.NewRequestWithContext(t.Context(), method, fillPattern(path, batch), body)
						r.Header.Set("Content-Type", kind)
						began := time.Now()
						f.board.ServeHTTP(body, r)
						require.LessOrEqual(t, time.Since(began), 2*time.Second, "%s %s", pattern, kind)
						require.Equal(t, room.Users[pattern] != nil || room.Operators[pattern] != nil,
							body.Code == http.StatusUnauthorized, "%s %s", pattern, kind)
						if body.waited {
							require.Contains(t, kind, "form", pattern)
							require.NotContains(t, body.Body.String(), "Nothing that you entered is lost", pattern)
						}
					}
				}
			}
		}
		require.Greater(t, forms, 40)
	})
}
