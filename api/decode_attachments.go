package api

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"io"
	"mime/multipart"
	"slices"
	"strconv"
	"strings"

	"github.com/safedelivr/safedelivr/service/intake"
	"github.com/safedelivr/safedelivr/service/problem"
)

// source is a body behind bytes of it that a decoder has read, but not decoded.
type source struct {
	front, space []byte
	body         io.Reader
}

// sourceSpace is the number of bytes of a content that are read at a time.
const sourceSpace = 32 << 10

// Read implements io.Reader.
func (s *source) Read(p []byte) (int, error) {
	if len(s.front) == 0 {
		return s.body.Read(p)
	}
	n := copy(p, s.front)
	s.front = s.front[n:]
	return n, nil
}

// fill reads bytes into front if it is empty.
func (s *source) fill() error {
	if s.space == nil {
		s.space = make([]byte, sourceSpace)
	}
	for len(s.front) == 0 {
		n, err := s.body.Read(s.space)
		if s.front = s.space[:n]; n == 0 && err != nil {
			return err
		}
	}
	return nil
}

// content decodes the content of an attachment, whose name was the last token, while it is read. So it is never in
// memory as a whole, as it would be if a json.Decoder read it. It returns false if the value is not a string. A new
// decoder reads what follows, behind a prefix that puts it where the former one was.
func (j *jsonReader) content(d *contentDecoder) (ok bool, err error) {
	at := j.position(j.InputOffset())
	buffered, _ := io.ReadAll(j.Buffered()) // it is in memory
	in := j.source
	in.front = append(buffered, in.front...)
	for before, colon := `{"":[{""`, false; ; at++ {
		if err := in.fill(); err != nil {
			return false, j.ended(err, at)
		}
		switch c := in.front[0]; {
		case c == ':' && !colon:
			before, colon = before+":", true
		case c == '"' && colon:
			in.front = in.front[1:]
			return true, j.readContent(d, at+1)
		case c == ' ', c == '\t', c == '\n', c == '\r':
		default:
			j.restart(before, 5, at)
			return false, nil
		}
		in.front = in.front[1:]
	}
}

// readContent decodes a content whose first byte is at a position.
func (j *jsonReader) readContent(d *contentDecoder, at int64) error {
	for {
		if err := j.source.fill(); err != nil {
			return j.ended(err, at)
		}
		k, ended, err := d.read(j.source.front)
		j.source.front = j.source.front[k:]
		at += int64(k)
		switch {
		case err != nil:
			return err
		case ended:
			j.restart(`{"":[{"":0`, 6, at)
			return nil
		}
	}
}

// restart has a new decoder read what follows a position, behind the first tokens of a prefix.
func (j *jsonReader) restart(prefix string, tokens int, at int64) {
	j.source.front = append([]byte(prefix), j.source.front...)
	j.before, j.read, j.max = at-int64(len(prefix)), 0, maxBetween
	j.Decoder = json.NewDecoder(j)
	for range tokens {
		_, _ = j.Token() // the prefix has no mistakes
	}
}

// ended returns the error for a body that cannot be read behind a position.
func (j *jsonReader) ended(err error, at int64) error {
	j.before, j.read = at, 0
	return j.jsonError(err)
}

// A contentDecoder decodes the base64 of a JSON string into a file.
type contentDecoder struct {
	file    *intake.File
	bad     bool   // it is not base64
	padded  bool   // the last base64 ended with padding
	encoded []byte // that is not decoded yet
	decoded []byte
	escape  []byte // begun with a backslash
}

// decodeStep is the number of bytes of base64 that are decoded at a time, a multiple of 4.
const decodeStep = 64 << 10

// read takes bytes of the string. It returns how many it took, and whether the string ended;
// its closing quote is taken.
func (d *contentDecoder) read(b []byte) (n int, ended bool, err error) {
	for i, c := range b {
		switch {
		case len(d.escape) > 0:
			d.unescape(c)
		case c == '"':
			return i + 1, true, d.decode(true)
		case c == '\\':
			d.escape = append(d.escape[:0], c)
		default:
			d.add(c)
		}
		if len(d.encoded) == decodeStep {
			if err := d.decode(false); err != nil {
				return i + 1, false, err
			}
		}
	}
	return len(b), false, nil
}

// add takes a byte of base64. Line breaks do not count.
func (d *contentDecoder) add(c byte) {
	if c < ' ' {
		d.bad = true // not allowed in JSON
	}
	d.encoded = append(d.encoded, c)
}

// unescape takes the next byte of an escape sequence.
func (d *contentDecoder) unescape(c byte) {
	d.escape = append(d.escape, c)
	switch {
	case len(d.escape) == 2 && c == 'u':
		return
	case len(d.escape) == 2 && c == '/':
		d.add('/')
	case len(d.escape) == 2 && (c == 'n' || c == 'r'):
	case len(d.escape) == 6:
		r := escapedRune(d.escape)
		d.bad = d.bad || r < ' ' || r > '~'
		d.add(byte(r & 0x7f))
	case len(d.escape) > 2:
		return
	default:
		d.bad = true
	}
	d.escape = d.escape[:0]
}

