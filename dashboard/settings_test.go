package dashboard

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/dashboard/login"
	"github.com/safedelivr/safedelivr/service"
)

// TestSettingsPages: each part of Settings is a page with an address, and all pages lead to each other. /settings leads to
// the first. Only operators have a link to the people.
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
