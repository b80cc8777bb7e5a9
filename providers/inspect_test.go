package providers_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/lab/simulator"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers"
)

// inspect returns the findings about an account as "state about: text".
func inspect(t *testing.T, s providers.Settings, webhookURL string) ([]string, providers.Account, error) {
	t.Helper()
	s.Events, s.Timeout = models.EventsNone, time.Minute
	a, err := providers.New(s)
	require.NoError(t, err)
	defer a.Close()
	account, err := providers.Inspect(t.Context(), a, webhookURL)
	var out []string
	for _, f := range account.Findings {
		out = append(out, fmt.Sprintf("%s %s: %s", f.State, f.About, f.Text))
		require.Equal(t, f.State == providers.OK, f.ToDo == "", "%+v", f)
	}
	return out, account, err
}

// TestInspect asks the simulated providers through the SDKs.
func TestInspect(t *testing.T) {
	t.Parallel()
	sim := simulator.New(simulator.Options{})
	t.Cleanup(sim.Close)
	srv := httptest.NewServer(sim)
	t.Cleanup(srv.Close)
	hook := "https://mail.example.com/webhooks/x"
	for _, a := range []simulator.Account{
		{Name: "sg", Kind: "sendgrid", Key: "k", Domain: "example.com", WebhookURL: hook},
		{Name: "bare", Kind: "sendgrid", Key: "k"},
		{Name: "mg", Kind: "mailgun", Key: "k", Domain: "mg.example.com", WebhookURL: hook, SigningKey: "s"},
	} {
		require.NoError(t, sim.AddAccount(a))
	}
	settings := func(name, kind, key, domain string) providers.Settings {
		return providers.Settings{Name: name, Kind: kind, APIKey: key, Domain: domain, BaseURL: srv.URL + "/" + name}
	}
	got, account, err := inspect(t, settings("sg", "sendgrid", "k", ""), hook)
	require.NoError(t, err)
	require.Equal(
		t,
		[]string{"ok key: may send mail", "ok domain: example.com is verified", "ok webhooks: go to " + hook},
		got,
	)
	require.Equal(t, "example.com", account.Domains[0].Name)
	require.Len(t, account.Domains[0].Records, 3)
	got, account, err = inspect(t, settings("mg", "mailgun", "k", "mg.example.com"), hook)
	require.NoError(t, err)
	require.Equal(t, []string{"ok key: is one of the account", "ok domain: mg.example.com is verified",
		"ok webhooks: go to " + hook}, got)
	require.Len(t, account.Domains[0].Records, 2)
	sg, mg := settings("sg", "sendgrid", "k", ""), settings("mg", "mailgun", "k", "mg.example.com")
	for name, c := range map[string]struct {
		settings providers.Settings
		hook     string
		want     string
	}{
		"key of SendGrid":     {settings("sg", "sendgrid", "x", ""), "", "wrong key: SendGrid refuses the key (401)"},
		"no domain":           {settings("bare", "sendgrid", "k", ""), "", "wrong domains: no domain is authenticated"},
		"webhook is off":      {settings("bare", "sendgrid", "k", ""), hook, "wrong webhooks: the Event Webhook is off"},
		"webhook elsewhere":   {sg, hook + "y", "wrong webhooks: the Event Webhook goes to " + hook},
		"key of Mailgun":      {settings("mg", "mailgun", "x", "mg.example.com"), "", "wrong key: Mailgun refuses the key"},
		"other domain":        {settings("mg", "mailgun", "k", "other.test"), "", "wrong domain: Mailgun does not know"},
		"webhooks of Mailgun": {mg, hook + "y", "wrong webhooks: do not go to " + hook + "y for: acc"},
	} {
		got, _, err := inspect(t, c.settings, c.hook)
		require.NoError(t, err, name)
		require.Contains(t, got[len(got)-1], c.want, name)
	}
	srv.Close()
	for _, s := range []providers.Settings{sg, mg} {
		_, _, err := inspect(t, s, "")
		require.ErrorContains(t, err, "cannot be reached")
	}
}

// TestInspectSendingKey: the inspection distinguishes a key that may only send from a wrong one, and no mail is sent
// for it.
func TestInspectSendingKey(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v3/mg.example.com/messages" {
			http.Error(w, "Forbidden", http.StatusUnauthorized)
			return
		}
		if r.FormValue("to") != "" || r.FormValue("from") != "" {
			t.Error("the request could send mail")
		}
		http.Error(w, `{"message":"from parameter is missing"}`, http.StatusBadRequest)
	}))
	t.Cleanup(srv.Close)
	got, _, err := inspect(t, providers.Settings{
		Name: "mg", Kind: "mailgun", APIKey: "k", Domain: "mg.example.com", BaseURL: srv.URL,
	}, "")
	require.NoError(t, err)
	require.Equal(t, []string{"ok key: may send mail",
		"warning key: is a sending key of the domain, which may not read logs, domain and webhooks",
		"warning key: may not read the suppression lists bounces, complaints, unsubscribes, so that addresses on them are " +
			"found only by mail that is dropped"}, got)
}
