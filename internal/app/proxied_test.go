package app

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pires/go-proxyproto"
	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/config"
	"github.com/safedelivr/safedelivr/internal/testkit"
)

// headerOf returns a header of version 2 of the PROXY protocol.
func headerOf(t *testing.T, command proxyproto.ProtocolVersionAndCommand, client string) string {
	t.Helper()
	from, err := net.ResolveTCPAddr("tcp", client)
	require.NoError(t, err)
	h := proxyproto.HeaderProxyFromAddrs(2, from, &net.TCPAddr{IP: net.ParseIP("192.0.2.9"), Port: 587})
	h.Command = command
	var out bytes.Buffer
	_, err = h.WriteTo(&out)
	require.NoError(t, err)
	return out.String()
}

// sendTo connects to a listener when it accepts, and sends bytes.
func sendTo(t *testing.T, n *testkit.Network, l net.Listener, text string) {
	t.Helper()
	go func() {
		if c, err := n.Dial(t.Context(), "tcp", l.Addr().String()); err == nil {
			_, _ = io.WriteString(c, text)
		}
	}()
}

// TestProxied: a connection from a trusted proxy has the address that its header names, and what follows the header is
// read as it is.
func TestProxied(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ trusted, header, address string }{
		"version 1":         {"127.0.0.0/8", "PROXY TCP4 203.0.113.7 192.0.2.9 4711 587\r\n", "203.0.113.7:4711"},
		"version 1, IPv6":   {"127.0.0.0/8", "PROXY TCP6 2001:db8::7 2001:db8::9 4711 587\r\n", "[2001:db8::7]:4711"},
		"version 1, hidden": {"127.0.0.0/8", "PROXY UNKNOWN\r\n", unknownClient},
		"version 2":         {"127.0.0.0/8", headerOf(t, proxyproto.PROXY, "203.0.113.7:4711"), "203.0.113.7:4711"},
		"version 2, its own": {
			"127.0.0.0/8", headerOf(t, proxyproto.LOCAL, "127.0.0.1:4711"), unknownClient,
		},
		"a stranger": {"192.0.2.0/24", "", "127.0.0.1:1"},
	} {
		synctest.Test(t, func(t *testing.T) {
			n := testkit.NewNetwork(t)
			below := n.Listen()
			l := newProxied(below, []netip.Prefix{netip.MustParsePrefix(c.trusted)}, func(net.Conn) { t.Error(name) })
			text := "EHLO app\r\n" + strings.Repeat("x", 10_000)
			sendTo(t, n, below, c.header+text)
			got, err := l.Accept()
			require.NoError(t, err)
			require.Equal(t, c.address, got.RemoteAddr().String(), name)
			space := make([]byte, len(text))
			_, err = io.ReadFull(got, space)
			require.NoError(t, err)
			require.Equal(t, text, string(space), name)
			require.NoError(t, l.Close())
			_, err = l.Accept()
			require.ErrorIs(t, err, net.ErrClosed)
		})
	}
}

// TestNoHeader: a connection from a trusted proxy is refused without a header, or with one that is broken, late or
// endless. It delays no other.
func TestNoHeader(t *testing.T) {
	t.Parallel()
	whole := headerOf(t, proxyproto.PROXY, "203.0.113.7:4711")
	for name, text := range map[string]string{
		"none": "EHLO app\r\n", "silence": "", "half": "PROXY TCP4 203.", "half of version 2": whole[:20],
		"no address": "PROXY TCP4 a b 1 2\r\n", "another family": "PROXY TCP4 2001:db8::7 2001:db8::9 1 2\r\n",
		"no return": "PROXY TCP4 203.0.113.7 192.0.2.9 4711 587\n", "endless": "PROXY " + strings.Repeat("x", 1<<20),
		"endless version 2": whole[:14] + "\xff\xff" + strings.Repeat("x", 1<<20), "version 3": whole[:12] + "\x31" + whole[13:],
	} {
		synctest.Test(t, func(t *testing.T) {
			n := testkit.NewNetwork(t)
			below := n.Listen()
			refused := make(chan struct{}, 2)
			l := newProxied(below, []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, func(c net.Conn) {
				_ = c.Close()
				refused <- struct{}{}
			})
			began := time.Now()
			sendTo(t, n, below, text)
			synctest.Wait()
			sendTo(t, n, below, whole)
			got, err := l.Accept()
			require.NoError(t, err)
			require.Equal(t, "203.0.113.7:4711", got.RemoteAddr().String())
			require.Zero(t, time.Since(began), name)
			<-refused
			require.LessOrEqual(t, time.Since(began), headerTime, name)
			sendTo(t, n, below, "") // Accept is not called
			synctest.Wait()
			require.NoError(t, l.Close())
			time.Sleep(headerTime)
		})
	}
}

