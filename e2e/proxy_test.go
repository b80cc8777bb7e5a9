//go:build full

package e2e

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/internal/testkit"
	"github.com/safedelivr/safedelivr/lab/simulator"
)

const proxyName = "mail.example.com" // in docs/proxy.md

// proxied is the product behind a proxy that is configured as docs/proxy.md says.
type proxied struct {
	*rig
	listen string // address of the proxy
	folder string
	ca     *testkit.Authority
}

// TestProxies runs the examples of docs/proxy.md.
func TestProxies(t *testing.T) {
	t.Run("nginx", func(t *testing.T) {
		p := newProxied(t)
		block := p.example("nginx", strings.NewReplacer(
			"listen 443 ssl", "listen "+p.listen+" ssl",
			"/etc/ssl/"+proxyName+".pem", p.file("cert.pem"),
			"/etc/ssl/"+proxyName+".key", p.file("key.pem"),
			"127.0.0.1:8080", p.addr))
		var temporary strings.Builder
		for _, kind := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
			fmt.Fprintf(&temporary, "%s_temp_path %s;\n", kind, p.file(kind))
		}
		p.write("nginx.conf", "daemon off; error_log stderr; pid "+p.file("pid")+"; events {}\n"+
			"http { access_log off;\n"+temporary.String()+block+"}\n")
		p.serves("nginx", "-c", p.file("nginx.conf"), "-p", p.folder)
		p.check()
	})
	t.Run("Caddy", func(t *testing.T) {
		p := newProxied(t)
		_, port, err := net.SplitHostPort(p.listen)
		require.NoError(t, err)
		block := p.example("caddy", strings.NewReplacer(
			proxyName+" {",
			"https://"+proxyName+":"+port+" {\n\tbind 127.0.0.1\n\ttls "+p.file("cert.pem")+" "+p.file("key.pem"),
			"127.0.0.1:8080",
			p.addr,
		))
		p.write("Caddyfile", "{\n\tadmin off\n\tauto_https disable_redirects\n\tstorage file_system "+p.folder+"\n}\n"+block)
		p.serves("caddy", "run", "--adapter", "caddyfile", "--config", p.file("Caddyfile"))
		p.check()
	})
}

// newProxied starts the product with the settings of docs/proxy.md.
func newProxied(t *testing.T) *proxied {
	t.Helper()
	p := &proxied{listen: freeAddr(t), folder: t.TempDir(), ca: testkit.NewAuthority(t)}
	p.rig = newRig(t, testkit.Embedded(), simulator.Options{},
		"SAFEDELIVR_TRUSTED_PROXIES=127.0.0.1", "SAFEDELIVR_PUBLIC_URL=https://"+proxyName)
	p.start(p.addr, nil, "serve")
	p.ca.Certificate(t, p.file("cert.pem"), p.file("key.pem"), proxyName, time.Hour)
	return p
}

func (p *proxied) file(name string) string { return filepath.Join(p.folder, name) }

func (p *proxied) write(name, text string) {
	p.t.Helper()
	require.NoError(p.t, os.WriteFile(p.file(name), []byte(text), 0o600))
}

// example returns an example of docs/proxy.md with what is different on this machine.
func (p *proxied) example(language string, here *strings.Replacer) string {
	p.t.Helper()
	text, err := os.ReadFile("../docs/proxy.md")
	require.NoError(p.t, err)
	found := regexp.MustCompile("(?s)```" + language + "\n(.*?)```").FindSubmatch(text)
	require.NotNil(p.t, found, language)
	return here.Replace(string(found[1]))
}

// serves runs a proxy until the test ends.
func (p *proxied) serves(name string, args ...string) {
	p.t.Helper()
	cmd := exec.Command(name, args...) //nolint:gosec // a proxy of the documents
	var out testkit.Output
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.Env = append(os.Environ(), "HOME="+p.folder)
	require.NoError(p.t, cmd.Start())
	p.t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait() // its status names the signal
		if p.t.Failed() {
			p.t.Log(out.String())
		}
	})
	require.Eventually(p.t, func() bool {
		c, err := net.Dial("tcp", p.listen)
		if err != nil {
			return false
		}
		return c.Close() == nil
	}, testkit.Patience, 20*time.Millisecond)
}

