package client_test

import (
	"crypto/ed25519"
	"encoding/base64"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
)

// TestWebhook: posts that the library of Standard Webhooks has signed are read, single ones and those of many
// updates. Changed and old ones are not.
func TestWebhook(t *testing.T) {
	t.Parallel()
	const secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw" //nolint:gosec // a test
	signer, err := standardwebhooks.NewWebhook(secret)
	require.NoError(t, err)
	hook, err := client.NewWebhook(secret)
	require.NoError(t, err)
	post := func(at time.Time, signed, sent string) *http.Request {
		signature, err := signer.Sign("msg_1", at, []byte(signed))
		require.NoError(t, err)
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", strings.NewReader(sent))
		r.Header.Set("webhook-id", "msg_1")
		r.Header.Set("webhook-timestamp", strconv.FormatInt(at.Unix(), 10))
		r.Header.Set("webhook-signature", "v1,bm90aGluZw== "+signature)
		return r
	}
	now := time.Now()
	const one = `{"type":"log.failed","timestamp":"2026-01-31T12:00:00Z","data":{"log":"l","number":2,"state":"failed"}}`
	events, err := hook.Read(post(now, one, one))
	require.NoError(t, err)
	require.Len(t, events, 1)
	require.Equal(t, client.Update{Log: "l", Number: 2, State: "failed"}, events[0].Update)

	const two = `{"type":"batch","timestamp":"2026-01-31T12:00:00Z","data":[` + one + `,` + one + `]}`
	events, err = hook.Read(post(now, two, two))
	require.NoError(t, err)
	require.Len(t, events, 2)
	require.Equal(t, "log.failed", events[1].Type)

	_, err = hook.Read(post(now, one, two))
	require.ErrorIs(t, err, client.ErrNotVerified)
	for _, age := range []time.Duration{-time.Hour, time.Hour} {
		_, err = hook.Read(post(now.Add(age), one, one))
		require.ErrorIs(t, err, client.ErrNotVerified)
	}
	_, err = hook.Read(post(now, "x", "x"))
	require.ErrorContains(t, err, "cannot be read")
	_, err = client.NewWebhook("secret!")
	require.Error(t, err)
}

// TestAsymmetricWebhook: with a public key, posts are read whose signature of Ed25519 fits, beside others. Signatures
// of another kind, key, time or content do not.
func TestAsymmetricWebhook(t *testing.T) {
	t.Parallel()
	public, private, err := ed25519.GenerateKey(nil)
	require.NoError(t, err)
	hook, err := client.NewWebhook("whpk_" + base64.StdEncoding.EncodeToString(public))
	require.NoError(t, err)
	const body = `{"type":"log.failed","timestamp":"2026-01-31T12:00:00Z","data":{"log":"l","number":2,"state":"failed"}}`
	now := time.Now()
	signature := func(name, content string) string {
		return name + "," + base64.StdEncoding.EncodeToString(ed25519.Sign(private, []byte(content)))
	}
	header := func(signature string) http.Header {
		h := http.Header{}
		h.Set("webhook-id", "msg_1")
		h.Set("webhook-timestamp", strconv.FormatInt(now.Unix(), 10))
		h.Set("webhook-signature", signature)
		return h
	}
	content := "msg_1." + strconv.FormatInt(now.Unix(), 10) + "." + body
	right := signature("v1a", content)
	for _, text := range []string{right, "v1,bm90aGluZw== v1a,bm90aGluZw== " + right} {
		events, err := hook.Parse(header(text), []byte(body), now)
		require.NoError(t, err)
		require.Equal(t, "l", events[0].Update.Log)
	}
	for _, text := range []string{"", "v1a", "v1a,", signature("v1", content), signature("v1a", content+"x"), right[:60]} {
		_, err := hook.Parse(header(text), []byte(body), now)
		require.ErrorIs(t, err, client.ErrNotVerified, text)
	}
	_, err = hook.Parse(header(right), []byte(body), now.Add(time.Hour))
	require.ErrorIs(t, err, client.ErrNotVerified)
	for _, key := range []string{"whpk_", "whpk_!", "whpk_eHh4"} {
		_, err = client.NewWebhook(key)
		require.ErrorContains(t, err, "whpk_", key)
	}
}