// TestSubmissionThroughProxy: through a trusted proxy the limits and the rules for logins apply to the client that the
// header names, on both ports.
func TestSubmissionThroughProxy(t *testing.T) {
	t.Parallel()
	ca, dir := testkit.NewAuthority(t), t.TempDir()
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	ca.Certificate(t, cert, key, "127.0.0.1", time.Hour)
	log := new(testkit.Output)
	serve := func(trusted string, more ...string) *App {
		return serveApp(t, slog.New(slog.NewTextHandler(log, nil)), append(more, "SAFEDELIVR_SMTP_LISTEN=127.0.0.1:0",
			"SAFEDELIVR_SMTP_PROXY_PROTOCOL=true", "SAFEDELIVR_TRUSTED_PROXIES="+trusted)...)
	}
	a := serve("127.0.0.1")
	dial := func(l net.Listener, header string) (net.Conn, *bufio.Reader) {
		c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", l.Addr().String())
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() })
		require.NoError(t, c.SetDeadline(time.Now().Add(20*time.Second)))
		_, err = io.WriteString(c, header)
		require.NoError(t, err)
		return c, bufio.NewReader(c)
	}
	line := func(r *bufio.Reader) string {
		text, err := r.ReadString('\n')
		require.NoError(t, err)
		return text
	}
	from := func(client string) string { return "PROXY TCP4 " + client + " 192.0.2.9 4711 587\r\n" }

	for client, mayLogin := range map[string]bool{"203.0.113.7": false, "127.0.0.1": true} {
		c, r := dial(a.mailbox.plain[0], from(client)+"EHLO app\r\n")
		offers := line(r)
		for last := ""; !strings.HasPrefix(last, "250 "); offers += last {
			last = line(r)
		}
		require.Equal(t, mayLogin, strings.Contains(offers, "AUTH PLAIN"), offers)
		require.NoError(t, c.Close())
	}
	for range smtpAddressConnections {
		_, r := dial(a.mailbox.plain[0], from("203.0.113.8"))
		require.Contains(t, line(r), "220 ")
	}
	_, r := dial(a.mailbox.plain[0], from("203.0.113.8"))
	require.Equal(t, "421 4.3.2 Too many connections of this address are open.\r\n", line(r))
	_, r = dial(a.mailbox.plain[0], "EHLO app\r\n")
	require.Equal(t, "421 4.3.2 The proxy sent no PROXY header.\r\n", line(r))
	require.Contains(t, log.String(), "it has no PROXY header")

	a = serve("127.0.0.1", "SAFEDELIVR_SMTPS_LISTEN=127.0.0.1:0", "SAFEDELIVR_SMTP_TLS_CERT="+cert,
		"SAFEDELIVR_SMTP_TLS_KEY="+key)
	c, _ := dial(a.mailbox.secure[0], headerOf(t, proxyproto.PROXY, "203.0.113.9:1"))
	secure := tls.Client(c, &tls.Config{RootCAs: ca.Pool, ServerName: "127.0.0.1", MinVersion: tls.VersionTLS12})
	require.Contains(t, line(bufio.NewReader(secure)), "220 ")
	_, r = dial(a.mailbox.secure[0], "EHLO app\r\n")
	_, err := r.ReadByte()
	require.Error(t, err)

	a = serve("192.0.2.1")
	_, r = dial(a.mailbox.plain[0], from("127.0.0.1"))
	require.Contains(t, line(r), "220 ")
	require.Regexp(t, "^50. ", line(r), "from others it is no command")
}

// TestProxySettings: the protocol needs to know the proxies.
func TestProxySettings(t *testing.T) {
	t.Parallel()
	_, err := config.Load("", []string{"SAFEDELIVR_SMTP_LISTEN=:587", "SAFEDELIVR_SMTP_PROXY_PROTOCOL=true"})
	require.ErrorContains(t, err,
		"SAFEDELIVR_SMTP_PROXY_PROTOCOL: needs the addresses of the proxies: SAFEDELIVR_TRUSTED_PROXIES")
}
