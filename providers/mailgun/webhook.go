package mailgun

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers/internal/kind"
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
	if err := p.VerifyHeader(w); err != nil {
		return v, err
	}
	var s signature
	in, err := readPost(w.Body)
	if err != nil {
		return v, kind.Malformed(err.Error())
	}
	parse.Into(in.Signature, &s)
	if s.Timestamp == "" || s.Token == "" || s.Signature == "" {
		return v, kind.Malformed("the post is not signed")
	}
	got, err := hex.DecodeString(string(s.Signature))
	if err != nil || !kind.Signed(p.Keys().Webhook, got, string(s.Timestamp), string(s.Token)) {
		return v, kind.Forged("the signature does not fit")
	}
	v.Replay = string(s.Timestamp) + "." + hex.EncodeToString(got)
	return v, parse.Fresh(string(s.Timestamp), w.At)
}
