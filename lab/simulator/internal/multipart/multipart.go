// Package multipart reads multipart/form-data in place. ParseMultipartForm refuses more than 1,000 parts, which is what
// mailgun-go makes of 1,000 recipients, and a call with a multipart.Reader takes more than twice as long.
package multipart

import (
	"mime"
	"strings"
)

// A Field is a part of a form. Texts are parts of the body. A field without a file has no filename.
type Field struct {
	Name, Value    string
	Filename, Type string
}

// Fields returns the fields of a form. ok is false if the body is malformed.
func Fields(body, boundary string) (list []Field, ok bool) {
	delimiter := "\r\n--" + boundary
	rest, found := strings.CutPrefix(body, delimiter[2:])
	if !found {
		_, rest, found = strings.Cut(body, delimiter) // the preamble is ignored
	}
	if !found || boundary == "" {
		return nil, false
	}
	list = make([]Field, 0, strings.Count(rest, delimiter))
	for {
		line, after, ok := strings.Cut(rest, "\r\n")
		switch {
		case strings.HasPrefix(line, "--"):
			return list, true
		case !ok || strings.Trim(line, " \t") != "":
			return nil, false
		}
		part, next, found := strings.Cut(after, delimiter)
		if !found {
			return nil, false
		}
		rest = next
		header, value, ok := strings.Cut(part, "\r\n\r\n")
		if !ok {
			if header, value, ok = strings.Cut(part, "\r\n"); !ok || header != "" {
				return nil, false
			}
		}
		if f, ok := field(header); ok {
			f.Value = value
			list = append(list, f)
		}
	}
}

// value returns the value of a header field, whose key is in lower case with its colon.
func value(header, key string) string {
	for line := range strings.SplitSeq(header, "\r\n") {
		if len(line) >= len(key) && strings.EqualFold(line[:len(key)], key) {
			return strings.TrimSpace(line[len(key):])
		}
	}
	return ""
}

// field returns the field that the header of a part describes, without its value. ok is false if it has no name.
func field(header string) (f Field, ok bool) {
	disposition := value(header, "content-disposition:")
	// Every client writes a field like this. ParseMediaType would make a map.
	if name, ok := strings.CutPrefix(disposition, `form-data; name="`); ok {
		if name, ok = strings.CutSuffix(name, `"`); ok && !strings.ContainsAny(name, `"\%`) {
			return Field{Name: name}, name != ""
		}
	}
	kind, params, err := mime.ParseMediaType(disposition)
	if err != nil || kind != "form-data" || params["name"] == "" {
		return f, false
	}
	f = Field{Name: params["name"], Filename: params["filename"]}
	if f.Filename != "" {
		f.Type = value(header, "content-type:")
	}
	return f, true
}
