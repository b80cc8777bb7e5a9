package app

import (
	"context"
	"html"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/dashboard/login"
	"github.com/safedelivr/safedelivr/lab/simulator"
)

// noRecords is a resolver for domains without records.
type noRecords struct{}

func (noRecords) LookupTXT(_ context.Context, name string) ([]string, error) {
	return nil, &net.DNSError{Err: "no such host", Name: name, IsNotFound: true}
}

// TestCheckOnPage: the page of the providers asks the provider and DNS as the command does, and says what to do.
func TestCheckOnPage(t *testing.T) {
	t.Parallel()
	sim := simulator.New(simulator.Options{})
	t.Cleanup(sim.Close)
	provider := httptest.NewServer(sim)
	t.Cleanup(provider.Close)
	require.NoError(t, sim.AddAccount(simulator.Account{Name: "sg", Kind: "sendgrid", Key: "k", Domain: "example.com"}))
	a := serveApp(t, slog.New(slog.DiscardHandler), "SAFEDELIVR_PROVIDERS_SG_KIND=sendgrid",
		"SAFEDELIVR_PROVIDERS_SG_API_KEY=k", "SAFEDELIVR_PROVIDERS_SG_EVENTS=none",
		"SAFEDELIVR_PROVIDERS_SG_BASE_URL="+provider.URL+"/sg")
	a.resolver = noRecords{}

	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	browser := &http.Client{Jar: jar, Transport: transport}
	link, err := login.NewLink(t.Context(), a.store, "http://"+a.Addr(), login.LocalUser())
	require.NoError(t, err)
	u, err := url.Parse(link)
	require.NoError(t, err)
	resp, err := browser.PostForm("http://"+a.Addr()+"/login/link", u.Query())
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	resp, err = browser.Get("http://" + a.Addr() + "/providers/sg/check")
	require.NoError(t, err)
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, resp.StatusCode)
	page := html.UnescapeString(string(raw))
	for _, want := range []string{
		"may send mail", "example.com is verified", "are not used (events: none)", "no record at em1.example.com",
		"Publish CNAME em1.example.com", "no key at s1._domainkey.example.com", `with the value "v=DMARC1`,
	} {
		require.Contains(t, page, want)
	}
}
