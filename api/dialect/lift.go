package dialect

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/safedelivr/safedelivr/service/intake"
)

// large is the size of JSON in bytes up to which the content of an attachment is kept in memory.
const large = 64 << 10

// lifter copies the JSON of a request, but not the large contents of attachments. It decodes these into one file, one
// behind the other, and writes a name in their place. What it copies need not be JSON: the decoder of the result finds
// that.
type lifter struct {
	body  *bufio.Reader
	large int
	in    *intake.Intake // makes the file

	out   bytes.Buffer
	spool *intake.Spooled         // nil: there is no large content
	files map[string]*intake.Part // large contents, by name
	path  []member                // that the next value is in, outermost first
}

// member is an object or a list of the path.
type member struct {
	list bool
	name string // of the last member of an object
}

// maxDepth is how many objects and lists encoding/json reads in each other.
const maxDepth = 10_000

// errNotTaken means that the JSON is too deep, or that the content of an attachment is a list of no bytes.
var errNotTaken = errors.New("JSON that no call takes")

// run copies the body to its end.
func (l *lifter) run() error {
	value := true // else a name follows
	for {
		c, err := l.body.ReadByte()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if decode := decoderOf(c); value && decode != nil && l.inContent() {
			if err := l.lift(c, decode); err != nil {
				return err
			}
			continue
		}
		if len(l.path) > maxDepth {
			return errNotTaken
		}
		from := l.out.Len()
		l.out.WriteByte(c)
		switch last := len(l.path) - 1; c {
		case '{', '[':
			l.path, value = append(l.path, member{list: c == '['}), c == '['
		case '}', ']':
			if value = true; last >= 0 {
				l.path = l.path[:last]
			}
		case ',':
			value = last < 0 || l.path[last].list
		case ':':
			value = true
		case '"':
			if err := l.each('"', func(p []byte) error { l.out.Write(p); return nil }); err != nil {
				return err
			}
			if !value && last >= 0 {
				l.path[last].name = TextOf(l.out.Bytes()[from:])
			}
		}
	}
}

// inContent reports whether the next value is the content of an attachment, or the data of a Buffer that is one. A
// request is a message, a list of messages, or has such a list. What a template gets is never looked into.
func (l *lifter) inContent() bool {
	path := l.path
	switch {
	case len(path) > 0 && path[0].list:
		path = path[1:]
	case len(path) > 1 && path[1].list && strings.EqualFold(path[0].name, "Messages"): // as encoding/json reads it
		path = path[2:]
	}
	if len(path) == 4 && path[3].name == "data" {
		path = path[:3]
	}
	return len(path) == 3 && path[1].list && (path[0].name == "attachments" && path[2].name == "content" ||
		path[0].name == "Attachments" && path[2].name == "Content")
}

// fileName begins the names of large contents. It is no base64.
const fileName = "file:"

// lift copies a value whose first byte was read. If the value is large, it decodes it into the file.
func (l *lifter) lift(first byte, decode decoder) error {
	end := map[byte]byte{'"': '"', '[': ']'}[first]
	held, sum, from := []byte{first}, sha256.New(), int64(0)
	var to io.Writer // nil: the value is not large so far
	err := l.each(end, func(p []byte) error {
		if first == '[' && bytes.ContainsAny(p, `"[{`) { // its end may be elsewhere
			return errNotTaken
		}
		if to == nil && len(held)+len(p) <= l.large {
			held = append(held, p...)
			return nil
		}
		if to == nil {
			if l.spool == nil {
				l.spool = l.in.NewSpooled()
			}
			from, to = l.spool.Size(), io.MultiWriter(l.spool, sum)
			if err := decode.write(held[1:], to); err != nil {
				return err
			}
		}
		return decode.write(p, to)
	})
	if to == nil {
		if strings.HasPrefix(TextOf(held), fileName) { // that of the client names no file of ours
			held = []byte(strconv.Quote(fileName))
		}
		l.out.Write(held)
		return err
	}
	ok, lerr := decode.end(to)
	name := fileName
	if ok {
		name += hex.EncodeToString(sum.Sum(nil))
	}
	l.out.WriteString(strconv.Quote(name))
	if l.files == nil {
		l.files = map[string]*intake.Part{}
	}
	if ok && l.files[name] == nil {
		l.files[name] = l.spool.Since(from)
	}
	return errors.Join(err, lerr)
}

