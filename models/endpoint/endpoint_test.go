package endpoint

import (
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models/feed"
)

// TestSignature: the library of Standard Webhooks accepts posts, with either secret while both are valid, and no
// changed ones.
func TestSignature(t *testing.T) {
	t.Parallel()
	newer, older := NewSecret(), NewSecret()
	now := time.Now()
	older.Until = now.Add(time.Hour)
	e := Endpoint{Secrets: []Secret{newer, older}}
	body := []byte(`{"type":"test"}`)
	verify := func(s Secret, body []byte) error {
		h := e.Header("msg_1", now, body)
		w, err := standardwebhooks.NewWebhook(s.String())
		require.NoError(t, err)
		return w.Verify(body, h)
	}
	require.NoError(t, verify(newer, body))
	require.NoError(t, verify(older, body))
	require.Error(t, verify(NewSecret(), body))
	w, err := standardwebhooks.NewWebhook(newer.String())
	require.NoError(t, err)
	require.Error(t, w.Verify([]byte(`{"type":"tess"}`), e.Header("msg_1", now, body)))
	h := e.Header("msg_1", now, body)
	h.Set("webhook-id", "msg_2")
	require.Error(t, w.Verify(body, h))
	e.Secrets[1].Until = now
	require.Error(t, verify(older, body), "it has ended")
}

func TestWants(t *testing.T) {
	t.Parallel()
	b := &feed.Batch{Category: "news", Tags: []string{"a", "b"}}
	for _, c := range []struct {
		e    Endpoint
		want bool
	}{
		{Endpoint{}, true},
		{Endpoint{Types: []feed.Type{feed.Failed}}, true},
		{Endpoint{Types: []feed.Type{feed.Delivered, feed.Queued}}, false},
		{Endpoint{Types: []feed.Type{feed.All}}, true},
		{Endpoint{Tags: []string{"b", "c"}}, true},
		{Endpoint{Tags: []string{"c"}}, false},
		{Endpoint{Categories: []string{"news"}}, true},
		{Endpoint{Categories: []string{"receipt"}, Tags: []string{"a"}}, false},
	} {
		require.Equal(t, c.want, c.e.Wants(feed.Failed, b), "%+v", c.e)
	}
	require.False(t, (&Endpoint{}).Wants(feed.Opened, b), "an event has to be asked for")
	require.True(t, (&Endpoint{Types: []feed.Type{feed.Opened}}).Wants(feed.Opened, b))
}
