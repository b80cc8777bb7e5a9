package webhooks

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers"
)

// TestSendGrid posts through the real adapter with ECDSA signatures.
func TestSendGrid(t *testing.T) {
	t.Parallel()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	der, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	require.NoError(t, err)
	p, err := providers.New(
		providers.Settings{Name: "sg", Kind: "sendgrid", APIKey: "k", WebhookKey: base64.StdEncoding.EncodeToString(der)},
	)
	require.NoError(t, err)
	t.Cleanup(p.Close)
	off, err := providers.New(providers.Settings{Name: "sg-off", Kind: "sendgrid", APIKey: "k", Events: models.EventsNone})
	require.NoError(t, err)
	t.Cleanup(off.Close)
	f := newFixture(t, Provider{"sg", p}, Provider{"sg-off", off})

	sign := func(at time.Time, body string) http.Header {
		ts := strconv.FormatInt(at.Unix(), 10)
		sum := sha256.Sum256([]byte(ts + body))
		sig, err := ecdsa.SignASN1(rand.Reader, key, sum[:])
		require.NoError(t, err)
		h := http.Header{}
		h.Set("X-Twilio-Email-Event-Webhook-Timestamp", ts)
		h.Set("X-Twilio-Email-Event-Webhook-Signature", base64.StdEncoding.EncodeToString(sig))
		return h
	}
	event := `{"event":"delivered","email":"a@b.test"}`
	many := "[" + strings.Repeat(event+",", 9_999) + event + "]\r\n"
	large, tooLarge := "["+strings.Repeat(" ", 4<<20-2)+"]", "["+strings.Repeat(" ", 4<<20)+"]"
	for _, c := range []struct {
		name, provider, body string
		header               http.Header
		status               int
	}{
		{"good", "sg", "[" + event + "]\r\n", sign(time.Now(), "["+event+"]\r\n"), 200},
		{"10,000 events", "sg", many, sign(time.Now(), many), 200},
		{"4 MiB", "sg", large, sign(time.Now(), large), 200},
		{"more than 4 MiB", "sg", tooLarge, sign(time.Now(), tooLarge), 413},
		{"half a JSON, signed", "sg", "[{", sign(time.Now(), "[{"), 200},
		{"one byte changed", "sg", "[ " + event + "]", sign(time.Now(), "["+event+"]"), 401},
		{"not signed", "sg", "[]", http.Header{}, 401},
		{"two days old", "sg", "[]", sign(time.Now().Add(-48*time.Hour), "[]"), 403},
		{"from the future", "sg", "[]", sign(time.Now().Add(48*time.Hour), "[]"), 403},
		{"no list", "sg", "{}", sign(time.Now(), "{}"), 400},
		{"no key here", "sg-off", "[]", sign(time.Now(), "[]"), 503},
	} {
		before := len(f.inbox.stored(t))
		status, body := f.post(t, c.provider, c.header, strings.NewReader(c.body))
		require.Equal(t, c.status, status, "%s: %s", c.name, body)
		all := f.inbox.stored(t)
		if c.status != 200 {
			require.Len(t, all, before, c.name)
			continue
		}
		require.Equal(t, c.body, string(all[before].Posts[0].Body), c.name)
	}
	require.Len(t, f.announced(t, 4), 4)
	require.Contains(t, f.unread(t, "sg"), "HTTP/1.1 401", "nothing is signed")
}

// unread begins a post without a signature in its header, and returns the answer that comes although the body does
// not.
func (f *fixture) unread(t *testing.T, provider string) string {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(f.url, "http://"))
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	require.NoError(t, conn.SetDeadline(time.Now().Add(readTime/2)))
	_, err = fmt.Fprintf(conn, "POST /webhooks/%s HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n[", provider)
	require.NoError(t, err)
	answer, err := io.ReadAll(conn)
	require.NoError(t, err, "the connection stays open")
	return string(answer)
}

// TestMailgun posts through the real adapter with HMAC signatures.
func TestMailgun(t *testing.T) {
	t.Parallel()
	p, err := providers.New(
		providers.Settings{Name: "mg", Kind: "mailgun", APIKey: "k", Domain: "mg.example.com", WebhookKey: "secret"},
	)
	require.NoError(t, err)
	t.Cleanup(p.Close)
	off, err := providers.New(
		providers.Settings{Name: "mg-off", Kind: "mailgun", APIKey: "k", Domain: "mg.example.com", Events: models.EventsNone},
	)
	require.NoError(t, err)
	t.Cleanup(off.Close)
	f := newFixture(t, Provider{"mg", p}, Provider{"mg-off", off})
	sign := func(key string, at time.Time) string {
		ts, token := strconv.FormatInt(at.Unix(), 10), strings.Repeat("0a1b2c3d4e", 5)
		mac := hmac.New(sha256.New, []byte(key))
		mac.Write([]byte(ts + token))
		return fmt.Sprintf(
			`{"signature":{"timestamp":"%s","token":"%s","signature":"%s"},"event-data":{"event":"a new kind"}}`,
			ts, token, hex.EncodeToString(mac.Sum(nil)))
	}
	good := sign("secret", time.Now())
	for _, c := range []struct {
		name, provider, body string
		status               int
	}{
		{"good", "mg", good, 200},
		{"the same again", "mg", good, 200},
		{"forged", "mg", sign("guess", time.Now()), 401},
		{"clock off", "mg", sign("secret", time.Now().Add(-48*time.Hour)), 403},
		{"clock off the other way", "mg", sign("secret", time.Now().Add(48*time.Hour)), 403},
		{"cut in half", "mg", good[:len(good)/2], 400},
		{"no signature", "mg", `{"event-data":{}}`, 400},
		{"no secret here", "mg-off", good, 503},
		{"1 MiB", "mg", strings.Repeat(" ", 1<<20), 400},
		{"more than 1 MiB", "mg", good + strings.Repeat(" ", 1<<20), 413},
	} {
		status, body := f.post(t, c.provider, http.Header{"Content-Type": {"text/html"}}, strings.NewReader(c.body))
		require.Equal(t, c.status, status, "%s: %s", c.name, body)
	}
	all := f.inbox.stored(t)
	require.Len(t, all, 2)
	require.NotEmpty(t, all[0].Posts[0].Replay)
	require.Equal(t, all[0].Posts[0].Replay, all[1].Posts[0].Replay, "both posts have the same replay token")
	_, refused := f.server.Counts()
	require.Equal(t, map[string]int64{
		"bad_signature": 1, "stale": 2, "malformed": 3, "not_configured": 1, "too_large": 1,
	}, refused)
}
