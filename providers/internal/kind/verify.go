package kind

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"net/http"
	"strings"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers/internal/parse"
)

// Refuse returns the refusal of a webhook.
func Refuse(status int, code, detail string) error {
	return &models.WebhookError{Status: status, Code: code, Detail: detail}
}

// Malformed returns the refusal of a webhook that cannot be read.
func Malformed(detail string) error { return Refuse(http.StatusBadRequest, "malformed", detail) }

// Forged returns the refusal of a webhook that proves nothing. The provider repeats it, because our key may be the
// wrong one.
func Forged(detail string) error { return Refuse(http.StatusUnauthorized, "bad_signature", detail) }

// Signed reports whether mac is the HMAC-SHA256 of all parts by one of the keys.
func Signed(keys [][]byte, mac []byte, parts ...string) bool {
	for _, key := range keys {
		own := hmac.New(sha256.New, key)
		for _, p := range parts {
			own.Write([]byte(p))
		}
		if hmac.Equal(own.Sum(nil), mac) {
			return true
		}
	}
	return false
}

// SvixKey reads the secret of a webhook that is signed as Svix does it.
func SvixKey(text string) ([]byte, error) {
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(text, "whsec_"))
	if err != nil || len(key) < 16 {
		return nil, errors.New("it is not whsec_ and base64; copy what the provider shows for the webhook")
	}
	return key, nil
}

// maxSvix bounds the signatures in a header. One has 47 characters, and there is one for each secret.
const maxSvix = 1024

// SvixHeader refuses a webhook whose header shows that Svix would.
func SvixHeader(_ [][]byte, w *models.Webhook) error {
	id, signatures := w.Header.Get("Svix-Id"), w.Header.Get("Svix-Signature")
	if id == "" || len(id) > 256 || strings.Contains(id, ".") || signatures == "" || len(signatures) > maxSvix {
		return Forged("the post is not signed")
	}
	return parse.Fresh(w.Header.Get("Svix-Timestamp"), w.At)
}

// Svix verifies a webhook that is signed as Svix does it: HMAC-SHA256 over id, timestamp and body. Each repeat is
// signed anew, with its id.
func Svix(_ context.Context, keys [][]byte, w *models.Webhook) (v models.Verified, err error) {
	id, timestamp := w.Header.Get("Svix-Id"), w.Header.Get("Svix-Timestamp")
	for one := range strings.SplitSeq(w.Header.Get("Svix-Signature"), " ") {
		text, ok := strings.CutPrefix(one, "v1,")
		mac, err := base64.StdEncoding.Strict().DecodeString(text)
		if ok && err == nil && Signed(keys, mac, id, ".", timestamp, ".", string(w.Body)) {
			return models.Verified{Replay: timestamp + "." + id}, nil
		}
	}
	return v, Forged("the signature does not fit")
}

// SecretKey reads the secret that a provider sends in place of a signature: user:password, or a token.
func SecretKey(text string) (string, error) {
	switch {
	case strings.TrimSpace(text) != text || strings.ContainsAny(text, "\r\n"):
		return "", errors.New("begins or ends with white space, or has lines")
	case len(text) < 8:
		return "", errors.New("must have 8 characters or more: user:password, or a token")
	}
	return text, nil
}

// Secret verifies the secret in a webhook's header, in constant time: user:password (RFC 7617) or a bearer token. It
// says nothing about body and time, so that events are recognised by their content.
func Secret(keys []string, w *models.Webhook) error {
	scheme, got, _ := strings.Cut(w.Header.Get("Authorization"), " ")
	for _, key := range keys {
		want := key
		if strings.Contains(key, ":") {
			want = base64.StdEncoding.EncodeToString([]byte(key))
		}
		same := subtle.ConstantTimeCompare([]byte(got), []byte(want)) == 1
		if same && strings.EqualFold(scheme, map[bool]string{true: "Basic", false: "Bearer"}[want != key]) {
			return nil
		}
	}
	return Forged("the user name, password or token in the header does not fit")
}
