package models

import (
	"encoding/base64"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// FuzzUnsubscribeToken: a token that was not signed is refused, and one that can be parsed has
// one form only.
func FuzzUnsubscribeToken(f *testing.F) {
	u := &Unsubscription{URL: "https://x.example/", Key: []byte("0123456789abcdef")}
	log := ID{1, 15: 7} // the same in all processes
	good := u.Token(log, "ann@example.com")
	for _, s := range []string{"", "x", good, good[1:], good + "=", good + "\n", good[:len(good)-1] + "!"} {
		f.Add(s)
	}
	other := &Unsubscription{Key: []byte("another key")}
	f.Fuzz(func(t *testing.T, text string) {
		token, err := ParseUnsubscribeToken(text)
		if err != nil {
			require.ErrorIs(t, err, ErrInvalid)
			return
		}
		raw, err := base64.RawURLEncoding.DecodeString(text)
		require.NoError(t, err)
		require.Equal(t, text, base64.RawURLEncoding.EncodeToString(raw))
		require.False(t, other.Verify(&token))
		if u.Verify(&token) {
			require.Equal(t, good, text)
		}
	})
}

// TestUnsubscribeToken: a token names the log and the address, in any case, and any change of
// it is noticed.
func TestUnsubscribeToken(t *testing.T) {
	t.Parallel()
	u := NewUnsubscription("https://x.example/u/")
	log := NewBatchID(time.Now()).Log(7)
	text := u.Token(log, "Ann@example.com")
	require.Equal(t, text, u.Token(log, "ann@EXAMPLE.com"))
	require.LessOrEqual(t, len(text), 80, "links must not be broken by mail programs")
	token, err := ParseUnsubscribeToken(text)
	require.NoError(t, err)
	require.True(t, u.Verify(&token))
	require.Equal(t, log, token.Log)
	require.Equal(t, HashAddress("ann@example.com"), token.Hash)
	raw, err := base64.RawURLEncoding.DecodeString(text)
	require.NoError(t, err)
	for i := range raw {
		raw[i] ^= 1
		forged, err := ParseUnsubscribeToken(base64.RawURLEncoding.EncodeToString(raw))
		require.NoError(t, err)
		require.False(t, u.Verify(&forged), "byte %d", i)
		raw[i] ^= 1
	}
}
