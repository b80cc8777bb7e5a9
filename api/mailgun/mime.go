package mailgun

import (
	"crypto/sha256"
	"encoding/hex"
	"io"

	"github.com/safedelivr/safedelivr/api/dialect"
	"github.com/safedelivr/safedelivr/service/intake"
	"github.com/safedelivr/safedelivr/service/mailparse"
	"github.com/safedelivr/safedelivr/service/rawmail"
)

// sendMIME is POST /v3/{domain}/messages.mime: a whole message, for the addresses in to.
func sendMIME(r *dialect.Request) (dialect.Answer, error) {
	m := &message{Request: r, in: r.Service.NewIntake(r.Context(), r.Who)}
	defer m.in.Close()
	var raw *mailparse.Mail
	var err error
	bytes := sha256.New()
	m.form, err = readForm(r, func(field, _, _ string, content io.Reader) (err error) {
		if field == "message" && raw == nil {
			raw, err = rawmail.Read(m.in, io.TeeReader(content, bytes))
		}
		return rawmail.Refused(err)
	})
	if err != nil {
		return dialect.Answer{}, err
	}
	m.Ignore(m.names, known)
	if raw == nil {
		return dialect.Answer{}, malformed("message parameter is missing")
	}
	return m.acceptMIME(raw, hex.EncodeToString(bytes.Sum(nil)))
}

// acceptMIME stores a message. Fields of the form count before those in the message.
func (m *message) acceptMIME(raw *mailparse.Mail, digest string) (dialect.Answer, error) {
	if err := m.readRecipients(); err != nil {
		return dialect.Answer{}, err
	}
	if m.each {
		return dialect.Answer{}, wrong("recipient-variables", "A whole message has no variables.")
	}
	for _, read := range []func(*intake.Batch) error{m.readOptions, m.readMetadata} {
		if err := read(&m.in.Batch); err != nil {
			return dialect.Answer{}, err
		}
	}
	m.id, m.raw = raw.MessageID, raw
	m.hash = m.sum() + digest
	return m.accept()
}
