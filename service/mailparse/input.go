package mailparse

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"io"
	"mime/quotedprintable"
	"strings"
	"sync"
)

const bufferSize = 4096

// input reads a message with lines that end in CRLF. It removes a byte order mark at the begin, changes LF and CRs
// before an LF to CRLF, and runs of other CRs to one. A NUL byte is an error.
type input struct {
	r        *bufio.Reader
	left     int // bytes that may be read before the next call of limit, if limited
	limited  bool
	space    *space
	begun    bool
	done     []byte // the part of space.out that is to be read
	cr       bool   // a CR waits for the next byte
	err      error  // after done
	returned error  // err, once Read has returned it
}

// space is the memory in which a message is read. Most messages are much smaller than it.
type space struct {
	raw, part [32 << 10]byte
	out       [2 * 32 << 10]byte // each byte of raw becomes two at most
	quoted    *bufio.Reader      // nil: not needed yet
}

var spaces = sync.Pool{New: func() any { return new(space) }}

// free keeps the space for another message.
func (s *space) free() {
	if s.quoted != nil {
		s.quoted.Reset(nil)
	}
	spaces.Put(s)
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
	if !in.begun {
		in.begun = true
		begin, err := in.r.Peek(3)
		if err != nil && err != io.EOF {
			in.err = err
			return
		}
		if string(begin) == "\ufeff" {
			_, _ = in.r.Discard(3) // never an error: they were read
		}
	}
	n, err := in.r.Read(in.space.raw[:])
	in.err = err
	if nul := bytes.IndexByte(in.space.raw[:n], 0); nul >= 0 {
		n, in.err = nul, errNUL
	}
	out := in.space.out[:0]
	for _, c := range in.space.raw[:n] {
		switch {
		case c == '\r':
			in.cr = true
			continue
		case c == '\n', in.cr:
			out = append(out, '\r')
		}
		in.cr = false
		out = append(out, c)
	}
	in.done = out
}

// decoded returns the bytes of a part without their transfer encoding.
func (p *reader) decoded(encoding string, r io.Reader) io.Reader {
	switch strings.ToLower(strings.TrimSpace(encoding)) {
	case "base64":
		return base64.NewDecoder(base64.RawStdEncoding, &base64Filter{r: r, flaw: func() { p.flaw(BrokenEncoding) }})
	case "quoted-printable":
		space := p.in.space
		if space.quoted == nil {
			space.quoted = bufio.NewReaderSize(nil, 1<<20) // the decoder takes lines that fit into it
		}
		space.quoted.Reset(r)
		return quotedprintable.NewReader(space.quoted)
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