// from returns a client at an address of this machine that reaches the product through the proxy.
func (p *proxied) from(address string) *http.Client {
	jar, err := cookiejar.New(nil)
	require.NoError(p.t, err)
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, "tcp", p.listen)
		},
		TLSClientConfig: &tls.Config{RootCAs: p.ca.Pool, MinVersion: tls.VersionTLS12},
	}
	p.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Jar: jar, Timeout: time.Minute}
}

// ask sends a request with a header and returns the answer, whose body the caller closes.
func (p *proxied) ask(c *http.Client, method, path string, body io.Reader, header ...string) *http.Response {
	p.t.Helper()
	req, err := http.NewRequest(method, "https://"+proxyName+path, body)
	require.NoError(p.t, err)
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := c.Do(req)
	require.NoError(p.t, err)
	p.t.Cleanup(func() { _ = resp.Body.Close() })
	return resp
}

func (p *proxied) check() {
	p.addressIsTheClients()
	p.bodiesArePassedOn()
	p.livePagesAreLive()
}

// addressIsTheClients: a key for one network works from there alone, even if a client claims another address.
func (p *proxied) addressIsTheClients() {
	p.t.Helper()
	key := strings.TrimSpace(p.command("key", "add", "tester", "--from-network", "127.0.0.2/32"))
	for address, says := range map[string]struct {
		forwarded string
		want      int
	}{
		"127.0.0.2": {"for=192.0.2.1", http.StatusOK},
		"127.0.0.3": {"for=127.0.0.2", http.StatusForbidden},
	} {
		resp := p.ask(p.from(address), http.MethodGet, "/v1/usage", nil, "Authorization", "Bearer "+key,
			"X-Forwarded-For", "127.0.0.2", "Forwarded", says.forwarded, "X-Forwarded-Proto", "http")
		require.Equal(p.t, says.want, resp.StatusCode, address)
	}
}

// bodiesArePassedOn: a batch of several megabytes is accepted, and is read while it arrives.
func (p *proxied) bodiesArePassedOn() {
	p.t.Helper()
	body, write := io.Pipe()
	go func() {
		defer func() { _ = write.Close() }()
		_, _ = io.WriteString(
			write,
			`{"from": "test@demo.test", "subject": "s", "text": "t", "to": [{"email": "first@demo.test"}`,
		)
		for i := range 60_000 {
			if i == 30_000 { // half of it
				p.spooled()
			}
			_, _ = fmt.Fprintf(write, `, {"email": "user%d@demo.test", "name": "%080d"}`, i, i)
		}
		_, _ = io.WriteString(write, "]}")
	}()
	key := "Bearer " + strings.TrimSpace(p.command("key", "add", "tester"))
	resp := p.ask(p.from("127.0.0.2"), http.MethodPost, "/v1/batches", body,
		"Authorization", key, "Content-Type", "application/json")
	require.Equal(p.t, http.StatusAccepted, resp.StatusCode)
}

// spooled waits until the product has stored recipients of a request that is not complete.
func (p *proxied) spooled() {
	assert.Eventually(p.t, func() bool {
		usage, err := p.client.GetUsage(context.Background())
		return err == nil && slices.ContainsFunc(usage.Limits, func(u client.LimitUse) bool {
			return u.Limit == "spool_bytes" && u.Used > 0
		})
	}, testkit.Patience, 20*time.Millisecond, "the proxy keeps the request to itself")
}

// livePagesAreLive: the first event of a live page comes although the answer never ends.
func (p *proxied) livePagesAreLive() {
	p.t.Helper()
	c := p.from("127.0.0.2")
	link := regexp.MustCompile(`https://\S+/login/link\S+`).FindString(p.command("login"))
	_, secret, _ := strings.Cut(link, "?")
	require.NotEmpty(p.t, secret)
	resp := p.ask(c, http.MethodPost, "/login/link", strings.NewReader(secret),
		"Content-Type", "application/x-www-form-urlencoded", "Origin", "https://"+proxyName)
	require.Equal(p.t, http.StatusOK, resp.StatusCode)
	resp = p.ask(c, http.MethodGet, "/live/overview", nil, "Accept", "text/event-stream")
	require.Equal(p.t, http.StatusOK, resp.StatusCode)
	line, err := bufio.NewReader(resp.Body).ReadString('\n')
	require.NoError(p.t, err)
	require.NotEmpty(p.t, line)
}
