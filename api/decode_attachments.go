package api

import (
	"bytes"
	"encoding/base64"
	"io"
	"mime/multipart"
	"strconv"
	"strings"

	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/intake"
)

// A contentFilter passes JSON on, and puts a number in place of each content of an attachment:
// the index in files of what it has decoded. So no content is ever in memory as a whole. The
// parser behind the filter finds all mistakes in the JSON, except in contents, which are base64
// or are marked as bad.
type contentFilter struct {
	in      io.Reader
	newFile func() *intake.File
	files   []*contentDecoder
	current *contentDecoder // the content that is being read

	space, buf []byte // buf is the part of space that was not looked at
	pending    []byte // to be passed on before buf
	passed     int64  // bytes that were passed on
	cuts       []contentCut

	inString, escaped bool
	depth             int
	kinds             [4]byte // '{' or '[' of the containers at depths 1 to 3
	expectKey         bool
	inKey             bool
	key               []byte
	attachments       bool // the member at depth 1 is attachments
	content           bool // the member at depth 3 is content
}

// A contentCut says how many bytes less than the body the passed JSON has from an offset on.
type contentCut struct{ at, removed int64 }

// filterSpace is the number of bytes that a filter reads at a time of a large request.
const filterSpace = 32 << 10

// maxKey is more than the length of any escaped name that the filter looks for.
const maxKey = 6 * len("attachments")

// newContentFilter returns a filter of JSON that begins a file for each content.
func newContentFilter(in io.Reader, newFile func() *intake.File) *contentFilter {
	return &contentFilter{in: in, newFile: newFile, space: make([]byte, 1<<10)}
}

// original returns the position in the body of a position in the passed JSON.
func (f *contentFilter) original(at int64) int64 {
	removed := int64(0)
	for _, c := range f.cuts {
		if c.at <= at {
			removed = c.removed
		}
	}
	if f.current != nil && at >= f.passed {
		removed += f.current.length // it did not end
	}
	return at + removed
}

// Read implements io.Reader.
func (f *contentFilter) Read(p []byte) (n int, err error) {
	for n < len(p) {
		if len(f.pending) > 0 {
			k := copy(p[n:], f.pending)
			f.pending = f.pending[k:]
			n += k
			continue
		}
		if len(f.buf) == 0 {
			if n > 0 {
				break // what is there need not wait
			}
			if f.passed > int64(len(f.space)) && len(f.space) < filterSpace {
				f.space = make([]byte, filterSpace) // most requests are small
			}
			k, err := f.in.Read(f.space)
			if k == 0 && err != nil {
				return 0, err
			}
			f.buf = f.space[:k]
		}
		if f.current != nil {
			if err := f.readContent(); err != nil {
				return n, err
			}
			continue
		}
		k, begins := f.scan(f.buf[:min(len(f.buf), len(p)-n)])
		n += copy(p[n:], f.buf[:k])
		f.passed += int64(k)
		f.buf = f.buf[k:]
		if begins {
			f.current = &contentDecoder{file: f.newFile()}
		}
	}
	return n, nil
}

// readContent decodes the content up to the end of buf or of the content.
func (f *contentFilter) readContent() error {
	k, ended, err := f.current.read(f.buf)
	f.buf = f.buf[k:]
	if err != nil || !ended {
		return err
	}
	f.pending = append(strconv.AppendInt(nil, int64(len(f.files)), 10), '"')
	f.passed += int64(len(f.pending))
	removed := f.current.length + 1 - int64(len(f.pending)) // with the quote
	if n := len(f.cuts); n > 0 {
		removed += f.cuts[n-1].removed
	}
	f.cuts = append(f.cuts, contentCut{f.passed, removed})
	f.files = append(f.files, f.current)
	f.current = nil
	return nil
}

// scan looks at JSON up to the quote with which a content begins. It returns how many bytes
// were looked at, and whether a content begins behind them.
func (f *contentFilter) scan(b []byte) (n int, begins bool) {
	for i := 0; i < len(b); i++ {
		c := b[i]
		if f.inString {
			if !f.inKey && !f.escaped {
				i += plainText(b[i:])
				if i == len(b) {
					break
				}
				c = b[i]
			}
			f.scanString(c)
			continue
		}
		switch c {
		case '"':
			if f.content && f.attachments && f.depth == 3 && !f.expectKey && len(f.files) <= intake.MaxAttachments &&
				f.kinds[1] == '{' && f.kinds[2] == '[' && f.kinds[3] == '{' {
				return i + 1, true
			}
			f.inString, f.escaped = true, false
			f.inKey, f.key = f.expectKey && (f.depth == 1 || f.depth == 3), f.key[:0]
		case '{', '[':
			if f.depth++; f.depth < len(f.kinds) {
				f.kinds[f.depth] = c
			}
			f.expectKey = c == '{'
		case '}', ']':
			f.depth = max(f.depth-1, 0)
			f.expectKey = false
		case ',':
			f.expectKey = f.depth < len(f.kinds) && f.kinds[f.depth] == '{'
			f.content = false
			f.attachments = f.attachments && f.depth > 1
		case ':':
			f.expectKey = false
		}
	}
	return len(b), false
}

