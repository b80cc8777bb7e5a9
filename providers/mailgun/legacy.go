package mailgun

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"mime/multipart"
	"net/url"

	"github.com/safedelivr/safedelivr/providers/internal/kind"
)

// Bounds of a legacy post. Mailgun sends about thirty fields; a boundary has at most 70
// characters (RFC 2046).
const (
	maxFields   = 500
	maxBoundary = 70
)

// legacyKinds maps the events of legacy posts to those of current ones. The others have the same
// name in both.
var legacyKinds = map[string]string{"bounced": "failed", "dropped": "failed"}

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
	first := func(names ...string) string {
		for _, name := range names {
			if v := form[name]; len(v) > 0 && v[0] != "" {
				return v[0]
			}
		}
		return ""
	}
	last := func(name string) string {
		if v := form[name]; len(v) > 0 {
			return v[len(v)-1]
		}
		return ""
	}
	name, reason, severity := first("event"), first("reason"), ""
	if name == "bounced" {
		reason = "bounce"
	}
	if kind := legacyKinds[name]; kind != "" {
		name, severity = kind, "permanent"
	}
	variables, _ := json.Marshal(map[string]string{kind.LogKey: first(kind.LogKey), kind.AttemptKey: first(kind.AttemptKey)})
	if first(kind.LogKey) == "" {
		variables = variablesHeader(first("message-headers"))
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
		"user-variables": json.RawMessage(variables),
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
		if err != nil {
			return nil, false
		}
		value, err := io.ReadAll(part)
		if err != nil {
			return nil, false
		}
		form[part.FormName()] = append(form[part.FormName()], string(value))
	}
}

// variablesHeader returns the header X-Mailgun-Variables from the headers of a mail, a JSON list
// of names and values. It returns null if there is none.
func variablesHeader(headers string) []byte {
	var list [][]string
	if json.Unmarshal([]byte(headers), &list) == nil {
		for _, h := range list {
			if len(h) == 2 && h[0] == "X-Mailgun-Variables" && json.Valid([]byte(h[1])) {
				return []byte(h[1])
			}
		}
	}
	return []byte("null")
}
