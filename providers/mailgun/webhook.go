package mailgun

import (
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"mime/multipart"
	"net/url"

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

// verify checks HMAC-SHA256 with the webhook signing key over timestamp and token.
//
// The signature does not cover the body, so anyone who has seen a post can send another body with
// its signature. Therefore timestamp and signature are the replay key. The token is not: there is no separator between
// token and timestamp, and digits moved from one to the other would make a new token. (They would also change the
// length of the timestamp, which is refused.)
//
// A wrong signature is answered with 401, so that Mailgun repeats the post: after its signing key was reset, our key is
// the wrong one. Mailgun never repeats a post that got 406.
func verify(_ context.Context, keys [][]byte, w *models.Webhook) (v models.Verified, err error) {
	in, err := readPost(w.Body)
	if err != nil {
		return v, kind.Malformed(err.Error())
	}
	var s signature
	parse.Into(in.Signature, &s)
	if s.Timestamp == "" || s.Token == "" || s.Signature == "" {
		return v, kind.Malformed("the post is not signed")
	}
	got, err := hex.DecodeString(string(s.Signature))
	if err != nil || !kind.Signed(keys, got, string(s.Timestamp), string(s.Token)) {
		return v, kind.Forged("the signature does not fit")
	}
	v.Replay = string(s.Timestamp) + "." + hex.EncodeToString(got)
	return v, parse.Fresh(string(s.Timestamp), w.At)
}

// Bounds of a legacy post. Mailgun sends about thirty fields; a boundary has at most 70
// characters (RFC 2046).
const (
	maxFields   = 500
	maxBoundary = 70
)

// legacy translates a legacy post into a current one. Domains from before 2018 may have webhooks
// of this kind: a form, urlencoded or multipart, in which the event's fields, the signature and
// the variables of the mail stand side by side. ok is false if body is no form.
func legacy(body []byte) (in post, ok bool) {
	form, ok := fields(body)
	if !ok {
		return post{}, false
	}
	// A variable of the mail may have the name of a field. The signature is behind the variables,
	// and the other fields are before them.
	first := func(names ...string) (text string) {
		for _, name := range names {
			if v := form[name]; len(v) > 0 {
				text = cmp.Or(text, v[0])
			}
		}
		return text
	}
	last := func(name string) string {
		if v := form[name]; len(v) > 0 {
			return v[len(v)-1]
		}
		return ""
	}
	name, reason, severity := first("event"), first("reason"), ""
	switch name {
	case "bounced":
		name, reason, severity = "failed", "bounce", "permanent"
	case "dropped":
		name, severity = "failed", "permanent"
	}
	variables := json.RawMessage("null")
	var headers [][]string
	parse.Into([]byte(first("message-headers")), &headers)
	for _, h := range headers {
		if len(h) == 2 && h[0] == "X-Mailgun-Variables" && json.Valid([]byte(h[1])) {
			variables = []byte(h[1])
		}
	}
	if log := first(kind.LogKey); log != "" {
		variables, _ = json.Marshal(map[string]string{kind.LogKey: log, kind.AttemptKey: first(kind.AttemptKey)})
	}
	in.Signature, _ = json.Marshal(map[string]string{
		"timestamp": last("timestamp"),
		"token":     last("token"),
		"signature": last("signature"),
	})
	in.Event, _ = json.Marshal(map[string]any{
		"event":          name,
		"timestamp":      last("timestamp"),
		"severity":       severity,
		"reason":         reason,
		"url":            first("url"),
		"recipient":      first("recipient"),
		"message":        map[string]any{"headers": map[string]string{"message-id": first("Message-Id", "message-id")}},
		"user-variables": variables,
		"delivery-status": map[string]string{
			"code":        first("code"),
			"message":     first("error", "notification"),
			"description": first("description"),
		},
	})
	return in, true
}

// fields returns the fields of a form of either kind. ok is false if body is none.
func fields(body []byte) (form map[string][]string, ok bool) {
	if !bytes.HasPrefix(body, []byte("--")) {
		if bytes.Count(body, []byte("&")) >= maxFields {
			return nil, false
		}
		form, err := url.ParseQuery(string(bytes.TrimSpace(body)))
		return form, err == nil
	}
	line, _, _ := bytes.Cut(body, []byte("\n"))
	boundary := string(bytes.TrimRight(line[2:], "\r \t"))
	if boundary == "" || len(boundary) > maxBoundary || bytes.Count(body, []byte("--"+boundary)) > maxFields {
		return nil, false
	}
	form = map[string][]string{}
	for parts := multipart.NewReader(bytes.NewReader(body), boundary); ; {
		part, err := parts.NextPart()
		if errors.Is(err, io.EOF) {
			return form, true
		}
		var value []byte
		if err == nil {
			value, err = io.ReadAll(part)
		}
		if err != nil {
			return nil, false
		}
		form[part.FormName()] = append(form[part.FormName()], string(value))
	}
}
