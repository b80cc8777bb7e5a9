package service

import (
	"context"
	"errors"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/intake"
	"github.com/safedelivr/safedelivr/service/people"
	"github.com/safedelivr/safedelivr/service/quota"
	"github.com/safedelivr/safedelivr/service/templates"
)

// quotas takes amounts from the limits of a caller, or says whether they would be taken.
type quotas interface {
	Take(ctx context.Context, who Caller, amounts []quota.Amount) (giveBack func(), err error)
}

// takeQuota takes batches with recipients and bytes from the quotas of the caller. If they are not stored after
// all, giveBack returns them.
func takeQuota(
	ctx context.Context, q quotas, who Caller, recipients, batches, bytes int64,
) (giveBack func(), err error) {
	giveBack, err = q.Take(ctx, who, []quota.Amount{
		{Limit: models.RecipientsPerHour, N: recipients},
		{Limit: models.RecipientsPerDay, N: recipients},
		{Limit: models.BatchesPerDay, N: batches},
		{Limit: models.StoredBatches, N: batches},
		{Limit: models.StoredBytes, N: bytes},
	})
	return giveBack, people.LimitError(err)
}

// takeBatch takes a batch from the quotas of the caller. It becomes bulk if it was urgent and is over the limit of
// urgent mail. If it is not stored after all, giveBack returns it.
func takeBatch(
	ctx context.Context, q quotas, who Caller, b *models.Batch, in *intake.Intake,
) (giveBack func(), err error) {
	all, err := takeQuota(ctx, q, who, int64(b.Recipients), 1, in.Size(b))
	if err != nil {
		return nil, err
	}
	urgent, err := takeLane(ctx, q, who, b)
	if err != nil {
		all()
		return nil, err
	}
	return func() { all(); urgent() }, nil
}

// takeLane counts the recipients of an urgent batch in the hours in which they may leave. Over the limit of its caller
// the batch becomes bulk; everything else that was decided because it was urgent stays.
func takeLane(ctx context.Context, q quotas, who Caller, b *models.Batch) (giveBack func(), err error) {
	if b.Lane != models.Urgent {
		return func() {}, nil
	}
	giveBack, err = q.Take(ctx, who, urgentAmounts(b, time.Now()))
	if e, over := errors.AsType[*quota.Exceeded](err); over {
		b.Lane, b.LaneLimit = models.Bulk, e.Limit
		return func() {}, nil
	}
	return giveBack, people.LimitError(err)
}

// urgentAmounts returns how many recipients of an urgent batch may leave in each hour.
func urgentAmounts(b *models.Batch, now time.Time) (out []quota.Amount) {
	hours := map[time.Time]int64{}
	for n := range b.Chunks {
		hours[b.ScheduleOf(n).MayLeave(now, false).UTC().Truncate(time.Hour)] += int64(b.ChunkSize(n))
	}
	for at, n := range hours {
		out = append(out, quota.Amount{Limit: models.UrgentRecipientsPerHour, N: n, At: at})
	}
	return out
}

// NewIntake returns an empty request for a batch of the caller. When ctx ends, reading and checking end. The caller
// must close it.
func (s *Service) NewIntake(ctx context.Context, who Caller) *intake.Intake {
	c := s.intakeOf(ctx, who)
	return intake.New(ctx, &c)
}

// intakeOf returns the limits and defaults of a request of the caller.
func (s *Service) intakeOf(ctx context.Context, who Caller) intake.Config {
	c := s.intake
	c.Spooling = s.Limits.Spooler(ctx, who)
	c.Template = func(ref, language string) (*templates.Filler, error) {
		return s.Templates.Use(ctx, who.User, ref, language)
	}
	c.Defaults = func() (models.SendDefaults, error) {
		rules, err := s.Audit.Rules(ctx)
		if err != nil {
			return models.SendDefaults{}, err
		}
		return rules.Defaults(who.User), nil
	}
	work := s.cfg.Priority.Work(who.User)
	c.Enter = func() (func(), error) { return work.Enter(ctx) }
	return c
}

// maxAnnounced is the number of batches that are announced when a user is resumed.
const maxAnnounced = 100

// announceNewest announces the newest unfinished batches of a user, so that they go out at
// once. The agenda finds the others.
func (s *Service) announceNewest(ctx context.Context, user string) {
	batches, err := s.store.Batches(ctx, user, models.ID{}, maxAnnounced)
	if err != nil {
		s.log.Warn("cannot announce the batches of a resumed user; the agenda announces them later",
			"user_id", user, "err", err)
		return
	}
	for i := range batches {
		b := &batches[i]
		if sum, _, err := s.Mail.Total(ctx, b); err == nil && !b.Damaged && b.StateOf(sum, time.Now()) != models.BatchDone {
			s.announce.batch(b.ID, b.Chunks, b.Lane)
		}
	}
}
