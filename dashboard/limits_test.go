package dashboard

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

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
	ann := models.User{ID: models.NewUserID(), Name: "ann", Created: time.Now().UTC()}
	for route, free := range map[string]bool{"GET /batches": false, "POST /compose": false, "GET /live/overview": true} {
		method, path, _ := strings.Cut(route, " ")
		r := httptest.NewRequestWithContext(t.Context(), method, path, nil)
		r.Pattern = route
		r.Header.Set("Accept", "text/event-stream")
		v := &visitor{session: session{User: ann.ID}}
		err := f.board.limited(httptest.NewRecorder(), r, v, func(http.ResponseWriter, *http.Request, *visitor) error {
			end, err := f.service.Limits.AdmitPage(t.Context(), v.caller())
			if err == nil {
				end()
			}
			return err
		})
		require.Equal(t, free, err == nil, route)
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

	require.True(t, f.board.keeping.take(netip.MustParseAddr("2001:db8::1"), maxKept))
	require.False(t, f.board.keeping.take(netip.MustParseAddr("2001:db8::2"), 1), "the same client")
	for _, address := range []string{"192.0.2.2", "192.0.2.3", "192.0.2.4"} {
		require.True(t, f.board.keeping.take(netip.MustParseAddr(address), maxKept-16))
	}
	a := f.browser().post("/compose", url.Values{"subject": {"Hello, everyone"}})
	require.Equal(t, http.StatusUnauthorized, a.StatusCode)
	require.NotContains(t, a.text, `value="Hello`)
}
