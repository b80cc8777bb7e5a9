// Package mailparse reads a whole message (RFC 5322, MIME) as an application submits it, and returns what the gateway
// must send.
//
// The gateway builds a mail of its own for each provider. So Read returns the sender, the texts and the fields that are
// passed on. It streams attachments to the caller. Nothing that servers add on the way is kept.
//
// Real messages break the rules, and mail programs show them all the same. Read repairs what has one likely meaning,
// and lists it in Flaws. It refuses what would change who gets the mail, what they get, or when.
//
// Texts and names are UTF-8. Header values, names and addresses have no control characters, so no value can end a line
// of a header. Read takes time in proportion to the size of the message, and memory for its texts only.
package mailparse

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/emersion/go-message/textproto"

	"github.com/safedelivr/safedelivr/models"
)

// Limits of a message. Those of headers are for the message and for each part.
const (
	MaxDepth   = 20 // multiparts within each other
	MaxParts   = 500
	MaxHeader  = 64 << 10 // bytes of a header; somewhat more may pass
	MaxFields  = 500      // fields of a header
	MaxHeaders = 100      // fields that are passed on
)

// Mail is what a message says.
type Mail struct {
	From            models.Address
	ReplyTo, To, Cc []models.Address // of the header. Envelope returns those who get the mail
	Subject         string
	Text, HTML      string          // lines end with \n
	MessageID       string          // without < and >
	Headers         []models.Header // the fields that are passed on, with different names, each at most 998 bytes

	// The fields below come from header fields of Mailgun, Postmark, SendGrid and Resend.
	Tags                    []string // as they were written
	Metadata                map[string]string
	TrackOpens, TrackClicks bool
	DeliverAt               time.Time // zero: at once
	TestMode                bool      // the mail must not be sent
	Stream                  string    // X-PM-Message-Stream
	IdempotencyKey          string    // Resend-Idempotency-Key

	Flaws []Flaw // each once, in the order in which they were found
}

// Attachment describes a file of a message.
type Attachment struct {
	Filename string // 1 to 255 bytes without /, \ and ;
	Type     string // in lower case, without parameters. Only text/calendar may have its method, in upper case
	// The ID of an inline attachment, to which cid: in the HTML refers. It is unique within the message, and has 1 to 128
	// letters, digits and _.@+- characters. Other attachments have none.
	ContentID string
}

// Flaw is the stable code of something that Read has repaired or left out.
type Flaw string

// The flaws.
const (
	BadAddress      Flaw = "bad_address"      // an entry of an address list is no address, and was left out
	BrokenEncoding  Flaw = "broken_encoding"  // base64 or quoted-printable with errors, decoded as far as possible
	EmptyAttachment Flaw = "empty_attachment" // an attachment has no bytes, and was left out
	HeaderLeftOut   Flaw = "header_left_out"  // a field is repeated, unusable, too long, or one too many
	MissingBoundary Flaw = "missing_boundary" // a multipart ends without its last boundary
	UnknownCharset  Flaw = "unknown_charset"  // a text was read as UTF-8 or windows-1252
	UnknownEncoding Flaw = "unknown_encoding" // a transfer encoding is unknown, and the bytes were kept
)

// Error says why a message is refused. It would be refused again, so no client should repeat it.
type Error struct {
	Code     string // stable
	Status   int    // of the SMTP reply, like 554
	Enhanced [3]int // status code of RFC 3463, like 5.6.0
	Detail   string // for people
}

// Error implements error.
func (e *Error) Error() string {
	return fmt.Sprintf("%d %d.%d.%d %s", e.Status, e.Enhanced[0], e.Enhanced[1], e.Enhanced[2], e.Detail)
}

// refuse returns an error about the content of the message.
func refuse(code, format string, args ...any) *Error {
	return &Error{Code: code, Status: 554, Enhanced: [3]int{5, 6, 0}, Detail: fmt.Sprintf(format, args...)}
}

