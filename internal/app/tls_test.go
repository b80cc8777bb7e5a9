package app

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/config"
	"github.com/safedelivr/safedelivr/internal/testkit"
)

// tlsClient returns a client that trusts a CA, and a function that returns the certificate of the connection that it
// used last.
func tlsClient(t *testing.T, ca *testkit.Authority) (client *http.Client, seen func() *x509.Certificate) {
	t.Helper()
	var last *x509.Certificate
	secure := &tls.Config{
		RootCAs:    ca.Pool,
		MinVersion: tls.VersionTLS12,
		VerifyConnection: func(s tls.ConnectionState) error {
			last = s.PeerCertificates[0]
			return nil
		},
	}
	transport := &http.Transport{TLSClientConfig: secure, ForceAttemptHTTP2: true}
	t.Cleanup(transport.CloseIdleConnections) // a server that stops waits a second for those of HTTP/2
	return &http.Client{Transport: transport}, func() *x509.Certificate { return last }
}

// The listener speaks TLS 1.2 and newer. A new certificate serves new connections while open ones go on; one that
// cannot be used leaves the old one in use and is logged.
func TestCertificateReload(t *testing.T) {
	t.Parallel()
	ca, dir := testkit.NewAuthority(t), t.TempDir()
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	ca.Certificate(t, cert, key, "127.0.0.1", time.Hour)
	log := &testkit.Output{}
	a := serveApp(t, slog.New(slog.NewTextHandler(log, nil)), "SAFEDELIVR_TLS_CERT="+cert, "SAFEDELIVR_TLS_KEY="+key)
	base := "https://" + a.Addr()

	first, firstSeen := tlsClient(t, ca)
	require.Equal(t, http.StatusOK, status(t, first, base+"/healthz", "", nil))
	old := firstSeen()
	// The link to log in leads to the same listener.
	require.Equal(t, base, LocalURL(func() *config.Config { c := a.Config(); return &c }()))

	ca.Certificate(t, cert, key, "127.0.0.1", 2*time.Hour)
	a.certs.reload(a.log)
	require.Contains(t, log.String(), "new certificate in use")
	second, secondSeen := tlsClient(t, ca)
	require.Equal(t, http.StatusOK, status(t, second, base+"/healthz", "", nil))
	renewed := secondSeen()
	require.False(t, renewed.Equal(old))
	require.Equal(t, http.StatusOK, status(t, first, base+"/healthz", "", nil))
	require.True(t, firstSeen().Equal(old), "the open connection was lost")

	for _, c := range []struct {
		said  string
		spoil func()
	}{
		{"failed to find any PEM data", func() { require.NoError(t, os.WriteFile(cert, []byte("nonsense"), 0o600)) }},
		{"the certificate expired at", func() { ca.Certificate(t, cert, key, "127.0.0.1", -time.Minute) }},
		{"private key does not match", func() { ca.Certificate(t, filepath.Join(dir, "x"), key, "127.0.0.1", time.Hour) }},
		{"no such file", func() { require.NoError(t, os.Remove(cert)) }},
	} {
		c.spoil()
		a.certs.reload(a.log)
		require.Contains(t, log.String(), c.said)
		next, seen := tlsClient(t, ca)
		require.Equal(t, http.StatusOK, status(t, next, base+"/healthz", "", nil), c.said)
		require.True(t, seen().Equal(renewed), c.said)
	}
	require.NotContains(t, log.String(), dir)

	// SIGHUP reports the mistake, too, and takes the next certificate that can be used.
	next := a.Config()
	require.ErrorContains(t, a.Reload(&next), "cannot use the certificate (SAFEDELIVR_TLS_CERT, _KEY): no such file")
	ca.Certificate(t, cert, key, "127.0.0.1", 3*time.Hour)
	next.Listen = a.cfg.Listen
	require.NoError(t, a.Reload(&next))
	third, thirdSeen := tlsClient(t, ca)
	require.Equal(t, http.StatusOK, status(t, third, base+"/healthz", "", nil))
	require.False(t, thirdSeen().Equal(renewed))

	//nolint:gosec // it must be refused
	outdated := &tls.Config{RootCAs: ca.Pool, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}
	_, err := (&tls.Dialer{Config: outdated}).DialContext(t.Context(), "tcp", a.Addr())
	require.ErrorContains(t, err, "protocol version")
}

