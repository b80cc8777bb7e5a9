// Package report reads the reports about mail that come by mail: of its delivery (RFC 3464), and of a complaint about it
// (RFC 5965). Anyone can send one, so it never fails, and says nothing about who sent it.
package report

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"io"
	"mime"
	"mime/multipart"
	"mime/quotedprintable"
	"net/textproto"
	"slices"
	"strings"
)

// MaxSize is how many bytes of a mail need to be read, at most. A report comes before the mail that it is about, which
// may be cut off.
const MaxSize = 256 << 10

const (
	maxDepth      = 6    // of parts in parts
	maxParts      = 50   // of a mail
	maxFields     = 2000 // lines of a header
	maxValue      = 4 << 10
	maxRecipients = 100 // of a report
)

// A Report is what a mail reports. The names of all fields are in canonical form.
type Report struct {
	Header     textproto.MIMEHeader   // of the mail that brought it
	Complaint  bool                   // it is a feedback report, and not one of delivery
	About      textproto.MIMEHeader   // fields of the whole report
	Recipients []textproto.MIMEHeader // fields of each recipient, in a report of delivery
	Original   textproto.MIMEHeader   // the header of the mail that it is about; empty if it is not there
}

// Read returns the first report in a mail. It reports false if there is none, or if it is not complete.
func Read(mail []byte) (Report, bool) {
	var w walk
	w.message(bytes.NewReader(mail), 0)
	return w.Report, w.found
}

// walk is a way through the parts of a mail.
type walk struct {
	Report
	found bool
	parts int
}

// message walks through a mail.
func (w *walk) message(mail io.Reader, depth int) {
	r := bufio.NewReader(mail)
	header, err := fields(r)
	if w.Header = header; err == nil {
		w.part(header, r, depth)
	}
}

// The types of parts.
var (
	statuses  = []string{"message/delivery-status", "message/global-delivery-status"}
	originals = []string{"message/rfc822", "message/global", "message/rfc822-headers", "text/rfc822-headers",
		"message/global-headers"}
)

// part walks through a part of a mail.
func (w *walk) part(header textproto.MIMEHeader, body io.Reader, depth int) {
	if w.parts++; w.parts > maxParts || depth > maxDepth {
		return
	}
	kind, params, _ := mime.ParseMediaType(header.Get("Content-Type"))
	switch {
	case strings.HasPrefix(kind, "multipart/") && params["boundary"] != "":
		parts := multipart.NewReader(body, params["boundary"])
		for p, err := parts.NextRawPart(); err == nil; p, err = parts.NextRawPart() {
			w.part(p.Header, p, depth+1)
		}
	case !w.found && (kind == "message/feedback-report" || slices.Contains(statuses, kind)):
		w.Complaint = kind == "message/feedback-report"
		w.report(decoded(header, body))
	case w.found && w.Original == nil && slices.Contains(originals, kind):
		w.Original, _ = fields(bufio.NewReader(decoded(header, body)))
	case !w.found && kind == "message/rfc822": // the report was forwarded
		w.message(decoded(header, body), depth+1)
	}
}

// report reads the fields of a report.
func (w *walk) report(body io.Reader) {
	text, err := io.ReadAll(body)
	if err != nil {
		return // it is cut off
	}
	r := bufio.NewReader(bytes.NewReader(text))
	w.About, err = fields(r)
	for w.Recipients = nil; err == nil && len(w.Recipients) < maxRecipients; {
		var one textproto.MIMEHeader
		if one, err = fields(r); len(one) > 0 {
			w.Recipients = append(w.Recipients, one)
		}
	}
	w.found = len(w.About) > 0
}

// decoded returns the body of a part without its transfer encoding.
func decoded(header textproto.MIMEHeader, body io.Reader) io.Reader {
	switch strings.ToLower(strings.TrimSpace(header.Get("Content-Transfer-Encoding"))) {
	case "base64":
		return base64.NewDecoder(base64.StdEncoding, body)
	case "quoted-printable":
		return quotedprintable.NewReader(body)
	}
	return body
}

// fields reads fields to the next empty line. It leaves out lines that are no field. The error is io.EOF at the end.
func fields(r *bufio.Reader) (textproto.MIMEHeader, error) {
	out := textproto.MIMEHeader{}
	for last, n := "", 0; ; n++ {
		line, err := r.ReadString('\n')
		text := strings.TrimSpace(line)
		name, value, ok := strings.Cut(text, ":")
		switch all := out[last]; {
		case text == "" && len(out) > 0 && err == nil:
			return out, nil
		case text == "" || n > maxFields:
		case line[0] == ' ' || line[0] == '\t':
			if len(all) > 0 && len(all[len(all)-1]) < maxValue {
				all[len(all)-1] += " " + text
			}
		case ok:
			last = textproto.CanonicalMIMEHeaderKey(strings.TrimSpace(name))
			out[last] = append(out[last], strings.TrimSpace(value))
		default:
			last = ""
		}
		if err != nil {
			return out, err
		}
	}
}

// Value returns a value without its type, like the address in "rfc822; ann@example.com".
func Value(field string) string {
	if kind, value, ok := strings.Cut(field, ";"); ok && !strings.ContainsAny(strings.TrimSpace(kind), " \t@") {
		field = value
	}
	return strings.Trim(strings.TrimSpace(field), "<>")
}
