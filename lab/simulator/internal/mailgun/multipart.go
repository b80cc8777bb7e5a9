package mailgun

import (
	"bytes"
	"mime"
)

// eachPart calls f for each part of a multipart/form-data body, in place. It
// reports false if the body is malformed. ParseMultipartForm refuses more than
// 1,000 parts, which is what mailgun-go makes of 1,000 recipients, and a call with
// a multipart.Reader takes more than twice as long.
func eachPart(body []byte, boundary string, f func(name []byte, file partFile, value []byte)) bool {
	delimiter := []byte("\r\n--" + boundary)
	if !bytes.HasPrefix(body, delimiter[2:]) {
		i := bytes.Index(body, delimiter)
		if i < 0 {
			return false
		}
		body = body[i+2:] // the preamble is ignored
	}
	rest := body[len(delimiter)-2:]
	for {
		line, after, ok := bytes.Cut(rest, []byte("\r\n"))
		switch {
		case bytes.HasPrefix(line, []byte("--")):
			return true
		case !ok || len(bytes.Trim(line, " \t")) > 0:
			return false
		}
		end := bytes.Index(after, delimiter)
		if end < 0 {
			return false
		}
		part := after[:end]
		rest = after[end+len(delimiter):]
		header, value, ok := bytes.Cut(part, []byte("\r\n\r\n"))
		if !ok {
			if !bytes.HasPrefix(part, []byte("\r\n")) {
				return false
			}
			header, value = nil, part[2:] // no header at all
		}
		if name, file, ok := disposition(header); ok {
			f(name, file, value)
		}
	}
}

// A partFile is what the header of a part says of its file. A part without a file has no name.
type partFile struct{ name, kind []byte }

// headerValue returns the value of a header field, whose key is in lower case with its colon.
func headerValue(header []byte, key string) ([]byte, bool) {
	for len(header) > 0 {
		var line []byte
		line, header, _ = bytes.Cut(header, []byte("\r\n"))
		if len(line) >= len(key) && bytes.EqualFold(line[:len(key)], []byte(key)) {
			return bytes.TrimSpace(line[len(key):]), true
		}
	}
	return nil, false
}

// disposition returns the name in the header of a part, and its file. It reports false if
// there is no name.
func disposition(header []byte) (name []byte, file partFile, ok bool) {
	if value, ok := headerValue(header, "content-disposition:"); ok {
		// Every client writes a field like this. ParseMediaType would make a map.
		const field = `form-data; name="`
		if len(value) > len(field)+1 && string(value[:len(field)]) == field {
			inner := value[len(field) : len(value)-1]
			if value[len(value)-1] == '"' && !bytes.ContainsAny(inner, `"\%`) {
				return inner, partFile{}, true
			}
		}
		kind, params, err := mime.ParseMediaType(string(value))
		if err != nil || kind != "form-data" || params["name"] == "" {
			return nil, partFile{}, false
		}
		if f := params["filename"]; f != "" {
			file.name = []byte(f)
			file.kind, _ = headerValue(header, "content-type:")
		}
		return []byte(params["name"]), file, true
	}
	return nil, partFile{}, false
}