// A changed file is noticed without a signal.
func TestCertificateIsWatched(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ca, dir := testkit.NewAuthority(t), t.TempDir()
		c := &certificate{setting: "SAFEDELIVR_TLS_CERT", cert: filepath.Join(dir, "cert.pem"), key: filepath.Join(dir, "key.pem")}
		ca.Certificate(t, c.cert, c.key, "127.0.0.1", time.Hour)
		_, err := c.load()
		require.NoError(t, err)
		old := c.now.Load()
		a := &App{certs: c, log: slog.New(slog.DiscardHandler)}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			a.watchCertificates(ctx)
		}()
		ca.Certificate(t, c.cert, c.key, "127.0.0.1", time.Hour)
		time.Sleep(certificateCheck)
		synctest.Wait()
		require.NotSame(t, old, c.now.Load())
		stop()
		<-done
	})
}

// A process does not start with a certificate that it cannot use, or with half of the settings.
func TestCertificateMistakes(t *testing.T) {
	t.Parallel()
	_, err := config.Load("", []string{
		"SAFEDELIVR_TLS_KEY=k",
		"SAFEDELIVR_CASSANDRA_HOSTS=h",
		"SAFEDELIVR_CASSANDRA_TLS_CERT=c",
		"SAFEDELIVR_AMQP_URL=amqps://h/,amqp://i/",
		"SAFEDELIVR_AMQP_TLS_CA=c",
		"SAFEDELIVR_AMQP_TLS_KEY=k",
	})
	for _, want := range []string{
		"SAFEDELIVR_TLS_CERT: required if SAFEDELIVR_TLS_KEY is set",
		"SAFEDELIVR_CASSANDRA_TLS_KEY: required if SAFEDELIVR_CASSANDRA_TLS_CERT is set",
		"SAFEDELIVR_CASSANDRA_TLS_CA: required if SAFEDELIVR_CASSANDRA_TLS_CERT is set",
		"SAFEDELIVR_AMQP_TLS_CERT: required if SAFEDELIVR_AMQP_TLS_KEY is set",
		"SAFEDELIVR_AMQP_URL: must have only amqps:// URLs",
	} {
		require.ErrorContains(t, err, want)
	}
	none := filepath.Join(t.TempDir(), "none")
	cfg, err := config.Load("", []string{
		fmt.Sprintf("SAFEDELIVR_DATA_DIR=%s", t.TempDir()),
		"SAFEDELIVR_LISTEN=127.0.0.1:0",
		"SAFEDELIVR_TLS_CERT=" + none,
		"SAFEDELIVR_TLS_KEY=" + none,
	})
	require.NoError(t, err)
	_, err = New(t.Context(), &cfg, slog.New(slog.DiscardHandler))
	require.ErrorContains(t, err, "cannot use the certificate (SAFEDELIVR_TLS_CERT, _KEY): no such file")
	_, err = clientTLS("amqp", none, "", "")
	require.ErrorContains(t, err, "cannot read amqp.tls_ca: no such file")
	require.NoError(t, os.WriteFile(none, nil, 0o600))
	_, err = clientTLS("amqp", none, "", "")
	require.ErrorContains(t, err, "there is no certificate in the file")
	_, err = clientTLS("cassandra", "", none, none)
	require.ErrorContains(t, err, "cannot use cassandra.tls_cert and cassandra.tls_key")
}

// Over TLS clients get HTTP/2. A request that is refused before its body was read is answered, and the connection goes
// on.
func TestHTTP2(t *testing.T) {
	t.Parallel()
	ca, dir := testkit.NewAuthority(t), t.TempDir()
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	ca.Certificate(t, cert, key, "127.0.0.1", time.Hour)
	a := serveApp(t, slog.New(slog.DiscardHandler), "SAFEDELIVR_TLS_CERT="+cert, "SAFEDELIVR_TLS_KEY="+key)
	client, _ := tlsClient(t, ca)
	for range 3 {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+a.Addr()+"/v1/batches",
			bytes.NewReader(make([]byte, 8<<20)))
		require.NoError(t, err)
		resp, err := client.Do(r)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, http.StatusUnauthorized, resp.StatusCode)
		require.Equal(t, 2, resp.ProtoMajor)
	}
}
