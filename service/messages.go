package service

import (
	"context"
	"errors"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/changes"
	"github.com/safedelivr/safedelivr/service/intake"
)

// PutMessages carries out records about messages: read decodes a record, and fill fills a request with the content of
// the first of some records and the recipients of all. After an error a part of them may be carried out. A repeat of
// the request does the rest and changes nothing else.
func (s *Service) PutMessages(
	ctx context.Context, who Caller, rs *intake.Records, r RecordReader,
) ([]changes.Result, error) {
	if err := s.Limits.CheckDisk(ctx, who.User); err != nil && !r.DryRun {
		return nil, err
	}
	sender := &messageSender{s, who, time.Now(), s.Limits}
	if r.DryRun {
		sender.quotas = s.Limits.NewTrial()
	}
	c := changes.Changes{
		Store:  s.store,
		Sender: sender,
		User:   who.User,
		Strict: r.Strict,
		DryRun: r.DryRun,
		Wait:   s.cfg.MessageWait,
		Read:   r.Read,

		MaxRecipients: s.cfg.Recipients,
		Begin: func(rs []*changes.Record) (*intake.Intake, error) {
			b := s.NewIntake(ctx, who)
			b.Permit()
			b.Batch.AllowDuplicates = true // messages with different ids are different messages
			err := r.Fill(b, rs)
			if err != nil {
				b.Close()
			}
			return b, err
		},
	}
	out, err := c.Do(ctx, rs)
	var e *Error
	if errors.As(err, &e) && e.Code == "store_unavailable" {
		e.Detail = "The store cannot be reached. A part of the records may be carried out; repeat the request to do the rest."
	}
	return out, err
}

// RecordReader reads the records of a request.
type RecordReader struct {
	Strict bool // change nothing if a record is rejected
	DryRun bool // change nothing, and say what each would do
	Read   func(raw []byte) *changes.Record
	Fill   func(in *intake.Intake, rs []*changes.Record) error
}

// messageSender implements changes.Sender for a request.
type messageSender struct {
	svc    *Service
	who    Caller
	at     time.Time // of the request
	quotas quotas
}

// Check implements changes.Sender.
func (m *messageSender) Check(ctx context.Context, in *intake.Intake) (models.Batch, error) {
	return m.svc.check(ctx, m.who, in, m.at)
}

// Take implements changes.Sender.
func (m *messageSender) Take(
	ctx context.Context, recipients, batches int, bytes int64,
) (giveBack func(), err error) {
	return takeQuota(ctx, m.quotas, m.who, int64(recipients), int64(batches), bytes)
}

// Send implements changes.Sender.
func (m *messageSender) Send(ctx context.Context, b *models.Batch, in *intake.Intake) (abandoned bool, err error) {
	b.Via = m.who.Via
	giveBack, err := takeLane(ctx, m.quotas, m.who, b)
	if err != nil {
		return false, err
	}
	if err = m.svc.storeBatch(ctx, b, in); err != nil {
		giveBack()
	}
	switch {
	case errors.Is(err, models.ErrNotFound):
		return true, nil
	case err != nil:
		return false, storeError("store messages", err)
	}
	m.svc.accepted(b)
	return false, nil
}

// Changed implements changes.Sender.
func (m *messageSender) Changed(chunk models.ID, lane models.Lane) {
	m.svc.announce.chunk(chunk, lane)
}
