package api

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/intake"
	"github.com/safedelivr/safedelivr/service/problem"
	"github.com/safedelivr/safedelivr/service/table"
)

// readForm decodes a URL-encoded form field by field.
func (d *decoder) readForm(body io.Reader) error {
	return d.read(func() error { return d.form(body) })
}

func (d *decoder) form(body io.Reader) error {
	r := bufio.NewReader(body)
	for {
		name, end, err := formName(r)
		if err != nil {
			return badForm(err)
		}
		value := &urlValue{r: r, done: end != '=', eof: end == 0}
		if name != "" || end == '=' {
			if err := d.formField(name, value); err != nil {
				return err
			}
		}
		if _, err := io.Copy(io.Discard, value); err != nil {
			return badForm(err)
		}
		if value.eof {
			return nil
		}
	}
}

// errForm means that a form is not encoded correctly.
var errForm = errors.New("the form is not encoded correctly")

// maxFieldName is the length in bytes of the longest encoded name of a field.
const maxFieldName = 256

// formName reads the name of a field. end is the byte after it: '=', '&', or 0 at the end of the form.
func formName(r *bufio.Reader) (name string, end byte, err error) {
	var b strings.Builder
	for {
		c, err := r.ReadByte()
		switch {
		case errors.Is(err, io.EOF):
		case err != nil:
			return "", 0, err
		case c != '&' && c != '=':
			if b.Len() == maxFieldName {
				return "", 0, errForm
			}
			b.WriteByte(c)
			continue
		default:
			end = c
		}
		name, err := url.QueryUnescape(b.String())
		if err != nil {
			return "", 0, errForm
		}
		return name, end, nil
	}
}

// urlValue reads one value of a form and decodes it.
type urlValue struct {
	r         *bufio.Reader
	done, eof bool
}

// Read implements io.Reader.
func (v *urlValue) Read(p []byte) (int, error) {
	for n := range p {
		if v.done {
			return n, io.EOF
		}
		c, err := v.r.ReadByte()
		switch {
		case errors.Is(err, io.EOF):
			v.done, v.eof = true, true
			return n, io.EOF
		case err != nil:
			return n, err
		case c == '&':
			v.done = true
			return n, io.EOF
		case c == '+':
			c = ' '
		case c == '%':
			if c, err = v.escaped(); err != nil {
				return n, err
			}
		}
		p[n] = c
	}
	return len(p), nil
}

// escaped decodes the two digits after a '%'.
func (v *urlValue) escaped() (byte, error) {
	var h [2]byte
	if _, err := io.ReadFull(v.r, h[:]); err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return 0, err
	}
	x, err := strconv.ParseUint(string(h[:]), 16, 8)
	if err != nil {
		return 0, errForm
	}
	return byte(x), nil
}

// readMultipart decodes a multipart form part by part.
func (d *decoder) readMultipart(r *http.Request) error {
	return d.read(func() error { return d.multipart(r) })
}

func (d *decoder) multipart(r *http.Request) error {
	d.names = append(slices.Clone(intake.FieldNames), "columns")
	mr, err := r.MultipartReader()
	if err != nil {
		return service.Fail(service.Malformed, "bad_form", "The Content-Type of the multipart form has no boundary.")
	}
	for {
		part, err := mr.NextPart()
		if errors.Is(err, io.EOF) {
			// The server notices only at the end of the body whether the client has gone away.
			if _, err := io.Copy(io.Discard, r.Body); err != nil {
				return badForm(err)
			}
			if d.columns != nil && !d.tables {
				d.Wrong("/columns", "conflict", "Only a CSV file of recipients has columns.")
			}
			return nil
		}
		if err != nil {
			return badForm(err)
		}
		value, hash := d.hashedPart(part)
		switch name := part.FormName(); {
		case name == "attachments":
			err = d.formAttachment(part, value)
		case name == "to" && part.FileName() != "":
			err = d.formFile(part, value)
		case name == "columns":
			err = d.formColumns(value)
		default:
			err = d.formField(name, value)
		}
		if err != nil {
			return err
		}
		hash()
	}
}

// formFile adds the recipients of a file.
func (d *decoder) formFile(part *multipart.Part, value io.Reader) error {
	kind, _, _ := mime.ParseMediaType(part.Header.Get("Content-Type")) // "" on error
	switch extension := strings.ToLower(path.Ext(part.FileName())); {
	case slices.Contains([]string{".csv", ".tsv", ".txt"}, extension), kind == "text/csv":
		return d.formTable(value)
	case slices.Contains([]string{".ndjson", ".jsonl"}, extension), kind == "application/x-ndjson":
		return d.formLines(value)
	}
	d.Unreadable("to")
	d.Wrong("/to", "wrong_type", "A file of recipients must be .csv (text/csv) or .ndjson (application/x-ndjson).")
	_, err := io.Copy(io.Discard, value)
	return formError(err)
}

