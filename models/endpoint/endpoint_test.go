package endpoint

import (
	"crypto/ed25519"
	"encoding/base64"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models/feed"
)

// TestSignature: the library of Standard Webhooks accepts posts, with either secret while both are valid, and no
// changed ones.
func TestSignature(t *testing.T) {
	t.Parallel()
	newer, older := NewSecret(client.SignatureHMAC), NewSecret(client.SignatureHMAC)
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
	require.Error(t, verify(NewSecret(client.SignatureHMAC), body))
	w, err := standardwebhooks.NewWebhook(newer.String())
	require.NoError(t, err)
	require.Error(t, w.Verify([]byte(`{"type":"tess"}`), e.Header("msg_1", now, body)))
	h := e.Header("msg_1", now, body)
	h.Set("webhook-id", "msg_2")
	require.Error(t, w.Verify(body, h))
	e.Secrets[1].Until = now
	require.Error(t, verify(older, body), "it has ended")
}

// TestAsymmetricSignature: posts have a signature of Ed25519 over the content that Standard Webhooks names, in its
// form, with both keys while both are valid, also if one is of HMAC.
func TestAsymmetricSignature(t *testing.T) {
	t.Parallel()
	now := time.Unix(1674087231, 0)
	body := []byte(`{"type":"test"}`)
	e := Endpoint{Secrets: []Secret{NewSecret(client.SignatureEd25519)}}
	e.Rotate(NewSecret(client.SignatureEd25519), now.Add(time.Hour))
	verify := func(s Secret, h http.Header) bool {
		raw, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(s.Public(), "whpk_"))
		require.NoError(t, err)
		for _, signature := range strings.Split(h.Get("webhook-signature"), " ") {
			text, ok := strings.CutPrefix(signature, "v1a,")
			got, err := base64.StdEncoding.DecodeString(text)
			if ok && err == nil && ed25519.Verify(raw, []byte(`msg_1.1674087231.{"type":"test"}`), got) {
				return true
			}
		}
		return false
	}
	h := e.Header("msg_1", now, body)
	require.Regexp(t, `^v1a,[A-Za-z0-9+/]{86}== v1a,[A-Za-z0-9+/]{86}==$`, h.Get("webhook-signature"))
	require.Regexp(t, `^whpk_[A-Za-z0-9+/]{43}=$`, e.Secrets[0].Public())
	require.Empty(t, e.Secrets[0].String(), "the private key is not shown")
	require.True(t, verify(e.Secrets[0], h))
	require.True(t, verify(e.Secrets[1], h))
	require.False(t, verify(NewSecret(client.SignatureEd25519), h))
	require.False(t, verify(e.Secrets[0], e.Header("msg_2", now, body)))
	require.False(t, verify(e.Secrets[0], e.Header("msg_1", now, []byte("x"))))
	require.False(t, verify(e.Secrets[1], e.Header("msg_1", now.Add(time.Hour), body)))

	e.Rotate(NewSecret(client.SignatureHMAC), now.Add(time.Hour))
	h = e.Header("msg_1", now, body)
	require.Regexp(t, `^v1,\S+ v1a,\S+$`, h.Get("webhook-signature"))
	require.True(t, verify(e.Secrets[1], h))
	require.Empty(t, e.Secrets[0].Public())
}

func TestWants(t *testing.T) {
	t.Parallel()
	b := &feed.Batch{Category: "news", Tags: []string{"a", "b"}}
	for _, c := range []struct {
		n    client.EndpointSettings
		want bool
	}{
		{client.EndpointSettings{}, true},
		{client.EndpointSettings{Events: []string{client.LogFailed}}, true},
		{client.EndpointSettings{Events: []string{client.LogDelivered, client.LogQueued}}, false},
		{client.EndpointSettings{Events: []string{string(feed.All)}}, true},
		{client.EndpointSettings{Tags: []string{"b", "c"}}, true},
		{client.EndpointSettings{Tags: []string{"c"}}, false},
		{client.EndpointSettings{Categories: []string{"news"}}, true},
		{client.EndpointSettings{Categories: []string{"receipt"}, Tags: []string{"a"}}, false},
	} {
		e := Endpoint{EndpointSettings: c.n}
		require.Equal(t, c.want, e.Wants(feed.Failed, b), "%+v", c.n)
	}
	var e Endpoint
	require.False(t, e.Wants(feed.Opened, b), "an event has to be asked for")
	e.Events = []string{client.LogOpened}
	require.True(t, e.Wants(feed.Opened, b))
}

// TestState: an endpoint has each of the states that the API names, and posts are made in all but the last.
func TestState(t *testing.T) {
	t.Parallel()
	failed := State{Failures: 1, Generation: 1, Attempts: []Attempt{{Answer: "no route"}}}
	var states []string
	for _, c := range []struct {
		e    Endpoint
		s    State
		want [2]string // the state, and why
	}{
		{Endpoint{Generation: 1}, State{}, [2]string{client.EndpointStateActive}},
		{Endpoint{Generation: 2}, failed, [2]string{client.EndpointStateActive}}, // it was enabled since
		{Endpoint{Generation: 1}, failed, [2]string{client.EndpointStateFailing, "no route"}},
		{Endpoint{Generation: 1, Disabled: &Disabled{Why: "x"}}, failed, [2]string{client.EndpointStateDisabled, "x"}},
	} {
		state, why := c.e.State(&c.s)
		require.Equal(t, c.want, [2]string{state, why})
		require.Equal(t, state != client.EndpointStateDisabled, c.e.Enabled())
		states = append(states, state)
	}
	field, _ := reflect.TypeFor[client.Endpoint]().FieldByName("State")
	require.Equal(t, field.Tag.Get("enum"), strings.Join(slices.Compact(states), ","))
}

// TestTakeOver: a state takes over each request since once: a place in the feed to begin at, and posts to be made
// again. A post that waits for a retry is made once.
func TestTakeOver(t *testing.T) {
	t.Parallel()
	part := func(n int) Part { return Part{From: feed.Position{Skip: n}, To: feed.Position{Skip: n + 1}} }
	later := time.Now().Add(time.Hour)
	s := State{Failures: 5, Gone: true, Retries: []Retry{{Part: part(1), Tried: 3, At: later}}}
	e := Endpoint{Generation: 1, Again: []Part{part(1), part(2)}}
	want := []Retry{{Part: part(1), Tried: 3}, {Part: part(2)}}
	for range 2 {
		s.TakeOver(&e)
		require.Equal(t, State{Generation: 1, Retries: want}, s)
	}
	e.Generation, e.Replay = 2, &feed.Position{Entry: 7}
	s.TakeOver(&e)
	require.Equal(t, State{Generation: 2, Next: *e.Replay, Retries: []Retry{{Part: part(1)}, {Part: part(2)}}}, s)
}

// TestAnswersInWords: each answer that is not 2xx is said in words, and what it means.
func TestAnswersInWords(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]string{
		302: "it answered 302: the address has moved, and redirects are not followed",
		401: "it answered 401: the endpoint does not allow the post; check its secret and its access rules",
		404: "it answered 404: nothing takes posts at this address", 410: "it answered 410: the address is gone",
		413: "it answered 413: the post is too large for the endpoint",
		429: "it answered 429: the endpoint asks for fewer posts",
		422: "it answered 422: the endpoint refused the post", 500: "it answered 500: the endpoint has an error",
		503: "it answered 503: the endpoint is not available", 204: "", 0: "connection refused",
	} {
		a := Attempt{Status: status, Answer: "connection refused"}
		require.Equal(t, want, a.Words())
	}
}
