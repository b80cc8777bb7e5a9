package mailgun

import (
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"mime/multipart"
	"net/url"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers/internal/kind"
	"github.com/safedelivr/safedelivr/providers/internal/parse"
)

type signature struct {
	Timestamp parse.Str `json:"timestamp"` // a string in practice, a number in the documentation
	Token     parse.Str `json:"token"`
	Signature parse.Str `json:"signature"`
}

// readPost reads a current or a legacy post: one event and a signature, which covers only timestamp and token.
func readPost(body []byte) (e event, s signature, err error) {
	body = bytes.TrimSpace(body)
	if len(body) > 0 && body[0] != '{' && body[0] != '[' {
		return legacy(body)
	}
	var in struct {
		Signature json.RawMessage `json:"signature"`
		Event     json.RawMessage `json:"event-data"`
	}
	if json.Unmarshal(body, &in) != nil {
		return e, s, errors.New("the post is not a JSON object that can be read")
	}
	parse.Into(in.Signature, &s)
	parse.Into(in.Event, &e)
	return e, s, nil
}

// verify checks HMAC-SHA256 with the webhook signing key over timestamp and token.
//
// The signature does not cover the body, so anyone who has seen a post can send another body with
// its signature. Therefore timestamp and signature are the replay key. The token is not: digits that are moved from the
// timestamp would make a new one.
//
// A wrong signature is answered with 401, after which Mailgun repeats the post, unlike after 406: our key is the wrong
// one after the signing key was reset.
func verify(_ context.Context, keys [][]byte, w *models.Webhook) (v models.Verified, err error) {
	_, s, err := readPost(w.Body)
	if err != nil {
		return v, kind.Malformed(err.Error())
	}
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

// legacy reads a legacy post. Domains from before 2018 may have webhooks of this kind: an urlencoded or multipart form
// with the event's fields, the signature and the variables of the mail side by side.
func legacy(body []byte) (e event, s signature, err error) {
	form, err := fields(body)
	// A variable of the mail may have the name of a field. The signature is behind the variables,
	// and the other fields are before them.
	first := func(names ...string) (text parse.Str) {
		for _, name := range names {
			text = cmp.Or(text, parse.Str(append(form[name], "")[0]))
		}
		return text
	}
	last := func(name string) parse.Str { return parse.Str(append([]string{""}, form[name]...)[len(form[name])]) }
	s = signature{last("timestamp"), last("token"), last("signature")}
	e = event{Event: first("event"), Timestamp: s.Timestamp, Reason: first("reason"), URL: first("url"),
		Recipient: first("recipient")}
	e.Message.Headers.ID = first("Message-Id", "message-id")
	e.Status.Code, e.Status.Message = first("code"), first("error", "notification")
	e.Status.Description = first("description")
	switch e.Event {
	case "bounced":
		e.Event, e.Reason, e.Severity = "failed", "bounce", "permanent"
	case "dropped":
		e.Event, e.Severity = "failed", "permanent"
	}
	var headers [][]string
	parse.Into([]byte(first("message-headers")), &headers)
	for _, h := range headers {
		if len(h) == 2 && h[0] == "X-Mailgun-Variables" && json.Valid([]byte(h[1])) {
			e.Variables = []byte(h[1])
		}
	}
	if log := first(kind.LogKey); log != "" {
		e.Variables, _ = json.Marshal(kind.Ours{Log: log, Attempt: first(kind.AttemptKey)})
	}
	return e, s, err
}

// fields returns the fields of a form of either kind.
func fields(body []byte) (map[string][]string, error) {
	wrong := errors.New("the post is no form and no JSON object that can be read")
	rest, ok := bytes.CutPrefix(body, []byte("--"))
	if !ok {
		form, err := url.ParseQuery(string(body))
		if err != nil {
			return nil, wrong
		}
		return form, nil
	}
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	boundary := string(bytes.TrimRight(line, "\r \t"))
	if boundary == "" || len(boundary) > 70 { // RFC 2046
		return nil, wrong
	}
	form, err := multipart.NewReader(bytes.NewReader(body), boundary).ReadForm(int64(len(body)))
	if err != nil {
		return nil, wrong
	}
	return form.Value, nil
}
