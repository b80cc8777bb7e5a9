package dashboard

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/oauth2"
)

func TestLoginThroughOAuth2(t *testing.T) {
	t.Parallel()
	app := gitHubApp{ClientID: "app", ClientSecret: "secret", RedirectURL: "http://127.0.0.1:1/back"}
	gh := newGitHub(app, gitHubUser{ID: 7, Login: "ann", Orgs: []string{"Acme"}})
	server := httptest.NewServer(gh)
	defer server.Close()
	conf := oauth2.Config{
		ClientID:     app.ClientID,
		ClientSecret: app.ClientSecret,
		RedirectURL:  app.RedirectURL,
		Scopes:       []string{"read:org"},
		Endpoint: oauth2.Endpoint{
			AuthURL:  server.URL + "/login/oauth/authorize",
			TokenURL: server.URL + "/login/oauth/access_token",
		},
	}
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	verifier := oauth2.GenerateVerifier()
	code := func(login string) string {
		u, err := url.Parse(conf.AuthCodeURL("s", oauth2.S256ChallengeOption(verifier)))
		require.NoError(t, err)
		form := u.Query()
		form.Set("login", login)
		resp, err := client.PostForm(server.URL+"/login/oauth/authorize", form)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, http.StatusFound, resp.StatusCode)
		back, err := resp.Location()
		require.NoError(t, err)
		require.Equal(t, "s", back.Query().Get("state"))
		require.True(t, strings.HasPrefix(back.String(), app.RedirectURL+"?"))
		return back.Query().Get("code")
	}

	_, err := conf.Exchange(t.Context(), code("ann"), oauth2.VerifierOption("another"))
	require.ErrorContains(t, err, "bad_verification_code", "PKCE is checked")
	c := code("ann")
	token, err := conf.Exchange(t.Context(), c, oauth2.VerifierOption(verifier))
	require.NoError(t, err)
	_, err = conf.Exchange(t.Context(), c, oauth2.VerifierOption(verifier))
	require.ErrorContains(t, err, "bad_verification_code", "a code is good once")

	gh.Rename(7, "anna")
	get := func(path string) (int, map[string]any) {
		resp, err := conf.Client(t.Context(), token).Get(server.URL + path)
		require.NoError(t, err)
		defer resp.Body.Close()
		var v map[string]any
		require.NoError(t, json.NewDecoder(resp.Body).Decode(&v))
		return resp.StatusCode, v
	}
	status, user := get("/api/v3/user")
	require.Equal(t, http.StatusOK, status)
	require.Equal(t, "anna", user["login"])
	status, member := get("/api/v3/user/memberships/orgs/acme")
	require.Equal(t, http.StatusOK, status)
	require.Equal(t, "active", member["state"])
	status, _ = get("/api/v3/user/memberships/orgs/others")
	require.Equal(t, http.StatusNotFound, status)
}
