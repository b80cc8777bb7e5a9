package events

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/consumers/dispatch"
	"github.com/safedelivr/safedelivr/consumers/jobs"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/softbounce"
	"github.com/safedelivr/safedelivr/models/suppression"
)

const (
	softLease    = "soft_bounces"
	softLeaseTTL = time.Minute
	softPage     = 500       // addresses of a user whose mail is searched together
	softPause    = time.Hour // longest pause before it is looked again at mail that is on its way
)

// SoftDecider decides about the addresses with soft bounces. Its methods may be called concurrently.
type SoftDecider struct {
	cfg          Config
	log          *slog.Logger
	store        Store
	chunks       *dispatch.Chunks
	suppressions *suppression.Lists
}

// NewSoftDecider returns a SoftDecider.
func NewSoftDecider(cfg Config, store Store, chunks *dispatch.Chunks, lists *suppression.Lists) *SoftDecider {
	return &SoftDecider{cfg: cfg, log: cfg.Logger, store: store, chunks: chunks, suppressions: lists}
}

// Run calls Decide until ctx ends. One worker at a time does so.
func (d *SoftDecider) Run(ctx context.Context) {
	if d.cfg.SoftBounces <= 0 {
		return
	}
	runner := jobs.Runner{Store: d.store, Worker: d.cfg.Worker, Log: d.log}
	runner.Run(ctx, &jobs.Job{Lease: softLease, TTL: softLeaseTTL, Every: d.cfg.SoftBouncePoll,
		Doing: "decide about addresses whose mail bounced several times", Round: d.Decide})
}

// Decide suppresses the addresses that have enough soft bounces, unless mail to them was
// delivered after the first of these. It may be called by several workers at once, and again. An
// error about one user does not stop the decisions about others.
func (d *SoftDecider) Decide(ctx context.Context, now time.Time) error {
	var failed []error
	for shard := range softbounce.Shards {
		byUser, err := softbounce.DueOf(ctx, d.store, shard, now)
		if err != nil {
			return err
		}
		for user, due := range byUser {
			for some := range slices.Chunk(due, softPage) {
				if _, err := d.store.Lease(ctx, softLease, d.cfg.Worker, softLeaseTTL); err != nil {
					return err
				}
				err := d.decide(ctx, user, some, now)
				if err == nil {
					err = softbounce.Done(ctx, d.store, shard, some)
				}
				if err != nil {
					failed = append(failed, fmt.Errorf("user %s: %w", user, err))
				}
			}
		}
	}
	return errors.Join(failed...)
}

// suspect is an address with soft bounces. Its record is what is left of it.
type suspect struct {
	softbounce.Record
	email     string              // of the mails; empty: they were not looked at
	onItsWay  bool                // one of the mails may still be delivered
	delivered time.Time           // when mail was delivered after the first bounce; zero: it was not
	listed    *models.Suppression // the entry for soft bounces; nil: none
}

// newest returns the newest bounce.
func (s *suspect) newest() *softbounce.Bounce { return &s.Bounces[len(s.Bounces)-1] }

// decide decides about some addresses of a user. It sets when it is decided about those with mail that is on
// its way.
func (d *SoftDecider) decide(ctx context.Context, user string, due []softbounce.Due, now time.Time) error {
	all, err := d.suspects(ctx, user, due, now)
	if err != nil {
		return err
	}
	for _, s := range all {
		if err := d.lookAtMails(ctx, s); err != nil {
			return err
		}
	}
	if err := d.findDeliveries(ctx, user, all, now); err != nil {
		return err
	}
	var add []models.Suppression
	for h, s := range all {
		if s.onItsWay {
			i := slices.IndexFunc(due, func(d softbounce.Due) bool { return d.Hash == h })
			due[i].Later = now.Add(min(max(now.Sub(s.newest().At)/2, d.cfg.SoftBouncePoll), softPause))
			continue
		}
		if s.After(s.delivered); len(s.Bounces) >= d.cfg.SoftBounces {
			add = append(add, d.entry(s, now)...)
		} else if err := softbounce.Keep(ctx, d.store, user, s.Record); err != nil {
			return err
		}
	}
	if len(add) == 0 {
		return nil
	}
	return d.suppressions.Add(ctx, user, add...)
}

// suspects returns addresses with their records, without what is too old to be known completely and
// what came before the address was removed from the list.
func (d *SoftDecider) suspects(
	ctx context.Context, user string, due []softbounce.Due, now time.Time,
) (map[models.AddressHash]*suspect, error) {
	hashes := make([]models.AddressHash, len(due))
	for i := range due {
		hashes[i] = due[i].Hash
	}
	records, err := softbounce.Records(ctx, d.store, user, hashes)
	if err != nil {
		return nil, err
	}
	listed, err := d.store.SuppressionsOf(ctx, user, hashes...)
	if err != nil {
		return nil, err
	}
	all := make(map[models.AddressHash]*suspect, len(records))
	for _, r := range records {
		r.After(now.Add(-d.cfg.KeepContent))
		r.Bounces = r.Bounces[max(0, len(r.Bounces)-d.cfg.SoftBounces):] // there were more if the number was lowered
		all[r.Hash] = &suspect{Record: r}
	}
	for i := range listed {
		e, s := &listed[i], all[listed[i].Hash]
		if s == nil || e.Reason != models.SoftBounce || e.Category != "" {
			continue
		}
		if s.listed = e; e.Removed {
			s.After(e.At)
		}
	}
	return all, nil
}