// plainText returns how many bytes, of the next ones, are neither a quote nor a backslash.
func plainText(b []byte) int {
	b = b[:min(len(b), 128)] // however many quotes and backslashes there are, the time is linear
	if k := bytes.IndexByte(b, '"'); k >= 0 {
		b = b[:k]
	}
	if k := bytes.IndexByte(b, '\\'); k >= 0 {
		b = b[:k]
	}
	return len(b)
}

// scanString takes the next byte of a string that is passed on.
func (f *contentFilter) scanString(c byte) {
	switch {
	case f.escaped:
		f.escaped = false
	case c == '\\':
		f.escaped = true
	case c == '"':
		f.inString = false
		if f.inKey {
			f.inKey = false
			f.endKey()
		}
		return
	}
	if f.inKey && len(f.key) <= maxKey {
		f.key = append(f.key, c)
	}
}

func (f *contentFilter) endKey() {
	name := string(f.key)
	if bytes.IndexByte(f.key, '\\') >= 0 {
		name = unquote([]byte(`"` + name + `"`))
	}
	if f.depth == 1 {
		f.attachments = name == "attachments"
	} else {
		f.content = name == "content"
	}
}

// A contentDecoder decodes the base64 of a JSON string into a file.
type contentDecoder struct {
	file    *intake.File
	bad     bool // it is not base64
	padded  bool // the last base64 ended with padding
	length  int64
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
			d.length += int64(i)
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
	d.length += int64(len(b))
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

// jsonAttachments decodes the attachments, whose contents have been replaced by numbers.
func (d *decoder) jsonAttachments(raw []byte) error {
	switch {
	case raw[0] != '[':
		d.Wrong("/attachments", "wrong_type", "attachments must be a list of objects {filename, content_type, content}.")
		return nil
	case !validText(raw):
		d.Wrong("/attachments", "invalid_text", "attachments is not valid Unicode text.")
		return nil
	}
	for i, object := range elements(raw) {
		at := "/attachments/" + strconv.Itoa(i)
		if object[0] != '{' {
			d.Wrong(at, "wrong_type", "An attachment must be an object {filename, content_type, content}.")
			continue
		}
		if i > intake.MaxAttachments {
			break // Attach has reported it
		}
		before := d.Found()
		a := d.attachmentMembers(at, object)
		a.Flawed = d.Found() > before
		d.Attach(at, a)
	}
	return d.AddContent(len(raw))
}

// attachmentMembers decodes the members of an attachment.
func (d *decoder) attachmentMembers(at string, object []byte) *intake.Attachment {
	a := new(intake.Attachment)
	fields := map[string]*string{"filename": &a.Filename, "content_type": &a.Type, "content_id": &a.ContentID,
		"disposition": &a.Disposition, "content": new(string)}
	given := map[string]bool{}
	eachMember(object, func(name string, value []byte) {
		here, field := at+service.Pointer(name), fields[name]
		switch {
		case field == nil:
			d.Wrong(here, "unknown_field",
				"An attachment has only the fields filename, content_type, content, content_id and disposition.")
			return
		case given[name]:
			d.Wrong(here, "repeated", "%s is repeated.", name)
		case value[0] == 'n': // null counts as absent
			return
		case value[0] != '"':
			d.Wrong(here, "wrong_type", "%s must be a string.", name)
		default:
			*field = unquote(value)
		}
		given[name] = true
	})
	if !given["content"] {
		d.Wrong(at+"/content", "required", "The attachment has no content.")
		return a
	}
	n, err := strconv.Atoi(*fields["content"])
	if err != nil || n < 0 || n >= len(d.contents.files) {
		return a // the mistake is listed
	}
	if content := d.contents.files[n]; content.bad {
		d.Wrong(at+"/content", "invalid_value", "content must be base64 (RFC 4648, section 4) with padding.")
	} else {
		a.File = content.file
	}
	return a
}

// formAttachment reads a part of a form as an attachment. One with a Content-ID is inline. An
// empty part without a file name counts as absent, as other fields do.
func (d *decoder) formAttachment(part *multipart.Part, value io.Reader) error {
	a := &intake.Attachment{Filename: part.FileName(), Type: part.Header.Get("Content-Type"), File: d.NewFile()}
	a.ContentID = strings.TrimSuffix(strings.TrimPrefix(part.Header.Get("Content-ID"), "<"), ">")
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
