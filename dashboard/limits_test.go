package dashboard

import (
	"net/http"
	"net/url"
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
	end, _, err := f.service.Admit(t.Context(), who)
	require.NoError(t, err)
	defer end()
	require.Equal(t, http.StatusOK, b.get("/settings").StatusCode, "a request to the API does not count")
	end, err = f.service.AdmitPage(t.Context(), who)
	require.NoError(t, err)
	a := b.get("/settings")
	require.Equal(t, http.StatusTooManyRequests, a.StatusCode)
	require.NotEmpty(t, a.Header.Get("Retry-After"))
	require.Contains(t, a.text, "Your limit requests_at_once of 1 is reached.")
	end()
	require.Equal(t, http.StatusOK, b.get("/settings").StatusCode)
}

// TestFormsOfStrangersAreBounded: few forms that come without a session are read at the same time.
func TestFormsOfStrangersAreBounded(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	form := url.Values{"subject": {"Hello"}}
	require.Contains(t, f.browser().post("/compose", form).text, `value="Hello"`)
	for range keptAtOnce {
		f.board.keeping <- struct{}{}
	}
	a := f.browser().post("/compose", form)
	require.Equal(t, http.StatusUnauthorized, a.StatusCode)
	require.NotContains(t, a.text, `value="Hello"`)
}