var (
	errHeader     = refuse("bad_header", "A header of the message has a line that is not a name, a colon and a value.")
	errHeaderSize = refuse("header_too_large", "A header has more than %d bytes or %d fields.", MaxHeader, MaxFields)
	errNUL        = refuse("nul_byte", "The message contains a NUL byte, which mail must not have.")
	errTextSize   = &Error{"text_too_large", 552, [3]int{5, 3, 4}, "The texts of the message are too large."}
)

// reader reads one message.
type reader struct {
	Mail
	in                   *input
	open                 func(Attachment) (io.Writer, error)
	from                 []models.Address
	track, opens, clicks string // values of fields about tracking
	text, html           []byte
	left                 int // bytes that the texts may still have
	parts                int
	files                Files
}

// Read reads a message. It calls open for each attachment, and writes its bytes to the result before it calls open
// again. The texts may have maxText bytes together.
//
// An *Error says why the message is refused. Read returns the errors of r, of open and of its writers as they are.
// After an error the attachments are incomplete.
func Read(r io.Reader, maxText int, open func(Attachment) (io.Writer, error)) (*Mail, error) {
	space := spaces.Get().(*space) //nolint:forcetypeassert // it has nothing else
	defer space.free()
	p := &reader{in: &input{r: bufio.NewReader(r), space: space}, open: open, left: maxText}
	err := p.message()
	if err == nil {
		_, err = io.Copy(io.Discard, p.in) // what follows the last boundary
	}
	if p.in.returned != nil && p.in.returned != io.EOF { //nolint:errorlint // a reader returns io.EOF itself
		err = p.in.returned // the cause of all others
	}
	if err != nil {
		return nil, err
	}
	return &p.Mail, nil
}

// message reads the message up to its last boundary.
func (p *reader) message() error {
	body := bufio.NewReaderSize(p.in, bufferSize)
	p.in.limit(MaxHeader + bufferSize)
	fields, err := textproto.ReadHeader(body)
	p.in.limit(0)
	if err != nil {
		return errHeader
	}
	if fields.Len() > MaxFields {
		return errHeaderSize
	}
	h := header{}
	for f := fields.Fields(); f.Next(); {
		raw, _ := f.Raw()                           // never an error: the field was read
		name, _, _ := strings.Cut(string(raw), ":") // as it was written
		name = strings.TrimSpace(name)
		h.add(name, f.Value())
		if err := p.field(name, f.Value()); err != nil {
			return err
		}
	}
	if len(p.from) == 0 {
		return refuse("no_from", "The message has no valid address in From.")
	}
	p.From = p.from[0]
	if slices.ContainsFunc(p.from, func(a models.Address) bool { return !strings.EqualFold(a.Email, p.From.Email) }) {
		return refuse("several_from", "The message has several addresses in From. It must have one.")
	}
	p.TrackOpens, p.TrackClicks = isYes(cmp.Or(p.opens, p.track)), isYes(cmp.Or(p.clicks, p.track))
	if err := p.part(h, body, place{}); err != nil {
		return err
	}
	p.Text, p.HTML = string(p.text), p.files.Rewrite(string(p.html))
	return nil
}

func (p *reader) flaw(f Flaw) {
	if !slices.Contains(p.Flaws, f) {
		p.Flaws = append(p.Flaws, f)
	}
}

// ended returns the error of a read, but none at the end of a part, with or without its boundary or whole encoding.
func (p *reader) ended(err error) error {
	switch {
	case err == nil, errors.Is(err, io.EOF):
	case p.in.returned != nil && p.in.returned != io.EOF: //nolint:errorlint // a reader returns io.EOF itself
		return err
	case errors.Is(err, io.ErrUnexpectedEOF):
		p.flaw(MissingBoundary)
	default:
		p.flaw(BrokenEncoding)
	}
	return nil
}

// header has the first value of each field, by its name in lower case.
type header map[string]string

func (h header) add(name, value string) {
	if name = strings.ToLower(name); h[name] == "" {
		h[name] = value
	}
}