// formTable adds the recipients of a table.
func (d *decoder) formTable(value io.Reader) error {
	d.tables = true
	var err error
	for r, wrong := range d.Table(value, d.columns) {
		if err = wrong; err == nil {
			if err := d.add(r); err != nil {
				return err
			}
		}
	}
	var mistake *table.Error
	if errors.As(err, &mistake) {
		d.Unreadable("to")
		d.Wrong("/to", mistake.Code, "%s", mistake)
		_, err = io.Copy(io.Discard, value)
	}
	return formError(err)
}

// formColumns decodes what the columns of a table are: an object of headings and names.
func (d *decoder) formColumns(value io.Reader) error {
	raw, err := io.ReadAll(io.LimitReader(value, maxBetween))
	if err != nil {
		return badForm(err)
	}
	raw = bytes.Trim(raw, " \t\r\n")
	switch {
	case len(raw) == 0: // counts as absent
		return nil
	case d.again("columns"):
		d.Wrong("/columns", "repeated", "columns is repeated.")
	case d.tables:
		d.Wrong("/columns", "conflict", "columns must come before the file whose columns it names.")
	case !json.Valid(raw) || raw[0] != '{':
		d.Wrong("/columns", "wrong_type", "columns must be a JSON object of headings, each with email, name or a variable.")
	case !validText(raw):
		d.Wrong("/columns", "invalid_text", "columns is not valid Unicode text.")
	default:
		d.columns = new(intake.Columns)
		eachMember(raw, func(heading string, name []byte) {
			if name[0] != '"' {
				d.Wrong("/columns"+problem.Pointer(heading), "wrong_type", "A column must be a string.")
				return
			}
			d.columns.Add(heading, unquote(name), d)
		})
	}
	return nil
}

// formLines adds the recipients of a file that has one in each line, as JSON.
func (d *decoder) formLines(value io.Reader) error {
	lines := bufio.NewScanner(withoutMark(value))
	lines.Buffer(nil, maxRecipientJSON)
	d.SetColumns(nil)
	defer d.SetRow(0)
	for row := 1; lines.Scan(); row++ {
		d.SetRow(row)
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 {
			continue
		}
		if !json.Valid(line) {
			at := d.Count()
			d.Wrong("/to/"+strconv.Itoa(at), "wrong_type", "Recipient %d, counted from 0, is not one line of JSON.", at)
			if err := d.add(&intake.Recipient{Flawed: true}); err != nil {
				return err
			}
			continue
		}
		if err := d.add(d.jsonRecipient(line)); err != nil {
			return err
		}
	}
	if errors.Is(lines.Err(), bufio.ErrTooLong) {
		return valueTooLarge("/to/" + strconv.Itoa(d.Count()))
	}
	return formError(lines.Err())
}

// withoutMark returns a reader without the byte order mark at the beginning, which some editors write and RFC 8259,
// section 8.1, lets us ignore.
func withoutMark(r io.Reader) io.Reader {
	b := bufio.NewReaderSize(r, 16)
	if start, _ := b.Peek(len(byteOrderMark)); string(start) == byteOrderMark { // Read returns the error
		_, _ = b.Discard(len(byteOrderMark)) // it is buffered
	}
	return b
}

const byteOrderMark = "\ufeff"

// formError is badForm for errors; nil stays nil.
func formError(err error) error {
	if err == nil {
		return nil
	}
	return badForm(err)
}

// hashedPart returns a reader of a part. When the part was read, hash adds it to the hash of the request. The raw body
// cannot be hashed: a client that repeats the request may choose another boundary.
func (d *decoder) hashedPart(part *multipart.Part) (value io.Reader, hash func()) {
	if d.hash == nil {
		return part, func() {}
	}
	h := sha256.New()
	return io.TeeReader(part, h), func() {
		// A hash never fails.
		_, _ = fmt.Fprintf(d.hash, "%q %x\n", part.FormName(), h.Sum(nil))
		if part.FormName() == "attachments" {
			_, _ = fmt.Fprintf(d.hash, "%q %q %q\n", part.FileName(), part.Header.Get("Content-Type"),
				part.Header.Get("Content-ID"))
		}
	}
}

