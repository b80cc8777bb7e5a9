package mailgun

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/safedelivr/safedelivr/api/dialect"
	"github.com/safedelivr/safedelivr/service/problem"
)

// Limits of a form.
const (
	maxParts    = 4000     // Ghost sends a thousand recipients as parts of their own
	maxText     = 64 << 20 // bytes of all fields but files
	maxUnpacked = 96 << 20 // bytes of a form that came in the encoding gzip
	maxQuotes   = 500_000  // in recipient-variables, of which each value takes two or more
)

// A form is a request for a message, whose fields may be repeated.
type form struct {
	values map[string][]string
	names  []string // of the fields, in order
	text   int      // bytes
}

// get returns the first value of a field.
func (f *form) get(name string) string {
	if values := f.values[name]; len(values) > 0 {
		return values[0]
	}
	return ""
}

// add adds a field. Clients write the names of lists as to[] or attachment[0].
func (f *form) add(name, value string) {
	if f.values[name] == nil {
		f.names = append(f.names, name)
	}
	f.values[name] = append(f.values[name], value)
}

// plain returns the name of a field without brackets at its end.
func plain(name string) string {
	if at := strings.IndexByte(name, '['); at > 0 && strings.HasSuffix(name, "]") {
		return name[:at]
	}
	return name
}

// malformed is the error of a form that cannot be read.
func malformed(format string, args ...any) error {
	return problem.New(problem.Malformed, "invalid_form", format, args...)
}

// wrong is the error of a field. Its text begins with the name, by which applications find the mistake.
func wrong(name, format string, args ...any) error {
	return malformed("%s parameter is not valid. %s", name, fmt.Sprintf(format, args...))
}

// readForm reads a form. It calls file for each file, which must read it.
func readForm(r *dialect.Request, file func(field, name, kind string, content io.Reader) error) (*form, error) {
	f := &form{values: map[string][]string{}}
	var body io.Reader = r.Body
	if strings.EqualFold(r.Header.Get("Content-Encoding"), "gzip") {
		unpacked, err := gzip.NewReader(body)
		if err != nil {
			return nil, malformed("The body is not in the encoding gzip.")
		}
		body = http.MaxBytesReader(nil, unpacked, maxUnpacked)
	}
	kind, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	switch {
	case err == nil && kind == "multipart/form-data":
		err = f.readParts(multipart.NewReader(body, params["boundary"]), file)
	case err == nil && kind == "application/x-www-form-urlencoded":
		err = f.readPairs(body)
	default:
		err = problem.New(problem.Unsupported, "wrong_type",
			"The Content-Type must be multipart/form-data or application/x-www-form-urlencoded.")
	}
	if err != nil {
		return nil, err
	}
	// The server notices only at the end of the body whether the client has gone away.
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		return nil, readError(err)
	}
	for _, name := range f.names {
		if slices.ContainsFunc(f.values[name], func(s string) bool { return !utf8.ValidString(s) }) {
			return nil, wrong(strings.ToValidUTF8(name, "\ufffd"), "It must be valid UTF-8.")
		}
	}
	return f, nil
}

func (f *form) readPairs(body io.Reader) error {
	raw, err := io.ReadAll(io.LimitReader(body, maxText+1))
	if err != nil || len(raw) > maxText {
		return readError(err)
	}
	if bytes.Count(raw, []byte("&")) >= maxParts {
		return malformed("The form has more than %d parts.", maxParts)
	}
	for pair := range strings.SplitSeq(string(raw), "&") {
		name, value, _ := strings.Cut(pair, "=")
		name, err1 := url.QueryUnescape(name)
		value, err2 := url.QueryUnescape(value)
		if errors.Join(err1, err2) != nil {
			return malformed("The form is not encoded as a URL is.")
		}
		if name != "" {
			f.add(plain(name), value)
		}
	}
	return nil
}

func (f *form) readParts(parts *multipart.Reader, file func(field, name, kind string, content io.Reader) error) error {
	for n := 0; ; n++ {
		p, err := parts.NextPart()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return readError(err)
		case n == maxParts:
			return malformed("The form has more than %d parts.", maxParts)
		}
		name := plain(p.FormName())
		if slices.Contains(files, name) {
			if err := file(name, p.FileName(), p.Header.Get("Content-Type"), p); err != nil {
				return readError(err)
			}
			continue
		}
		raw, err := io.ReadAll(io.LimitReader(p, int64(maxText-f.text)+1))
		if f.text += len(raw); err != nil || f.text > maxText {
			return readError(err)
		}
		f.add(name, string(raw))
	}
}

// files are the fields with files.
var files = []string{"attachment", "inline", "message"}

// readError returns the error of a body that is too large or cannot be read, and errors of the service as they are.
func readError(err error) error {
	var limit *http.MaxBytesError
	var known *problem.Error
	if errors.As(err, &known) {
		return known
	}
	if err == nil || errors.As(err, &limit) {
		return problem.New(problem.TooLarge, "body_too_large", "The request is too large.")
	}
	return problem.New(problem.Malformed, "invalid_form", "The form cannot be read to its end.").Because(err)
}

// variables returns the recipient-variables by address, as text. Values that are no texts are JSON.
func (f *form) variables() (map[string]map[string]string, error) {
	const name = "recipient-variables"
	raw := strings.TrimSpace(f.get(name))
	if raw == "" || raw == "null" || raw == "[]" {
		return nil, nil //nolint:nilnil // there are none
	}
	if strings.Count(raw, `"`)-strings.Count(raw, `\"`) > maxQuotes {
		return nil, wrong(name, "There are too many values.")
	}
	var read map[string]map[string]json.RawMessage
	if err := json.Unmarshal([]byte(raw), &read); err != nil {
		return nil, wrong(name, "It must be a JSON object with an object for each address.")
	}
	out := make(map[string]map[string]string, len(read))
	for address, values := range read {
		texts := make(map[string]string, len(values))
		for key, value := range values {
			texts[key] = dialect.TextOf(value)
		}
		out[address] = texts
	}
	return out, nil
}

// yes returns whether an option is on, and def if it is not given.
func (f *form) yes(name string, def bool) bool {
	switch strings.ToLower(f.get(name)) {
	case "yes", "true", "1", "htmlonly":
		return true
	case "no", "false", "0":
		return false
	}
	return def
}
