package dialect

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/safedelivr/safedelivr/service/problem"
)

// Object is a JSON object of a request. SDKs send "", [], {} and null for what is not there, so that all of these are
// the same as absent.
type Object map[string]json.RawMessage

// ReadJSON reads the body of a request into v. It may have most bytes.
func ReadJSON(r *Request, most int64, v any) error {
	raw, err := io.ReadAll(io.LimitReader(r.Body, most+1))
	var limit *http.MaxBytesError
	switch {
	case int64(len(raw)) > most, errors.As(err, &limit):
		return problem.New(problem.TooLarge, "body_too_large", "The request is larger than %d bytes.", most)
	case err == nil && utf8.Valid(raw) && json.Unmarshal(raw, v) == nil:
		return nil
	}
	return problem.New(problem.Malformed, "bad_json", "The body is not the JSON that this call takes.")
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
	raw := o.Raw(names...)
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return text
	}
	return string(raw)
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
	var text string
	if json.Unmarshal(raw, &text) == nil {
		text = strings.NewReplacer("\r", "", "\n", "", "=", "", "-", "+", "_", "/").Replace(text)
		data, err := base64.RawStdEncoding.DecodeString(text)
		return data, err == nil
	}
	var buffer struct {
		Type string
		Data []int
	}
	if json.Unmarshal(raw, &buffer) != nil && json.Unmarshal(raw, &buffer.Data) != nil {
		return nil, false
	}
	data := make([]byte, len(buffer.Data))
	for i, n := range buffer.Data {
		if n < 0 || n > 255 {
			return nil, false
		}
		data[i] = byte(n)
	}
	return data, len(data) > 0
}

// Canonical returns JSON that is the same for equal values.
func Canonical(v any) []byte {
	raw, _ := json.Marshal(v) // it was decoded from JSON
	var plain any
	if json.Unmarshal(raw, &plain) != nil {
		return raw
	}
	raw, _ = json.Marshal(plain)
	return raw
}
