package models

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"net/url"
	"slices"
	"strings"
)

// Fingerprint returns a short case-insensitive hash of an address. Different addresses
// may have the same one, so a match must be checked against the recipients.
func Fingerprint(address string) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(strings.ToLower(address))) // never fails
	return h.Sum32()
}

// NewAddressIndex returns the fingerprints of the addresses of a chunk's recipients, and of
// their domains with the @ before them.
func NewAddressIndex(chunk ID, rs []Recipient) AddressIndex {
	marks := make([]uint32, 0, len(rs)+1)
	domains := map[string]bool{}
	for i := range rs {
		if rs[i].Erased() {
			continue
		}
		marks = append(marks, Fingerprint(rs[i].Email))
		if domain := DomainOf(rs[i].Email); !domains[domain] {
			domains[domain] = true
			marks = append(marks, Fingerprint("@"+domain))
		}
	}
	slices.Sort(marks)
	b := make([]byte, 0, 4*len(marks))
	for _, m := range marks {
		b = binary.BigEndian.AppendUint32(b, m)
	}
	return AddressIndex{Chunk: chunk, Fingerprints: b}
}

// MayContain reports whether an address with this fingerprint may be among the
// recipients.
func (p *AddressIndex) MayContain(mark uint32) bool {
	lo, hi := 0, len(p.Fingerprints)/4
	for lo < hi {
		mid := (lo + hi) / 2
		switch m := binary.BigEndian.Uint32(p.Fingerprints[4*mid:]); {
		case m == mark:
			return true
		case m < mark:
			lo = mid + 1
		default:
			hi = mid
		}
	}
	return false
}

// ErasedAddress replaces an erased address in texts.
const ErasedAddress = "erased@erased.invalid"

// Erased reports whether the address of the recipient was erased. Nothing is sent to it.
func (r *Recipient) Erased() bool { return r.Email == "" }

// EraseRecipients removes address, name, variables, metadata and header fields of the recipients with an address,
// in any case. It returns their numbers.
func EraseRecipients(rs []Recipient, address string) (erased Set) {
	for i := range rs {
		if strings.EqualFold(rs[i].Email, address) {
			rs[i] = Recipient{}
			erased.Add(i + 1)
		}
	}
	return erased
}

// ErasedRecipients returns the numbers of the recipients whose address was erased.
func ErasedRecipients(rs []Recipient) (erased Set) {
	for i := range rs {
		if rs[i].Erased() {
			erased.Add(i + 1)
		}
	}
	return erased
}

// Erase replaces an address in the texts of the entry. It reports whether there was any.
func (e *Entry) Erase(address string) bool { return eraseAll(address, &e.Because, &e.Detail) }

// Erase replaces an address in the texts of the fact. It reports whether there was any.
func (f *Fact) Erase(address string) (changed bool) {
	if f.Outcome != nil {
		for i := range f.Outcome.Parts {
			changed = eraseAll(address, &f.Outcome.Parts[i].Text) || changed
		}
	}
	for i := range f.Events {
		changed = eraseAll(address, &f.Events[i].Text) || changed
	}
	return changed
}

// Erase replaces an address in the bodies of the entry. It reports whether there was any.
func (i *Inbox) Erase(address string) (changed bool) {
	for k := range i.Posts {
		body := string(i.Posts[k].Body)
		if eraseAll(address, &body) {
			i.Posts[k].Body, changed = []byte(body), true
		}
	}
	return changed
}

// Rejection says why a recipient of a request was left out of its batch.
type Rejection struct {
	Index   int    `json:"index"`            // of the recipient in the request, from 0
	Row     int    `json:"row,omitempty"`    // line of its file on which the recipient begins, from 1
	Column  string `json:"column,omitempty"` // heading of the column with the mistake
	Pointer string `json:"pointer"`          // JSON pointer of the mistake
	Code    string `json:"code"`
	Detail  string `json:"detail"`
}

// The rejections of a batch are stored as pieces of an attachment with this name in place of a
// hash: lists in JSON, each of RejectionsInPiece but the last.
const (
	RejectedPieces    = "rejected"
	RejectionsInPiece = 200
)

// Rejections returns a piece of the rejections of a batch. Errors: those of Piece, and ErrDamaged.
func Rejections(ctx context.Context, s AttachmentStore, batch ID, number int) (rs []Rejection, err error) {
	raw, err := s.Piece(ctx, batch, RejectedPieces, number)
	if err != nil {
		return nil, fmt.Errorf("rejections of %s: %w", batch, err)
	}
	if err := json.Unmarshal(raw, &rs); err != nil {
		return nil, fmt.Errorf("rejections of %s: %w: %w", batch, ErrDamaged, err)
	}
	return rs, nil
}

func eraseAll(address string, texts ...*string) (changed bool) {
	for _, t := range texts {
		if s := EraseText(*t, address); s != *t {
			*t, changed = s, true
		}
	}
	return changed
}

// EraseText returns text with ErasedAddress in place of an address, in any case, plain or as
// in a form. Longer addresses that contain the address stay.
func EraseText(text, address string) string {
	forms := []string{address, url.QueryEscape(address), strings.ReplaceAll(address, "@", "%40")}
	slices.Sort(forms)
	for _, form := range slices.Compact(forms) {
		text = eraseForm(text, lowerASCII(form))
	}
	return text
}

func eraseForm(text, form string) string {
	if form == "" {
		return text
	}
	var out strings.Builder
	lower := lowerASCII(text) // as long as text
	from := 0
	for at := 0; ; {
		i := strings.Index(lower[at:], form)
		if i < 0 {
			break
		}
		i += at
		end := i + len(form)
		at = end
		if !beginsAddress(lower, i) || !endsAddress(lower, end) {
			at = i + 1
			continue
		}
		out.WriteString(text[from:i])
		out.WriteString(ErasedAddress)
		from = end
	}
	if from == 0 {
		return text
	}
	out.WriteString(text[from:])
	return out.String()
}

// beginsAddress reports whether what precedes i is no part of an address: another
// character, or an escape of JSON or a form.
func beginsAddress(s string, i int) bool {
	return i == 0 || !inAddress(s[i-1]) ||
		i >= 2 && s[i-2] == '\\' || i >= 3 && s[i-3] == '%' || i >= 6 && s[i-6] == '\\' && s[i-5] == 'u'
}

// endsAddress reports whether what follows is no part of the domain. A dot may end a
// sentence.
func endsAddress(s string, end int) bool {
	if end < len(s) && s[end] == '.' {
		end++
	}
	return end == len(s) || s[end] != '-' && !alphanumeric(s[end])
}

func inAddress(c byte) bool { return alphanumeric(c) || strings.IndexByte("!#$%*+-.^_~", c) >= 0 }

func alphanumeric(c byte) bool { return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c >= 0x80 }

// lowerASCII returns s with the letters A to Z in lower case.
func lowerASCII(s string) string {
	b := []byte(s)
	for i, c := range b {
		if c >= 'A' && c <= 'Z' {
			b[i] = c + 'a' - 'A'
		}
	}
	return string(b)
}
