package codec

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/safedelivr/safedelivr/models"
)

// EncodeRecipients returns the stored form of a chunk's recipients.
func EncodeRecipients(rs []models.Recipient) []byte {
	n := 8
	for i := range rs {
		n += rs[i].Size() + 4
	}
	b := binary.AppendUvarint(make([]byte, 0, n), uint64(len(rs)))
	for i := range rs {
		b = AppendRecipient(b, &rs[i])
	}
	return Pack(b)
}

// AppendRecipient appends the binary form of r to b.
func AppendRecipient(b []byte, r *models.Recipient) []byte {
	b = appendText(b, r.Email)
	b = appendText(b, r.Name)
	b = appendTexts(b, r.Vars)
	b = appendTexts(b, r.Metadata)
	b = binary.AppendUvarint(b, uint64(len(r.Headers)))
	for _, h := range r.Headers {
		b = appendText(appendText(b, h.Name), h.Value)
	}
	return appendText(b, r.ClientID)
}

func appendTexts(b []byte, texts map[string]string) []byte {
	b = binary.AppendUvarint(b, uint64(len(texts)))
	if len(texts) == 0 {
		return b
	}
	keys := make([]string, 0, 8)
	for k := range texts {
		keys = append(keys, k)
	}
	slices.Sort(keys) // the same recipients always have the same stored form
	for _, k := range keys {
		b = appendText(b, k)
		b = appendText(b, texts[k])
	}
	return b
}

func appendText[T string | []byte](b []byte, s T) []byte {
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
}

// DecodeRecipients reverses EncodeRecipients.
func DecodeRecipients(raw []byte) ([]models.Recipient, error) {
	b, err := Unpack(raw)
	if err != nil {
		return nil, err
	}
	d := textDecoder{s: string(b)}
	n := d.count()
	if n > models.MaxChunkRecipients {
		return nil, fmt.Errorf("%w: %d recipients in a chunk", models.ErrInvalid, n)
	}
	rs := make([]models.Recipient, 0, n)
	for range n {
		rs = append(rs, d.recipient())
	}
	if d.bad || d.s != "" {
		return nil, fmt.Errorf("%w: stored recipients are cut off", models.ErrInvalid)
	}
	return rs, nil
}

// ReadRecipient reads a recipient, in the form of AppendRecipient, from the front of b.
func ReadRecipient(b []byte) (r models.Recipient, rest []byte, err error) {
	d := textDecoder{s: string(b)}
	r = d.recipient()
	if d.bad {
		return models.Recipient{}, b, fmt.Errorf("%w: recipient is cut off", models.ErrInvalid)
	}
	return r, b[len(b)-len(d.s):], nil
}

// textDecoder reads from the front of s. The strings that it returns share the memory
// of s.
type textDecoder struct {
	s   string
	bad bool
}

func (d *textDecoder) recipient() models.Recipient {
	return models.Recipient{
		Email:    d.text(),
		Name:     d.text(),
		Vars:     d.texts(),
		Metadata: d.texts(),
		Headers:  d.headers(),
		ClientID: d.text(),
	}
}

// headers reads a list of header fields, which is nil if it is empty.
func (d *textDecoder) headers() []models.Header {
	n := d.count()
	if n == 0 || d.bad {
		return nil
	}
	all := make([]models.Header, 0, min(n, 16))
	for range n {
		all = append(all, models.Header{Name: d.text(), Value: d.text()})
		if d.bad {
			break
		}
	}
	return all
}

// texts reads a map, which is nil if it is empty.
func (d *textDecoder) texts() map[string]string {
	n := d.count()
	if n == 0 || d.bad {
		return nil
	}
	all := make(map[string]string, n)
	for range n {
		k := d.text()
		all[k] = d.text()
		if d.bad {
			break
		}
	}
	return all
}

// count reads a number of values of at least one byte each.
func (d *textDecoder) count() int {
	v, n := uvarint(d.s)
	if n <= 0 || v > uint64(len(d.s)) {
		d.bad, d.s = true, ""
		return 0
	}
	d.s = d.s[n:]
	return int(v) //nolint:gosec // bounded by len
}

// uvarint is like binary.Uvarint, for a string.
func uvarint(s string) (uint64, int) {
	if s != "" && s[0] < 0x80 {
		return uint64(s[0]), 1
	}
	var head [binary.MaxVarintLen64]byte
	return binary.Uvarint(head[:copy(head[:], s)])
}

func (d *textDecoder) text() string {
	n := d.count()
	if d.bad || n > len(d.s) {
		d.bad = true
		return ""
	}
	t := d.s[:n]
	d.s = d.s[n:]
	return t
}
