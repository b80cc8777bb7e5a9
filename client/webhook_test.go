package client_test

import (
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
