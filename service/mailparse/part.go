package mailparse

import (
	"cmp"
	"errors"
	"io"
	"mime/multipart"
	"strings"
)

// place says where a part is.
type place struct {
	depth       int
	kind        string // of the multipart around it: mixed, related, …
	alternative bool   // below a multipart/alternative
	choice      bool   // a part of a multipart/alternative, or of a multipart/related in one
}

const (
	plain  = "text/plain"
	markup = "text/html"
	file   = "attachment"
)

// part reads a part, or the whole message.
func (p *reader) part(h header, body io.Reader, at place) error {
	if p.parts++; p.parts > MaxParts {
		return refuse("too_many_parts", "The message has more than %d parts.", MaxParts)
	}
	kind, params := parameters(h["content-type"])
	disposition, more := parameters(h["content-disposition"])
	name := cmp.Or(more["filename"], params["name"])
	switch known := validType.MatchString(kind); { // RFC 2045, 5.2
	case !known && at.kind == "digest":
		kind = "message/rfc822"
	case !known && name != "":
		kind = "application/octet-stream"
	case !known:
		kind = plain
	}
	switch kind {
	case "multipart/signed", "multipart/encrypted", "application/pkcs7-mime", "application/x-pkcs7-mime":
		return refuse("signed_or_encrypted", "The message is signed or encrypted, which does not survive a provider.")
	case "text/x-amp-html":
		return nil
	}
	if inner, ok := strings.CutPrefix(kind, "multipart/"); ok {
		at.depth++
		at.choice = inner == "alternative" || at.choice && inner == "related"
		at.kind, at.alternative = inner, at.alternative || inner == "alternative"
		return p.multipart(params["boundary"], body, at)
	}
	body = p.decoded(h["content-transfer-encoding"], body)
	if (kind == plain || kind == markup) && disposition != file && (name == "" || at.depth == 0) {
		return p.body(kind, params["charset"], body, at)
	}
	a := Attachment{Filename: name, Type: withMethod(kind, params)}
	if disposition != file || at.kind == "related" {
		a.ContentID = p.files.contentID(ContentID(h["content-id"]))
	}
	return p.attach(a, body)
}

// multipart reads the parts of a multipart. It uses the reader of the standard library: that of go-message takes a line
// --a-b for the end of the boundary a.
func (p *reader) multipart(boundary string, body io.Reader, at place) error {
	if boundary == "" || len(boundary) > 200 {
		return refuse("bad_boundary", "A multipart of the message has no boundary of 1 to 200 bytes.")
	}
	if at.depth > MaxDepth {
		return refuse("too_deep", "The message has more than %d multiparts within each other.", MaxDepth)
	}
	parts := multipart.NewReader(body, boundary)
	for n := 0; ; n++ {
		p.in.limit(MaxHeader + (at.depth+1)*bufferSize)
		part, err := parts.NextRawPart()
		p.in.limit(0)
		switch {
		case err == io.EOF: // and not wrapped, as before the last boundary
			return nil
		case n > 0 && (errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)):
			p.flaw(MissingBoundary)
			return nil
		case err != nil:
			return refuse("bad_multipart", "A multipart of the message has no parts, or a part with a broken header.")
		}
		h, count := header{}, 0
		for name, values := range part.Header {
			h.add(name, values[0])
			if count += len(values); count > MaxFields {
				return errHeaderSize
			}
		}
		if err := p.part(h, part, at); err != nil {
			return err
		}
		if _, err := io.Copy(io.Discard, part); p.ended(err) != nil {
			return err
		}
	}
}

// body reads a text part. The first plain text and the first HTML are the two forms of the mail. A further part is
// appended if all who read the mail see it then. Otherwise it is an attachment.
func (p *reader) body(kind, set string, body io.Reader, at place) error {
	raw, err := io.ReadAll(io.LimitReader(body, int64(p.left)+1))
	if err := p.ended(err); err != nil {
		return err
	}
	text, known := decode(set, raw)
	if !known {
		p.flaw(UnknownCharset)
	}
	if p.left -= max(len(raw), len(text)); p.left < 0 {
		return errTextSize
	}
	if strings.Contains(text, "\x00") {
		return errNUL
	}
	// The mail gem for Ruby before 2.8 encodes the CR of a line, and then ends the line with CR LF.
	text = strings.NewReplacer("\r\r\n", "\n", "\r\n", "\n", "\r", "\n").Replace(strings.TrimPrefix(text, "\ufeff"))
	own, other := &p.text, &p.html
	if kind == markup {
		own, other = other, own
	}
	alone := len(*other) == 0
	switch {
	case len(*own) == 0 && (alone || kind == markup || at.alternative):
		*own = append(*own, text...)
	case text != "" && len(*own) > 0 && !at.choice && (alone || at.alternative):
		*own = append(append(*own, '\n'), text...)
	case text != "":
		return p.attach(Attachment{Type: kind}, strings.NewReader(text))
	}
	return nil
}

// attach gives an attachment to the caller.
func (p *reader) attach(a Attachment, body io.Reader) error {
	var w io.Writer
	for {
		n, err := body.Read(p.in.space.part[:])
		if n > 0 && w == nil {
			p.files.count++
			a.Filename = fileName(a.Filename, a.Type, p.files.count)
			var err error
			if w, err = p.open(a); err != nil {
				return err
			}
		}
		if n > 0 {
			if _, err := w.Write(p.in.space.part[:n]); err != nil {
				return err
			}
		}
		if err != nil {
			if w == nil {
				p.flaw(EmptyAttachment)
			}
			return p.ended(err)
		}
	}
}
