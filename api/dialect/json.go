package dialect

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/safedelivr/safedelivr/service/intake"
	"github.com/safedelivr/safedelivr/service/problem"
)

// Object is a JSON object of a request. SDKs send "", [], {} and null for what is not there, so that all of these are
// the same as absent.
type Object map[string]json.RawMessage

// ReadJSON reads the body of a request into v. It may have most bytes. Large contents of attachments are not in v, but
// in a file of the request. v has names of them in their place.
func ReadJSON(r *Request, most int64, v any) error {
	body := &io.LimitedReader{R: r.Body, N: most + 1}
	l := lifter{body: bufio.NewReaderSize(body, large/2), large: large, in: r.intake()}
	defer l.in.Close()
	err := l.run()
	r.bytes, r.spool, r.large = l.out.Len(), l.spool, l.files
	var limit *http.MaxBytesError
	var known *problem.Error
	switch raw := l.out.Bytes(); {
	case errors.As(err, &known):
		return known
	case body.N == 0, errors.As(err, &limit):
		return problem.New(problem.TooLarge, "body_too_large", "The request is larger than %d bytes.", most)
	case err == nil && utf8.Valid(raw) && json.Unmarshal(raw, v) == nil:
		return nil
	}
	return problem.New(problem.Malformed, "bad_json", "The body is not the JSON that this call takes.")
}

// intake returns an Intake for a part of the request. What all have on disk counts together.
func (r *Request) intake() *intake.Intake {
	if r.first == nil {
		r.first = r.Service.NewIntake(r.Context(), r.Who)
	}
	return intake.Another(r.first)
}

// Close releases the file of the request.
func (r *Request) Close() {
	if r.spool != nil {
		r.spool.Close()
	}
}

// Raw returns the value of the first of some names that the object has, or nil.
func (o Object) Raw(names ...string) json.RawMessage {
	for _, name := range names {
		if raw := o[name]; !slices.Contains([]string{"", `""`, "[]", "{}", "null"}, strings.TrimSpace(string(raw))) {
			return raw
		}
	}
	return nil
}

// Text returns a text. Numbers and booleans are texts, too.
func (o Object) Text(names ...string) string {
	return TextOf(o.Raw(names...))
}

// Texts returns a list of texts, or one text as a list. It reports false for anything else.
func (o Object) Texts(names ...string) (list []string, ok bool) {
	raw := o.Raw(names...)
	if raw == nil {
		return nil, true
	}
	var one string
	if json.Unmarshal(raw, &one) == nil {
		return []string{one}, true
	}
	return list, json.Unmarshal(raw, &list) == nil
}

// Bytes returns the content of a file: base64, also with line breaks or without padding, a list of numbers, or a Buffer
// of Node.js. It reports false for anything else.
func (o Object) Bytes(name string) ([]byte, bool) {
	raw := o.Raw(name)
	if buffer, ok := o.Object(name); ok {
		raw = buffer.Raw("data")
	}
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 {
		return nil, false
	}
	decode := decoderOf(raw[0])
	if decode == nil {
		return nil, false
	}
	var data bytes.Buffer
	_ = decode.write(raw[1:], &data) // memory takes all bytes
	ok, _ := decode.end(&data)
	return data.Bytes(), ok
}

// Object returns the object with a name. It reports false for anything else; if there is none, it is empty.
func (o Object) Object(name string) (out Object, ok bool) {
	raw := o.Raw(name)
	return out, raw == nil || json.Unmarshal(raw, &out) == nil
}

// Objects returns a list of objects. It reports false for anything else; if there is none, it is empty.
func (o Object) Objects(name string) (list []Object, ok bool) {
	raw := o.Raw(name)
	return list, raw == nil || json.Unmarshal(raw, &list) == nil
}

// Names returns the names of the members, sorted.
func (o Object) Names() []string { return slices.Sorted(maps.Keys(o)) }

// Strings returns all members as texts. It is nil if there are none.
func (o Object) Strings() map[string]string {
	if len(o) == 0 {
		return nil
	}
	out := make(map[string]string, len(o))
	for name, raw := range o {
		out[name] = TextOf(raw)
	}
	return out
}

// Fill makes the members variables of a template for a recipient. null is an empty text.
func (o Object) Fill(r *intake.Recipient) {
	if r.Vars == nil {
		r.Vars = make(map[string]string, len(o))
	}
	for _, name := range o.Names() {
		raw := bytes.TrimSpace(o[name])
		if r.Vars[name] = TextOf(raw); raw[0] != '"' && raw[0] != 'n' {
			r.JSON = append(r.JSON, name)
		}
	}
}

// TextOf returns a JSON value as a text. That of a text is the text, that of null is empty, and others are JSON.
func TextOf(raw json.RawMessage) string {
	n := len(raw)
	if n > 1 && raw[0] == '"' && raw[n-1] == '"' && bytes.IndexByte(raw, '\\') < 0 && utf8.Valid(raw) {
		return string(raw[1 : n-1]) // as most texts are written
	}
	var text string
	if json.Unmarshal(raw, &text) == nil { // also null
		return text
	}
	return string(raw)
}

// canonical returns JSON that is the same for equal values.
func canonical(v any) []byte {
	raw, _ := json.Marshal(v) // it was decoded from JSON
	var plain any
	if json.Unmarshal(raw, &plain) != nil {
		return raw
	}
	raw, _ = json.Marshal(plain)
	return raw
}