// badForm returns the error for a form that could not be read.
func badForm(err error) error {
	var refused *service.Error
	if errors.As(err, &refused) { // by the reader of attachments
		return refused
	}
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		return bodyTooLarge(tooLarge.Limit)
	}
	return service.Fail(service.Malformed, "bad_form",
		"The form could not be read: it is truncated or not encoded correctly.")
}

// formField decodes one field. An empty field counts as absent.
func (d *decoder) formField(name string, value io.Reader) error {
	if !slices.Contains(intake.FieldNames, name) {
		d.unknown(name)
		return nil
	}
	if name == "to" {
		return d.formRecipients(value) // may be repeated
	}
	if d.again(name) {
		d.Wrong(problem.Pointer(name), "repeated", "%s is repeated.", name)
		return nil
	}
	raw, err := io.ReadAll(io.LimitReader(value, d.ContentLeft()+1))
	if err != nil {
		return badForm(err)
	}
	if err := d.AddContent(len(raw)); err != nil {
		return err
	}
	text := string(raw)
	switch {
	case text == "":
	case !utf8.ValidString(text):
		d.Unreadable(name)
		d.Wrong(problem.Pointer(name), "invalid_text", "%s is not valid UTF-8.", name)
	default:
		d.formValue(name, text)
	}
	return nil
}

func (d *decoder) formValue(name, value string) {
	here := "/" + name
	field, about := d.Batch.Field(name)
	switch into := field.(type) {
	case *string:
		*into = value
	case *bool:
		*into = d.formFlag(name, value)
	case **bool:
		*into = new(d.formFlag(name, value))
	case **intake.Window:
		if value = strings.TrimSpace(value); value == noWindow {
			value = `"` + noWindow + `"`
		}
		if json.Valid([]byte(value)) {
			*into = jsonWindow(d, here, []byte(value))
		} else {
			d.Wrong(here, "wrong_type", "send_window must be none, or JSON: an object {from, to, weekdays, time_zone}.")
		}
	case *[]models.Header, *map[string]string:
		if raw := []byte(strings.TrimSpace(value)); json.Valid(raw) {
			d.jsonObject(name, raw, into)
		} else {
			d.Wrong(here, "wrong_type", "%s must be a JSON object.", name)
		}
	case *[]string:
		if name == replyTo {
			*into, d.Batch.OneText = []string{value}, true
			return
		}
		*into = splitList(value, name == "cc" || name == "bcc", about.Most())
	default:
		d.Wrong(here, "unknown_field", "Send attachments as JSON or as parts of a multipart form.")
	}
}

func (d *decoder) formFlag(name, value string) bool {
	on, err := strconv.ParseBool(value)
	if err != nil {
		d.Wrong("/"+name, "wrong_type", "%s must be true or false.", name)
	}
	return on
}

// splitList returns the first elements of a list, which are separated by commas.
func splitList(value string, mailboxes bool, most int) []string {
	if mailboxes {
		list := intake.SplitAddresses(value)
		return list[:min(len(list), most)]
	}
	list := []string{}
	for element := range strings.SplitSeq(value, ",") {
		if element = strings.TrimSpace(element); element != "" && len(list) < most {
			list = append(list, element)
		}
	}
	return list
}

// maxFormRecipient is more bytes than any valid mailbox has.
const maxFormRecipient = 4096

// formRecipients adds the mailboxes of a comma-separated list. Commas inside quotes, comments and angle brackets do not
// separate.
func (d *decoder) formRecipients(value io.Reader) error {
	r := bufio.NewReaderSize(value, 4<<10)
	var b strings.Builder
	var l intake.Separator
	for {
		c, err := r.ReadByte()
		end := errors.Is(err, io.EOF)
		if err != nil && !end {
			return badForm(err)
		}
		if end || l.Separates(c) {
			if s := strings.TrimSpace(b.String()); s != "" {
				if err := d.addText(s); err != nil {
					return err
				}
			}
			if end {
				return nil
			}
			b.Reset()
			continue
		}
		if b.Len() < maxFormRecipient {
			b.WriteByte(c)
		} else if b.Len() == maxFormRecipient && c != ' ' {
			b.WriteByte('\x00') // makes the truncated mailbox invalid
		}
	}
}

// addText adds a recipient that has only an address.
func (d *decoder) addText(email string) error {
	d.recipient = intake.Recipient{Email: email}
	return d.add(&d.recipient)
}
