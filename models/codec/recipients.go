package codec

import (
	"fmt"

	"github.com/safedelivr/safedelivr/models"
)

// EncodeRecipients returns the stored form of a chunk's recipients.
func EncodeRecipients(rs []models.Recipient) []byte {
	n := 8
	for i := range rs {
		n += rs[i].Size() + 4
	}
	f := fields{b: make([]byte, 0, n)}
	list(&f, &rs, recipientFields)
	return Pack(f.b)
}

// DecodeRecipients reverses EncodeRecipients.
func DecodeRecipients(raw []byte) (rs []models.Recipient, err error) {
	b, err := Unpack(raw)
	if err == nil {
		err = readAll(b, func(f *fields) { list(f, &rs, recipientFields) })
	}
	if len(rs) > models.MaxChunkRecipients {
		return nil, fmt.Errorf("%w: %d recipients in a chunk", models.ErrInvalid, len(rs))
	}
	return rs, err
}

// AppendRecipient appends the binary form of r to b.
func AppendRecipient(b []byte, r *models.Recipient) []byte {
	f := fields{b: b}
	recipientFields(&f, r)
	return f.b
}

// ReadRecipient reads a recipient, in the form of AppendRecipient, from the front of b.
func ReadRecipient(b []byte) (r models.Recipient, rest []byte, err error) {
	f := fields{reads: true, s: string(b)}
	if recipientFields(&f, &r); f.bad {
		return models.Recipient{}, b, fmt.Errorf("%w: recipient is cut off", models.ErrInvalid)
	}
	return r, b[f.n:], nil
}

func recipientFields(f *fields, r *models.Recipient) {
	text(f, &r.Email)
	text(f, &r.Name)
	f.texts(&r.Vars)
	f.texts(&r.Metadata)
	list(f, &r.Headers, func(f *fields, h *models.Header) {
		text(f, &h.Name)
		text(f, &h.Value)
	})
	text(f, &r.ClientID)
}