// each calls f with the parts of a value up to its last byte, and including that.
func (l *lifter) each(end byte, f func([]byte) error) error {
	escaped := false // the next byte
	for {
		part, err := l.body.ReadSlice(end)
		if len(part) > 0 {
			if err := f(part); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return err
		}
		text := part
		if err == nil {
			text = part[:len(part)-1]
		}
		back := len(text) - len(bytes.TrimRight(text, `\`))
		escaped = (back%2 == 1) != (escaped && back == len(text))
		if err == nil {
			if !escaped {
				return nil
			}
			escaped = false // the byte was text
		}
	}
}

// decoder decodes the content of an attachment while it is read.
type decoder interface {
	write(p []byte, to io.Writer) error // p may end with the value's last byte
	end(to io.Writer) (ok bool, err error)
}

// decoderOf returns a decoder for a value that begins with a byte, or nil.
func decoderOf(first byte) decoder {
	switch first {
	case '"':
		return new(base64Decoder)
	case '[':
		return new(numberDecoder)
	}
	return nil
}

// base64Decoder decodes base64 in a JSON string: also with line breaks, without padding, and for URLs.
type base64Decoder struct {
	rest  []byte // an escape sequence that is not complete
	clean []byte // that is not decoded yet
	bad   bool
}

func (d *base64Decoder) write(p []byte, to io.Writer) error {
	if len(d.rest) > 0 {
		p = append(d.rest, p...)
		d.rest = nil
	}
	for i := 0; i < len(p); i++ {
		c := p[i]
		if c == '\\' {
			n := 2
			if i+1 < len(p) && p[i+1] == 'u' {
				n = 6
			}
			if len(p)-i < n {
				d.rest = bytes.Clone(p[i:])
				return nil
			}
			text := TextOf(slices.Concat([]byte(`"`), p[i:i+n], []byte(`"`)))
			if i += n - 1; len(text) != 1 {
				d.bad = true
				continue
			}
			c = text[0]
		} else if c < ' ' { // it is no JSON
			d.bad = true
		}
		switch c {
		case '"', '\r', '\n', '=':
			continue
		case '-':
			c = '+'
		case '_':
			c = '/'
		}
		d.clean = append(d.clean, c)
	}
	return d.decode(len(d.clean)/4*4, to)
}

// decode decodes n bytes.
func (d *base64Decoder) decode(n int, to io.Writer) error {
	data := make([]byte, base64.RawStdEncoding.DecodedLen(n))
	if _, err := base64.RawStdEncoding.Decode(data, d.clean[:n]); err != nil || d.bad {
		d.bad, d.clean = true, d.clean[:0]
		return nil //nolint:nilerr // end reports it
	}
	d.clean = append(d.clean[:0], d.clean[n:]...)
	_, err := to.Write(data)
	return err
}

func (d *base64Decoder) end(to io.Writer) (bool, error) {
	err := d.decode(len(d.clean), to)
	return !d.bad && len(d.rest) == 0, err
}

// numberDecoder decodes a list of bytes as numbers, as a Buffer of Node.js is written.
type numberDecoder struct {
	number int  // that was begun
	digits bool // of number
	ended  bool // it has digits, and a space follows
	bad    bool
}

func (d *numberDecoder) write(p []byte, to io.Writer) error {
	data := make([]byte, 0, len(p)/2+1)
	for _, c := range p {
		switch {
		case '0' <= c && c <= '9' && d.number <= 255:
			d.bad = d.bad || d.ended || d.digits && d.number == 0 // it is no JSON
			d.number, d.digits = d.number*10+int(c-'0'), true
		case c == ',' || c == ']':
			d.bad = d.bad || !d.digits || d.number > 255
			data = append(data, byte(d.number)) //nolint:gosec // else it is bad
			d.number, d.digits, d.ended = 0, false, false
		case c == ' ', c == '\n', c == '\r', c == '\t':
			d.ended = d.digits
		default:
			d.bad = true
		}
	}
	_, err := to.Write(data)
	return err
}

func (d *numberDecoder) end(io.Writer) (bool, error) { return !d.bad, nil }
