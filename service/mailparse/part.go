package mailparse

import (
	"cmp"
	"errors"
	"fmt"
	"html"
	"io"
	"maps"
	"mime/multipart"
	"net/url"
	"path"
	"regexp"
	"slices"
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

var (
	validType = regexp.MustCompile(`^[a-z0-9!#$&^_.+-]{1,63}/[a-z0-9!#$&^_.+-]{1,63}$`)
	validID   = regexp.MustCompile(`^[A-Za-z0-9_.@+-]{1,128}$`)
	method    = regexp.MustCompile(`^[A-Za-z-]{1,32}$`)
	extension = regexp.MustCompile(`^[a-z0-9]{2,5}$`)
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
	a := Attachment{Filename: name, Type: kind}
	if m := params["method"]; kind == "text/calendar" && method.MatchString(m) {
		a.Type += "; method=" + strings.ToUpper(m)
	}
	if disposition != file || at.kind == "related" {
		a.ContentID = p.contentID(strings.Trim(clean(raw8(h["content-id"])), "<> "))
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
	text = strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(strings.TrimPrefix(text, "\ufeff"))
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
		n, err := body.Read(p.buffer[:])
		if n > 0 && w == nil {
			p.files++
			a.Filename = fileName(a.Filename, a.Type, p.files)
			var err error
			if w, err = p.open(a); err != nil {
				return err
			}
		}
		if n > 0 {
			if _, err := w.Write(p.buffer[:n]); err != nil {
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

// fileName returns a name for the attachment with a number, from that in the message.
func fileName(name, kind string, number int) string {
	const most = 255
	name = strings.NewReplacer("/", "-", `\`, "-", ";", "-").Replace(name)
	if strings.Trim(name, ".- ") == "" {
		kind, _, _ = strings.Cut(kind, ";")
		_, end, _ := strings.Cut(kind, "/")
		end = cmp.Or(map[string]string{"calendar": "ics", "jpeg": "jpg", "plain": "txt", "rfc822": "eml"}[end], end)
		if !extension.MatchString(end) {
			end = "bin"
		}
		return fmt.Sprintf("attachment-%d.%s", number, end)
	}
	if end := path.Ext(name); len(name) > most {
		end = end[:min(len(end), 16)]
		name = strings.ToValidUTF8(name[:most-len(end)], "") + strings.ToValidUTF8(end, "")
	}
	return name
}

// contentID returns the ID of an inline attachment: that of the message, or another if that is unusable or repeated.
func (p *reader) contentID(sent string) string {
	if sent == "" {
		return ""
	}
	id := sent
	for n := p.parts; p.used[id] || !validID.MatchString(id); n++ {
		id = fmt.Sprintf("inline-%d", n)
	}
	p.used[id] = true
	if _, repeated := p.ids[sent]; !repeated {
		p.ids[sent] = id
	}
	return id
}

// newIDs replaces content IDs in HTML by those of the attachments.
func (p *reader) newIDs(text string) string {
	var pairs []string
	sent := slices.SortedFunc(maps.Keys(p.ids), func(a, b string) int { return cmp.Or(len(b)-len(a), cmp.Compare(a, b)) })
	for _, id := range sent { // the longest first: one may begin another
		if p.ids[id] != id && len(id) <= 250 {
			for _, form := range []string{id, html.EscapeString(id), url.PathEscape(id)} {
				pairs = append(pairs, "cid:"+form, "cid:"+p.ids[id])
			}
		}
	}
	return strings.NewReplacer(pairs...).Replace(text)
}
