package mailparse

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"io"
	"mime/quotedprintable"
	"strings"
)

const bufferSize = 4096

// input reads a message with lines that end in CRLF. It removes a byte order mark at the begin, changes LF and CRs
// before an LF to CRLF, and runs of other CRs to one. A NUL byte is an error.
type input struct {
	r        *bufio.Reader
	left     int // bytes that may be read before the next call of limit, if limited
	limited  bool
	raw, out []byte
	done     []byte // the part of out that is to be read
	cr       bool   // a CR waits for the next byte
	err      error  // after done
	returned error  // err, once Read has returned it
}

// limit lets n bytes be read before its next call. 0 lets all be read.
func (in *input) limit(n int) { in.left, in.limited = n, n > 0 }

// Read implements io.Reader.
func (in *input) Read(p []byte) (int, error) {
	for len(in.done) == 0 && in.err == nil {
		in.fill()
	}
	if in.limited && in.left == 0 {
		in.done, in.err = nil, errHeaderSize
	}
	if len(in.done) == 0 {
		in.returned = in.err
		return 0, in.err
	}
	if in.limited {
		p = p[:min(len(p), in.left)]
		in.left -= min(len(p), len(in.done))
	}
	n := copy(p, in.done)
	in.done = in.done[n:]
	return n, nil
}

// fill reads the next bytes.
func (in *input) fill() {
	if in.raw == nil {
		in.raw, in.out = make([]byte, 32<<10), make([]byte, 0, 64<<10)
		begin, err := in.r.Peek(3)
		if err != nil && err != io.EOF {
			in.err = err
			return
		}
		if string(begin) == "\ufeff" {
			_, _ = in.r.Discard(3) // never an error: they were read
		}
	}
	n, err := in.r.Read(in.raw)
	in.err = err
	if nul := bytes.IndexByte(in.raw[:n], 0); nul >= 0 {
		n, in.err = nul, errNUL
	}
	in.out = in.out[:0]
	for _, c := range in.raw[:n] {
		switch {
		case c == '\r':
			in.cr = true
			continue
		case c == '\n', in.cr:
			in.out = append(in.out, '\r')
		}
		in.cr = false
		in.out = append(in.out, c)
	}
	in.done = in.out
}

// decoded returns the bytes of a part without their transfer encoding.
func (p *reader) decoded(encoding string, r io.Reader) io.Reader {
	switch strings.ToLower(strings.TrimSpace(encoding)) {
	case "base64":
		return base64.NewDecoder(base64.RawStdEncoding, &base64Filter{r: r, flaw: func() { p.flaw(BrokenEncoding) }})
	case "quoted-printable":
		if p.quoted == nil {
			p.quoted = bufio.NewReaderSize(nil, 1<<20) // the decoder takes lines that fit into it
		}
		p.quoted.Reset(r)
		return quotedprintable.NewReader(p.quoted)
	case "", "7bit", "8bit", "binary":
	default:
		p.flaw(UnknownEncoding)
	}
	return r
}

// base64Filter reads the characters of base64 up to the padding, and ignores all others (RFC 2045, 6.8).
type base64Filter struct {
	r      io.Reader
	flaw   func()
	padded bool
}

// Read implements io.Reader.
func (b *base64Filter) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	kept := 0
	for _, c := range p[:n] {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '+', c == '/':
			if b.padded {
				b.flaw()
				continue
			}
			p[kept] = c
			kept++
		case c == '=':
			b.padded = true
		case c != '\r' && c != '\n' && c != ' ' && c != '\t':
			b.flaw()
		}
	}
	return kept, err
}
