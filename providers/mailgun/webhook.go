package mailgun

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers/internal/parse"
)

// A post is the content of a webhook: one event and a signature, which covers only timestamp and
// token.
type post struct {
	Signature json.RawMessage `json:"signature"`
	Event     json.RawMessage `json:"event-data"`
}

type signature struct {
	Timestamp parse.Str `json:"timestamp"` // a string in practice, a number in the documentation
	Token     parse.Str `json:"token"`
	Signature parse.Str `json:"signature"`
}

// readPost reads a current or a legacy post.
func readPost(body []byte) (in post, err error) {
	body = bytes.TrimLeft(body, " \t\r\n")
	if len(body) > 0 && body[0] != '{' && body[0] != '[' {
		if in, ok := legacy(body); ok {
			return in, nil
		}
		return in, errors.New("the post is no form and no JSON object that can be read")
	}
	if json.Unmarshal(body, &in) != nil {
		return in, errors.New("the post is not a JSON object that can be read")
	}
	return in, nil
}

// Verify implements models.Adapter: HMAC-SHA256 with the webhook signing key
// over timestamp and token.
//
// The signature does not cover the body, so anyone who has seen a post can send another body with
// its signature. Therefore Verify returns timestamp and signature as the replay key. It does
// not return the token: there is no separator between token and timestamp, and digits moved
// from one to the other would make a new token. (They would also change the length of the
// timestamp, which is refused.)
//
// A wrong signature is answered with 401, so that Mailgun repeats the post: after its signing key was reset, our key is
// the wrong one. Mailgun never repeats a post that got 406.
func (p *Adapter) Verify(_ context.Context, w *models.Webhook) (v models.Verified, err error) {
	if len(p.keys.Load().webhook) == 0 {
		return v, parse.NotConfigured()
	}
	var s signature
	in, err := readPost(w.Body)
	if err != nil {
		return v, malformed(err.Error())
	}
	parse.Into(in.Signature, &s)
	if s.Timestamp == "" || s.Token == "" || s.Signature == "" {
		return v, malformed("the post is not signed")
	}
	got, err := hex.DecodeString(string(s.Signature))
	if err != nil {
		return v, forged()
	}
	if !p.signed(s, got) {
		return v, forged()
	}
	v.Replay = string(s.Timestamp) + "." + hex.EncodeToString(got)
	return v, parse.Fresh(string(s.Timestamp), w.At)
}

// VerifyHeader implements models.Adapter. The header of a post holds no signature.
func (p *Adapter) VerifyHeader(*models.Webhook) error {
	if len(p.keys.Load().webhook) == 0 {
		return parse.NotConfigured()
	}
	return nil
}

// malformed returns the error for a post that cannot be read.
func malformed(detail string) error {
	return &models.WebhookError{Status: http.StatusBadRequest, Code: "malformed", Detail: detail}
}

// signed reports whether mac is the signature of s by one of the keys.
func (p *Adapter) signed(s signature, mac []byte) bool {
	for _, key := range p.keys.Load().webhook {
		own := hmac.New(sha256.New, key)
		own.Write([]byte(s.Timestamp))
		own.Write([]byte(s.Token))
		if hmac.Equal(own.Sum(nil), mac) {
			return true
		}
	}
	return false
}

// forged returns the error for a post whose signature is wrong.
func forged() error {
	return &models.WebhookError{
		Status: http.StatusUnauthorized, Code: "bad_signature", Detail: "the signature does not fit",
	}
}

// Boxes lists the types of event that need a webhook at Mailgun.
func Boxes() []models.EventBox {
	return []models.EventBox{
		{Label: "Accepted", Kinds: []models.EventKind{models.Processed}},
		{Label: "Delivered Messages", Kinds: []models.EventKind{models.Delivered}},
		{Label: "Temporary Failure", Kinds: []models.EventKind{models.Deferred}},
		{Label: "Permanent Failure", Kinds: []models.EventKind{models.Bounced, models.Blocked, models.Dropped}},
		{Label: "Opened Messages", Kinds: []models.EventKind{models.Opened}},
		{Label: "Clicks", Kinds: []models.EventKind{models.Clicked}},
		{Label: "Spam Complaints", Kinds: []models.EventKind{models.Complained}},
		{Label: "Unsubscribes", Kinds: []models.EventKind{models.Unsubscribed}},
	}
}
