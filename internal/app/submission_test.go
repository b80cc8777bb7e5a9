package app

import (
	"bufio"
	"crypto/tls"
	"log/slog"
	"net"
	"net/smtp"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/config"
	"github.com/safedelivr/safedelivr/internal/testkit"
	"github.com/safedelivr/safedelivr/models"
)

// Mail comes by SMTP with the certificate of HTTP, or with one of its own, which is read again when its files change.
func TestSubmission(t *testing.T) {
	t.Parallel()
	ca, dir := testkit.NewAuthority(t), t.TempDir()
	for _, own := range []string{"", "SMTP_"} {
		cert, key := filepath.Join(dir, own+"cert.pem"), filepath.Join(dir, own+"key.pem")
		ca.Certificate(t, cert, key, "127.0.0.1", time.Hour)
		a := serveApp(t, slog.New(slog.DiscardHandler),
			"SAFEDELIVR_SMTP_LISTEN=127.0.0.1:0,127.0.0.1:0", "SAFEDELIVR_SMTPS_LISTEN=127.0.0.1:0",
			"SAFEDELIVR_"+own+"TLS_CERT="+cert, "SAFEDELIVR_"+own+"TLS_KEY="+key,
			"SAFEDELIVR_PROVIDERS_SG_KIND=sendgrid", "SAFEDELIVR_PROVIDERS_SG_API_KEY=k", "SAFEDELIVR_PROVIDERS_SG_EVENTS=none",
			"SAFEDELIVR_PROVIDERS_SG_BASE_URL=http://127.0.0.1:1")
		require.Equal(t, own == "", a.certs != nil)
		secret := newKey(t, a, models.KeyOptions{})
		secure := &tls.Config{RootCAs: ca.Pool, ServerName: "127.0.0.1", MinVersion: tls.VersionTLS12}
		login := smtp.PlainAuth("", "apikey", secret, "127.0.0.1")
		first, err := smtp.Dial(a.mailbox.plain[1].Addr().String())
		require.NoError(t, err)
		require.NoError(t, first.StartTLS(secure))
		state, _ := first.TLSConnectionState()
		old := state.PeerCertificates[0]

		ca.Certificate(t, cert, key, "127.0.0.1", 2*time.Hour)
		a.smtpCerts.reload(a.log)
		c, err := (&tls.Dialer{Config: secure}).DialContext(t.Context(), "tcp", a.mailbox.secure[0].Addr().String())
		require.NoError(t, err)
		require.False(t, c.(*tls.Conn).ConnectionState().PeerCertificates[0].Equal(old))
		second, err := smtp.NewClient(c, "127.0.0.1")
		require.NoError(t, err)
		for _, client := range []*smtp.Client{first, second} { // the open connection goes on
			require.NoError(t, client.Auth(login))
			require.NoError(t, client.Mail("ann@example.com"))
			require.NoError(t, client.Rcpt("bob@example.com"))
			w, err := client.Data()
			require.NoError(t, err)
			_, err = w.Write([]byte("From: ann@example.com\r\n\r\nHello\r\n"))
			require.NoError(t, err)
			require.NoError(t, w.Close())
		}
		require.Equal(t, 2, a.mailbox.server.Connections())
		require.Equal(t, map[string]float64{"250": 2}, smtpMessages(t, a))
		require.NoError(t, first.Close())
		require.NoError(t, second.Close())
	}
}

// smtpMessages returns the metric of messages by SMTP, by reply.
func smtpMessages(t *testing.T, a *App) map[string]float64 {
	t.Helper()
	families, err := a.metrics.Gather()
	require.NoError(t, err)
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "safedelivr_smtp_messages_total" {
				out[m.GetLabel()[0].GetValue()] = m.GetCounter().GetValue()
			}
		}
	}
	return out
}

// An address has 20 connections of both ports together. One more is told so, and those of a trusted proxy are not
// counted.
func TestSubmissionConnections(t *testing.T) {
	t.Parallel()
	for _, trusted := range []string{"192.0.2.1", "127.0.0.1"} {
		a := serveApp(t, slog.New(slog.DiscardHandler), "SAFEDELIVR_SMTP_LISTEN=127.0.0.1:0",
			"SAFEDELIVR_TRUSTED_PROXIES="+trusted)
		greeting := func() string {
			c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", a.mailbox.plain[0].Addr().String())
			require.NoError(t, err)
			t.Cleanup(func() { _ = c.Close() })
			line, err := bufio.NewReader(c).ReadString('\n')
			require.NoError(t, err)
			return line
		}
		for range smtpAddressConnections {
			require.Contains(t, greeting(), "220 ")
		}
		if trusted == "127.0.0.1" {
			require.Contains(t, greeting(), "220 ")
		} else {
			pressed := make(chan int, 1)
			a.pressure.mu.Lock()
			a.pressure.set = func(percent int) int { pressed <- percent; return percent }
			a.pressure.mu.Unlock()
			for range pressingRequests + 1 {
				require.Equal(t, "421 4.3.2 Too many connections of this address are open.\r\n", greeting())
			}
			require.Equal(t, pressedPercent, <-pressed)
		}
	}
}

// Mistakes in the settings of SMTP are reported with all others. A process without the role api takes no mail.
func TestSubmissionSettings(t *testing.T) {
	t.Parallel()
	_, err := config.Load("", []string{"SAFEDELIVR_SMTPS_LISTEN=:465", "SAFEDELIVR_SMTP_LISTEN=587",
		"SAFEDELIVR_CURRENCY=x"})
	require.ErrorContains(t, err, "SAFEDELIVR_SMTP_LISTEN: \"587\" must have the form host:port")
	require.ErrorContains(t, err,
		"SAFEDELIVR_SMTP_TLS_CERT: required if SAFEDELIVR_SMTPS_LISTEN is set, unless SAFEDELIVR_TLS_CERT is")
	require.ErrorContains(t, err, "SAFEDELIVR_CURRENCY")
	_, err = config.Load("", []string{"SAFEDELIVR_SMTP_TLS_CERT=c"})
	require.ErrorContains(t, err, "SAFEDELIVR_SMTP_TLS_KEY: required if SAFEDELIVR_SMTP_TLS_CERT is set")

	used := listenLocal(t).Addr().String()
	cfg, err := config.Load("", []string{"SAFEDELIVR_LISTEN=127.0.0.1:0", "SAFEDELIVR_SMTP_LISTEN=" + used})
	require.NoError(t, err)
	require.ErrorContains(t, Check(t.Context(), &cfg, nil),
		"SAFEDELIVR_SMTP_LISTEN: "+used+" is in use by another program")

	cfg.Roles = []string{"worker"}
	a := &App{cfg: &cfg, log: slog.New(slog.DiscardHandler)}
	require.NoError(t, a.listenSMTP(t.Context()))
	require.Nil(t, a.mailbox.server)

	log := &testkit.Output{}
	b := serveApp(t, slog.New(slog.NewTextHandler(log, nil)), "SAFEDELIVR_SMTP_LISTEN=0.0.0.0:0")
	require.NotNil(t, b.mailbox.server)
	require.Contains(t, log.String(), "only clients on this machine can log in")
}
