package submission

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/emersion/go-smtp"
	"github.com/google/uuid"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/intake"
	"github.com/safedelivr/safedelivr/service/mailparse"
	"github.com/safedelivr/safedelivr/service/rawmail"
)

// message is a message while it is taken.
type message struct {
	*session
	envelope

	in     *intake.Intake
	digest string // of the bytes
}

// take reads a message and stores it.
//
// It keeps the message in the spool until it is complete, and reads it only then. So a slow client takes no memory for
// texts, and the number of messages that do is bounded.
func (m *message) take(r io.Reader) (models.ID, error) {
	ctx, cancel := context.WithCancel(m.ctx)
	defer cancel()
	end, _, err := m.server.svc.Limits.Admit(ctx, m.who)
	if err != nil {
		return models.ID{}, err
	}
	defer end()
	m.in = m.server.svc.NewIntake(ctx, m.who)
	defer m.in.Close()
	raw := m.in.NewSpooled()
	defer raw.Close()
	if err := m.receive(r, raw); err != nil {
		return models.ID{}, err
	}
	defer m.conn.watch(cancel)()
	defer time.AfterFunc(storeTime, cancel).Stop()
	select {
	case m.server.turns <- struct{}{}:
		defer func() { <-m.server.turns }()
	case <-time.After(turnTime):
		return models.ID{}, errBusy
	case <-ctx.Done():
		return models.ID{}, ctx.Err()
	}
	complete, err := raw.Since(0).Reader()
	if err != nil {
		return models.ID{}, err
	}
	return m.store(ctx, complete)
}

// receive keeps the bytes of a message.
func (m *message) receive(r io.Reader, raw io.Writer) error {
	sum, b := sha256.New(), &body{Reader: r}
	_, err := io.CopyBuffer(io.MultiWriter(raw, sum), b, make([]byte, 8<<10))
	m.digest = hex.EncodeToString(sum.Sum(nil))
	secure, isTLS := m.smtp.Conn().(*tls.Conn)
	_, chunks := r.(*io.PipeReader)
	own := (*smtp.SMTPError)(nil)
	switch {
	case err == nil && chunks && isTLS && m.conn.cutOff(secure):
		return errCutOff
	case b.err == nil || b.err == io.EOF: //nolint:errorlint // a reader returns it itself
		return err // of the spool
	case b.err == smtp.ErrDataReset: //nolint:errorlint // go-smtp returns it itself
		return smtp.ErrDataReset
	case errors.Is(b.err, smtp.ErrTooLongLine):
		return errLongLine // go-smtp closes the connection
	case errors.Is(b.err, smtp.ErrDataTooLarge):
		return m.server.tooLarge()
	case errors.As(b.err, &own):
		return own
	}
	m.conn.ended.Store(true)
	return errCutOff
}

// body notes the error of a reader.
type body struct {
	io.Reader
	err error
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (n int, err error) {
	n, b.err = b.Reader.Read(p)
	return n, b.err
}

// store stores a message that has arrived.
func (m *message) store(ctx context.Context, r io.Reader) (models.ID, error) {
	mail, err := rawmail.Read(m.in, r)
	if err != nil {
		return models.ID{}, err
	}
	var id models.ID
	err = m.server.replays.Once(ctx, m.who.User, m.repeat(mail), func(repeat service.Repeat) (err error) {
		id, err = m.accept(ctx, mail, repeat)
		return err
	})
	return id, err
}

// accept stores a message that was read.
func (m *message) accept(ctx context.Context, mail *mailparse.Mail, repeat service.Repeat) (models.ID, error) {
	id := mail.MessageID
	if id == "" {
		id = uuid.NewSHA1(uuid.Nil, []byte(m.who.User+" "+repeat.Key)).String() +
			mail.From.Email[strings.LastIndexByte(mail.From.Email, '@'):]
	}
	rawmail.SetMessageID(m.in, id)
	if mail.Stream == "broadcast" {
		m.in.Batch.Lane = string(models.Bulk)
	}
	if err := rawmail.Recipients(m.in, mail, m.to); err != nil {
		return models.ID{}, err
	}
	if mail.TestMode {
		return models.ID{}, m.server.svc.NewTrial(m.who).Check(ctx, m.in)
	}
	a, _, err := m.server.svc.Accept(ctx, m.who, m.in, repeat)
	return a.ID, err
}

// repeat identifies the message. A client that got no answer sends it again: with the same bytes, or with the same key.
// Equal messages without a Message-ID can be meant, unless the client left before the first was answered.
func (m *message) repeat(mail *mailparse.Mail) service.Repeat {
	slices.Sort(m.to)
	m.to = slices.Compact(m.to)
	envelope := fmt.Sprintf("%q %q", m.from, m.to)
	if key := mail.IdempotencyKey; key != "" { // its bytes may differ: clients write the date anew
		return service.Repeat{Key: key, Route: "SMTP key", Hash: sum(envelope, mail.From.Email, mail.Subject)}
	}
	repeat := service.Repeat{Route: "SMTP", Hash: sum(envelope, m.digest)}
	if mail.MessageID != "" {
		repeat.Key = repeat.Hash
	}
	return repeat
}

// sum returns a hash of texts.
func sum(texts ...string) string {
	h := sha256.Sum256(fmt.Appendf(nil, "%q", texts))
	return hex.EncodeToString(h[:])
}