// lookAtMails looks at the mails of a suspect, the newest first. It removes the bounces of mails that were
// delivered through another provider, and of those whose address was removed.
func (d *SoftDecider) lookAtMails(ctx context.Context, s *suspect) error {
	if len(s.Bounces) < d.cfg.SoftBounces {
		return nil
	}
	for i := len(s.Bounces) - 1; i >= 0; i-- {
		log := s.Bounces[i].Log
		rs, view, err := d.resolved(ctx, log.ChunkID())
		if err != nil {
			return err
		}
		r := log.Recipient()
		switch {
		case r > len(rs) || rs[r-1].Erased() || view.Status(r).State == models.Success:
			s.Bounces = slices.Delete(s.Bounces, i, i+1)
		case view.Status(r).State.Open():
			s.onItsWay = true
			return nil
		default:
			s.email = rs[r-1].Email
		}
	}
	return nil
}

// resolved returns the recipients of a chunk and what is known of them; nil if the chunk cannot be read any more.
func (d *SoftDecider) resolved(ctx context.Context, chunk models.ID) ([]models.Recipient, *models.View, error) {
	rs, err := recipientsOf(ctx, d.store, chunk)
	if err == nil && len(rs) > 0 {
		var entries []models.Entry
		var facts []models.Fact
		if entries, facts, err = d.store.Record(ctx, chunk); err == nil {
			return rs, models.Resolve(len(rs), entries, facts), nil
		}
	}
	if err != nil {
		_, err = d.chunks.SkipCorrupt(chunk, err)
	}
	return nil, nil, err
}

// entry returns the entry to be added for an address. It has the time of the newest
// bounce, so that the order of reports does not matter. An entry that lasts longer is not replaced;
// it is added again, because the worker that stored it may have been killed before its mark was.
func (d *SoftDecider) entry(s *suspect, now time.Time) []models.Suppression {
	last := s.newest()
	e := models.NewSuppression(s.email, models.SoftBounce, models.FromEvent, last.At)
	e.Log, e.By, e.Expires = last.Log, last.Provider, e.At.Add(d.cfg.SoftBounceExpiry)
	e.Why = fmt.Sprintf("%d mails in a row; the last one: %s", len(s.Bounces), last.Reason.Words())
	if s.listed != nil && s.listed.InEffect(now) && s.listed.Email != "" &&
		(s.listed.Expires.IsZero() || s.listed.Expires.After(e.Expires)) {
		e = *s.listed
	}
	if !e.InEffect(now) {
		return nil
	}
	return []models.Suppression{e}
}

// findDeliveries sets when mail to addresses of a user was delivered after their first bounce. The
// mail may have been accepted some days before, because providers go on trying that long.
func (d *SoftDecider) findDeliveries(
	ctx context.Context, user string, all map[models.AddressHash]*suspect, now time.Time,
) error {
	open := map[uint32][]*suspect{}
	from := now
	for _, s := range all {
		if !s.onItsWay && len(s.Bounces) >= d.cfg.SoftBounces {
			mark := models.Fingerprint(s.email)
			open[mark] = append(open[mark], s)
			from = models.EarlierOf(from, s.Bounces[0].At)
		}
	}
	if len(open) == 0 {
		return nil
	}
	for hour, err := range hoursOf(ctx, d.store, user, from.Add(-matchAge), now.Add(maxSkew)) {
		if err != nil {
			return err
		}
		if err := d.findInHour(ctx, user, hour, open); err != nil {
			return err
		}
	}
	return nil
}

// findInHour looks at the mail of a user that was accepted in an hour.
func (d *SoftDecider) findInHour(
	ctx context.Context, user string, hour time.Time, open map[uint32][]*suspect,
) error {
	chunks, _, err := inHour(ctx, d.store, user, hour, open)
	if err != nil {
		return err
	}
	for chunk, some := range chunks {
		some = slices.DeleteFunc(some, func(s *suspect) bool { return !s.delivered.IsZero() })
		if len(some) == 0 {
			continue
		}
		if err := d.findInChunk(ctx, chunk, some); err != nil {
			return err
		}
	}
	return nil
}

// findInChunk looks at the mail of a chunk.
func (d *SoftDecider) findInChunk(ctx context.Context, chunk models.ID, some []*suspect) error {
	recipients, view, err := d.resolved(ctx, chunk)
	if err != nil {
		return err
	}
	for i := range recipients {
		for _, s := range some {
			if !strings.EqualFold(recipients[i].Email, s.email) {
				continue
			}
			view.EachTry(i+1, func(t *models.Try) {
				if t.Verdict == models.VerdictDelivered && !t.At.Before(s.Bounces[0].At) {
					s.delivered = models.LaterOf(s.delivered, t.At)
				}
			})
		}
	}
	return nil
}
