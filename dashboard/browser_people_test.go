//go:build browser

package dashboard

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/dashboard/login"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
)

// TestBrowserPeople disables a user, ends sessions and revokes a key as an operator.
func TestBrowserPeople(t *testing.T) {
	t.Parallel()
	f := newRig(t, &login.GitHub{Operators: []string{"bob"}, Logins: []string{"ann"}}, ann, bob, eve)
	f.browser().byGitHub("Ann")
	f.browser().byGitHub("eve")
	for _, name := range []string{"shop, production", "a laptop"} {
		_, _, err := f.service.People.CreateKey(t.Context(), service.Caller{User: "gh7"}, name, models.KeyOptions{})
		require.NoError(t, err)
	}
	for range 3 {
		_, secret := models.NewKey("", "", time.Now())
		_, err := f.service.People.Authenticate(t.Context(), secret, netip.MustParseAddr("2001:db8:1234:5678::9"))
		require.Error(t, err)
	}
	b := openTab(t, f.url)
	b.open("/operations")
	b.at("/login")
	b.press("Continue with GitHub")
	b.press("bob")
	b.at("/operations")
	b.complaints()
	b.lookAround("people", "/operations/users")
	b.open("/operations/audit")
	b.lookAround("refused", "/operations/audit?access=key.failed")
	b.sees("API key refused: it does not exist")
	b.sees("3 times")
	b.lookAround("user", "/operations/users/gh7")
	b.lookAround("key-limits",
		eval[string](b, `document.querySelector("a[aria-label='Limits of a laptop']").getAttribute("href")`))
	b.fill("requests_at_once", "7")
	b.press("Set limits")
	b.until(`document.getElementById("requests_at_once")?.defaultValue === "7"`)
	b.open("/operations/users/gh7")
	eval[bool](b, `(document.querySelector("summary[aria-label='Revoke a laptop']").click(), true)`)
	b.press("Revoke a laptop")
	b.sees("1 revoked key is not listed")
	b.press("End all sessions")
	b.sees("No open sessions")
	b.fill("why", "left the firm")
	b.press("Disable")
	b.press("Disable ann")
	b.sees("left the firm")
	b.lookAround("disabled", "/operations/users/gh7")
	b.lookAround("keys", "/operations/keys")
	b.open("/operations/users/gh7")
	b.press("Enable")
	b.until(`!document.querySelector(".notice.bad")`)
	b.press("All users")
	b.at("/operations/users")
	b.open("/operations/audit")
	b.sees("enabled a user")
	require.Empty(t, b.complaints())
}
