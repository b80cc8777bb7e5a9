package mailgun

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers/internal/parse"
)

// A post is the body of a webhook: one event and a signature, which covers
// timestamp and token alone.
type post struct {
	Signature json.RawMessage `json:"signature"`
	Event     json.RawMessage `json:"event-data"`
}

type signature struct {
	Timestamp parse.Str `json:"timestamp"` // a string in practice, a number in the documentation
	Token     parse.Str `json:"token"`
	Signature parse.Str `json:"signature"`
}

// Verify implements models.Adapter: HMAC-SHA256 with the webhook signing key
// over timestamp and token.
//
// The body is not covered. Who has seen one post can send another body with its
// signature, so that is returned as what a replay would carry again, behind the
// timestamp that it belongs to. Not the token: there is no separator between it and the timestamp, and digits moved
// from one to the other would make a token that is new. (They could make a
// timestamp of another length only, which is refused.)
//
// 406 tells Mailgun never to repeat. It is answered to a signature that is
// wrong, and to nothing that could be a mistake of ours.
func (p *Adapter) Verify(_ http.Header, body []byte, now time.Time) (string, error) {
	if len(p.webhook) == 0 {
		return "", parse.NotConfigured()
	}
	var in post
	var s signature
	if err := json.Unmarshal(body, &in); err != nil {
		return "", malformed("the body is not a JSON object")
	}
	parse.Into(in.Signature, &s)
	if s.Timestamp == "" || s.Token == "" || s.Signature == "" {
		return "", malformed("the post is not signed")
	}
	got, err := hex.DecodeString(string(s.Signature))
	if err != nil {
		return "", forged()
	}
	mac := hmac.New(sha256.New, p.webhook)
	mac.Write([]byte(s.Timestamp))
	mac.Write([]byte(s.Token))
	if !hmac.Equal(mac.Sum(nil), got) {
		return "", forged()
	}
	if err := parse.Fresh(string(s.Timestamp), now); err != nil {
		return "", err
	}
	return string(s.Timestamp) + "." + hex.EncodeToString(got), nil
}

func malformed(detail string) error {
	return &models.WebhookError{Status: http.StatusBadRequest, Code: "malformed", Detail: detail}
}

func forged() error {
	return &models.WebhookError{Status: http.StatusNotAcceptable, Code: "bad_signature", Detail: "the signature does not fit"}
}