// decode writes what is decoded to the file.
func (d *contentDecoder) decode(last bool) error {
	d.bad = d.bad || d.padded && len(d.encoded) > 0 || last && len(d.escape) > 0
	if d.bad {
		d.encoded = d.encoded[:0]
		return nil
	}
	if d.decoded == nil {
		d.decoded = make([]byte, base64.StdEncoding.DecodedLen(max(len(d.encoded), decodeStep)))
	}
	n, err := base64.StdEncoding.Decode(d.decoded, d.encoded)
	d.bad = err != nil
	d.padded = bytes.HasSuffix(d.encoded, []byte("="))
	d.encoded = d.encoded[:0]
	if last {
		defer func() { d.encoded, d.decoded = nil, nil }()
	}
	if d.bad || n == 0 {
		return nil
	}
	_, err = d.file.Write(d.decoded[:n])
	return err
}

// readAttachments decodes the list of attachments.
func (d *decoder) readAttachments(j *jsonReader) error {
	j.allow(maxBetween, valueAt("/attachments"))
	t, err := j.Token()
	if err != nil {
		return j.jsonError(err)
	}
	if t != json.Delim('[') {
		if t != nil { // null counts as absent
			d.Wrong("/attachments", "wrong_type", "attachments must be a list of objects {filename, content_type, content}.")
		}
		return skipObject(j, t, "/attachments")
	}
	for i := 0; j.more(maxRecipientJSON, valueAt("/attachments")); i++ {
		at, before := "/attachments/"+strconv.Itoa(i), d.Found()
		if t, err = j.Token(); err != nil {
			return j.jsonError(err)
		}
		if t != json.Delim('{') || i > intake.MaxAttachments { // Attach has reported those that are too many
			if i <= intake.MaxAttachments {
				d.Wrong(at, "wrong_type", "An attachment must be an object {filename, content_type, content}.")
			}
			if err := skipObject(j, t, at); err != nil {
				return err
			}
			continue
		}
		a := new(intake.Attachment)
		if err := d.readAttachment(j, at, a); err != nil {
			return err
		}
		a.Flawed = d.Found() > before
		d.Attach(at, a)
	}
	_, err = j.Token()
	if err != nil {
		return j.jsonError(err)
	}
	return nil
}

// readAttachment decodes the members of an attachment.
func (d *decoder) readAttachment(j *jsonReader, at string, a *intake.Attachment) error {
	fields := map[string]*string{"filename": &a.Filename, "content_type": &a.Type, "content_id": &a.ContentID,
		"disposition": &a.Disposition, "content": nil}
	var given []string
	for j.more(maxBetween, valueAt(at)) {
		t, err := j.Token()
		if err != nil {
			return j.jsonError(err)
		}
		name, _ := t.(string) // the name of a member is always a string
		here, again := at+problem.Pointer(name), slices.Contains(given, name)
		var raw json.RawMessage
		content, decoded := contentDecoder{}, false
		if name == "content" {
			content.file = d.NewFile()
			if decoded, err = j.content(&content); err != nil {
				return err
			}
		}
		if !decoded {
			j.allow(maxRecipientJSON, valueAt(here))
			if err := j.Decode(&raw); err != nil {
				return j.jsonError(err)
			}
		}
		if err := d.AddContent(len(name) + len(raw)); err != nil {
			return err
		}
		field, known := fields[name]
		switch {
		case !known:
			d.Wrong(here, "unknown_field",
				"An attachment has only the fields filename, content_type, content, content_id and disposition.")
			continue
		case again:
			d.Wrong(here, "repeated", "%s is repeated.", name)
		case content.bad:
			d.Wrong(here, "invalid_value", "content must be base64 (RFC 4648, section 4) with padding.")
		case decoded:
			a.File = content.file
		case raw[0] == 'n': // null counts as absent
			continue
		case field == nil:
			d.Wrong(here, "wrong_type", "content must be a string.")
		default:
			jsonText(d, here, name, raw, false, field)
		}
		given = append(given, name)
	}
	if !slices.Contains(given, "content") {
		d.Wrong(at+"/content", "required", "The attachment has no content.")
	}
	if _, err := j.Token(); err != nil {
		return j.jsonError(err)
	}
	return nil
}

// formAttachment reads a part of a form as an attachment. One with a Content-ID is inline. An
// empty part without a file name counts as absent, as other fields do.
func (d *decoder) formAttachment(part *multipart.Part, value io.Reader) error {
	a := &intake.Attachment{Filename: part.FileName(), Type: part.Header.Get("Content-Type"),
		ContentID: part.Header.Get("Content-ID"), File: d.NewFile()}
	n, err := io.Copy(a.File, value)
	if err != nil {
		return badForm(err)
	}
	if n == 0 && a.Filename == "" {
		return nil
	}
	at := "/attachments/" + strconv.Itoa(d.formFiles)
	d.formFiles++
	switch strings.ToLower(part.Header.Get("Content-Transfer-Encoding")) {
	case "", "binary", "8bit", "7bit": // the bytes as they are (RFC 2045, 6.2)
	default:
		d.Wrong(at, "invalid_value", "A part of a form must be sent as it is, without a Content-Transfer-Encoding.")
	}
	d.Attach(at, a)
	return d.AddContent(len(a.Filename) + len(a.Type) + len(a.ContentID))
}
