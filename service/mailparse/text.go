package mailparse

import (
	"bytes"
	"io"
	"maps"
	"mime"
	"net/url"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/emersion/go-message/charset"
	"golang.org/x/text/encoding/charmap"
)

// decode converts a text to UTF-8. One of an unknown character set is UTF-8 if it is valid, and windows-1252 otherwise.
func decode(set string, raw []byte) (text string, known bool) {
	set = strings.ToLower(strings.TrimSpace(set))
	if set == "utf-8" || set == "utf8" {
		return strings.ToValidUTF8(string(raw), "\ufffd"), true
	}
	ascii := set == "" || set == "us-ascii"
	if out, err := convert(set, bytes.NewReader(raw)); !ascii && err == nil {
		// A set that browsers refuse to decode becomes one replacement character.
		if text, err := io.ReadAll(out); err == nil && string(text) != "\ufffd" {
			return strings.ToValidUTF8(string(text), "\ufffd"), true
		}
	}
	if utf8.Valid(raw) {
		return string(raw), ascii
	}
	text, _ = charmap.Windows1252.NewDecoder().String(string(raw)) // never an error: each byte means something
	return text, false
}

// convert converts a text of a character set that is in a table.
func convert(set string, r io.Reader) (io.Reader, error) {
	return charset.Reader(set[:min(len(set), 40)], r)
}

// clean makes one line of a text: control characters become spaces, and those at both ends are removed.
func clean(s string) string {
	s = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == '\u2028' || r == '\u2029' {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "\ufffd"))
	return strings.TrimFunc(s, func(r rune) bool { return unicode.IsSpace(r) || r == '\ufeff' })
}

// raw8 returns a header value whose raw bytes beyond ASCII are UTF-8 or windows-1252.
func raw8(value string) string {
	text, _ := decode("", []byte(value))
	return text
}

// words makes one line of a header value, and decodes its encoded words (RFC 2047). A value with a word of an unknown
// character set stays as it is, and so does one that is too long to decode in linear time.
func words(s string) string {
	d := mime.WordDecoder{CharsetReader: convert}
	if text, err := d.DecodeHeader(s[:min(len(s), bufferSize)]); err == nil && len(s) <= bufferSize {
		s = text
	}
	return clean(s)
}

var parameter = regexp.MustCompile(`;\s*([^\s=;]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)(?:"|\\?$)|([^;]*))`)

// parameters returns the value of a field like Content-Type in lower case, and its parameters, also those of RFC 2231.
// Values without quotes may have any characters but ; and the first one of a name counts.
func parameters(field string) (value string, params map[string]string) {
	field = clean(raw8(field))
	params = map[string]string{}
	for _, m := range parameter.FindAllStringSubmatch(field, -1) {
		name := strings.ToLower(m[1])
		if _, repeated := params[name]; !repeated {
			// A \ is a part of the value unless it is before one of these. Some programs write Windows paths so.
			params[name] = strings.NewReplacer(`\"`, `"`, `\\`, `\`).Replace(m[2]) + strings.TrimSpace(m[3])
		}
	}
	if _, valid, err := mime.ParseMediaType(field); err == nil {
		maps.Copy(params, valid) // and RFC 2231, but only in UTF-8
	}
	for _, name := range []string{"filename", "name"} {
		if parts := strings.SplitN(params[name+"*"], "'", 3); len(parts) == 3 {
			raw, _ := url.PathUnescape(parts[2])
			params[name], _ = decode(parts[0], []byte(raw))
		}
		params[name] = words(params[name])
	}
	value, _, _ = strings.Cut(field, ";")
	return strings.ToLower(strings.TrimSpace(value)), params
}
