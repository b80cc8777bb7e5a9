package app

import (
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/config"
	"github.com/safedelivr/safedelivr/providers"
)

// TestCheckNamesAllMistakes: mistakes of the configuration, of providers and of addresses are reported together, once
// each, by the names that were typed.
func TestCheckNamesAllMistakes(t *testing.T) {
	t.Parallel()
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	used := l.Addr().String()
	cfg, err := config.Load("", []string{
		"SAFEDELIVR_LISTEN=" + used,
		"SAFEDELIVR_METRICS_LISTEN=" + used,
		"SAFEDELIVR_PROVIDERS_SG_APIKEY=k",
		"SAFEDELIVR_PROVIDERS_SG_KIND=pigeon",
		"SAFEDELIVR_PROVIDERS_MG_KIND=mailgun",
		"SAFEDELIVR_PROVIDERS_MG_EVENTS=never",
		"SAFEDELIVR_PROVIDERS_XX_API_KEY=k",
	})
	err = Check(t.Context(), &cfg, err)
	require.Equal(t, []string{
		`SAFEDELIVR_PROVIDERS_SG_APIKEY: no such setting; did you mean SAFEDELIVR_PROVIDERS_SG_API_KEY?`,
		`SAFEDELIVR_PROVIDERS_MG_EVENTS: "never" must be one of webhook, none`,
		`SAFEDELIVR_PROVIDERS_XX_KIND: required`,
		`SAFEDELIVR_PROVIDERS_MG_API_KEY: required: the API key of the provider`,
		`SAFEDELIVR_PROVIDERS_MG_DOMAIN: required: Mailgun sends for one domain`,
		`SAFEDELIVR_PROVIDERS_SG_KIND: "pigeon" must be one of ` + strings.Join(providers.Names(), ", "),
		`SAFEDELIVR_LISTEN: ` + used + ` is in use by another program: stop it, or set another address`,
		`SAFEDELIVR_METRICS_LISTEN: ` + used + ` is in use by another program: stop it, or set another address`,
	}, strings.Split(err.Error(), "\n"))
}

// TestCheckAcceptsWhatIsRight: a configuration without mistakes has none.
func TestCheckAcceptsWhatIsRight(t *testing.T) {
	t.Parallel()
	cfg, err := config.Load("", []string{
		"SAFEDELIVR_LISTEN=127.0.0.1:0",
		"SAFEDELIVR_PROVIDERS_SG_KIND=sendgrid",
		"SAFEDELIVR_PROVIDERS_SG_API_KEY=k",
		"SAFEDELIVR_PROVIDERS_SG_EVENTS=none",
	})
	require.NoError(t, Check(t.Context(), &cfg, err))
}

// TestCheckOfOtherRoles: a process that takes no mail by SMTP does not ask for its address, which another one with the
// same settings has.
func TestCheckOfOtherRoles(t *testing.T) {
	t.Parallel()
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	for _, roles := range []string{"worker", "api,worker"} {
		cfg, err := config.Load("", []string{
			"SAFEDELIVR_LISTEN=127.0.0.1:0", "SAFEDELIVR_STORE=postgres://127.0.0.1/x", "SAFEDELIVR_ROLES=" + roles,
			"SAFEDELIVR_SMTP_LISTEN=" + l.Addr().String(),
			"SAFEDELIVR_PROVIDERS_SG_KIND=sendgrid", "SAFEDELIVR_PROVIDERS_SG_API_KEY=k", "SAFEDELIVR_PROVIDERS_SG_EVENTS=none",
		})
		err = Check(t.Context(), &cfg, err)
		require.Equal(t, roles != "worker", err != nil, "%s: %v", roles, err)
	}
}
