package dashboard

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/dashboard/login"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
)

// TestSettingsPages: each part of Settings is a page with an address, and all pages lead to each other. /settings leads
// to the first. Only operators have a link to the people.
func TestSettingsPages(t *testing.T) {
	t.Parallel()
	f := newRig(t, &login.GitHub{Logins: []string{"Ann"}, Operators: []string{"bob"}}, ann, bob)
	user, boss := f.browser(), f.browser()
	user.byGitHub("Ann")
	boss.byGitHub("bob")
	require.Equal(t, "/settings/keys", user.get("/settings").Request.URL.Path)
	for name, has := range map[string]string{
		"keys": "Create key", "senders": "You cannot send yet. Ask an operator", "limits": "Recipients per hour",
		"times": "When mail leaves", "webhooks": "/webhooks/sg", "account": "Log out everywhere",
	} {
		page := user.get("/settings/" + name)
		require.Equal(t, http.StatusOK, page.StatusCode)
		require.Contains(t, page.text, has, name)
		for other, title := range map[string]string{
			"keys": "API keys", "senders": "Senders and domains", "limits": "Limits", "times": "Sending hours",
			"webhooks": "Webhook addresses", "account": "Account",
		} {
			here := ""
			if other == name {
				here = ` aria-current="page"`
				require.Contains(t, page.text, "<title>"+title+" · Safedelivr</title>")
			}
			require.Contains(t, page.text, `<a href="/settings/`+other+`"`+here+`>`+title+`</a>`, name)
		}
		require.NotContains(t, page.text, "/operations/users", name)
	}
	require.Contains(t, boss.get("/settings/account").text, `<a href="/operations/users">People</a>`)

	_, _, err := f.service.People.SetSenders(t.Context(), service.Caller{User: "gh8", Operator: true}, "gh7",
		[]string{"@shop.example", "ann@example.com"}, "", service.Repeat{})
	require.NoError(t, err)
	text := textOf(user.get("/settings/senders").text)
	require.Contains(t, text, "@shop.example ann@example.com")
	require.Equal(t, 1, strings.Count(text, "An operator sets your senders."))
}

// TestOwnKeys: users who are no operators create and revoke their own keys, and not those of others.
func TestOwnKeys(t *testing.T) {
	t.Parallel()
	f := newRig(t, &login.GitHub{Logins: []string{"Ann"}, Operators: []string{"bob"}}, ann, bob)
	user := f.browser()
	user.byGitHub("Ann")
	made := user.post("/settings/keys", url.Values{"name": {"shop"}, "scopes": {"read"}, "id": {"gh8"}})
	require.Contains(t, made.text, `id="new-key"`)
	refused := user.post("/settings/keys", url.Values{"name": {"shop"}, "scopes": {"read", "operate"}})
	require.Contains(t, refused.text, `id="scopes-wrong">You cannot give a key a scope that you do not have.`)
	mine, err := f.service.People.Keys(t.Context(), service.Caller{User: "gh7"})
	require.NoError(t, err)
	require.Len(t, mine, 1)
	other, _, err := f.service.People.CreateKey(t.Context(), service.Caller{User: "gh8"}, "other", models.KeyOptions{})
	require.NoError(t, err)
	stranger := url.Values{"id": {"gh8"}}
	require.Equal(t, http.StatusNotFound, user.post("/settings/keys/"+other.ID+"/revoke", stranger).StatusCode)
	require.Contains(t, user.post("/settings/keys/"+mine[0].ID+"/revoke", nil).text, "1 revoked key is not listed")
	theirs, err := f.service.People.Keys(t.Context(), service.Caller{User: "gh8"})
	require.NoError(t, err)
	require.True(t, theirs[0].Revoked.IsZero())
}

// TestEndpointsOfInstallationStayThere: a form of a user's own endpoints reaches none of the installation.
func TestEndpointsOfInstallationStayThere(t *testing.T) {
	t.Parallel()
	f := newRig(t, &login.GitHub{Logins: []string{"Ann"}, Operators: []string{"bob"}}, ann, bob)
	user := f.browser()
	user.byGitHub("Ann")
	form := url.Values{"url": {"https://x.example"}, "installation": {"true"}}
	refused := user.post("/endpoints?installation=true", form)
	require.Equal(t, http.StatusUnprocessableEntity, refused.StatusCode)
	form.Del("installation")
	require.Contains(t, user.post("/endpoints?installation=true", form).text, `id="new-secret"`)
	require.Equal(t, http.StatusNotFound, user.post("/installation/endpoints", form).StatusCode)
	for owner, n := range map[string]int{"installation": 0, "gh7": 1} {
		list, err := f.service.Endpoints(service.Caller{}).List(t.Context(), owner)
		require.NoError(t, err)
		require.Len(t, list, n, owner)
	}
}
