package rollup

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/safedelivr/safedelivr/consumers/dispatch"
	"github.com/safedelivr/safedelivr/internal/priority"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// Check counts everything anew: every chunk from its recipients, ledger and facts,
// every batch from its chunks, every day of a user from its batches; and compares it
// with what is stored and shown.

// CheckOptions say what is checked.
type CheckOptions struct {
	User   string        // only this one's; empty: all
	From   time.Time     // batches accepted in [From, To); zero: all
	To     time.Time     // zero: until now
	Repair bool          // renew what is wrong
	Settle time.Duration // how long a difference may last while mail flows; default 15 seconds

	Found    func(Difference)
	Progress func(telemetry.Recount)
}

// Difference is a sum that is not what a recount says.
type Difference struct {
	What    string         `json:"what"` // chunk, batch or day
	User    string         `json:"user"`
	ID      string         `json:"id"` // of the chunk or batch; the date of a day
	Shown   models.Summary `json:"shown"`
	Counted models.Summary `json:"counted"`
	Damaged string         `json:"damaged,omitempty"` // what cannot be read, or is missing; then nothing was counted
}

// String says it in a line.
func (d Difference) String() string {
	if d.Damaged != "" {
		return fmt.Sprintf("%s %s of user %s: %s", d.What, d.ID, d.User, d.Damaged)
	}
	text := fmt.Sprintf(
		"%s %s of user %s: shown %s; counted %s",
		d.What,
		d.ID,
		d.User,
		d.said(&d.Shown),
		d.said(&d.Counted),
	)
	if ahead(&d.Shown, &d.Counted) && d.What == "chunk" {
		text += fmt.Sprintf(
			"; shown was made from %d entries and facts, of which %d are there",
			d.Shown.Version,
			d.Counted.Version,
		)
	}
	return text
}

// said says a sum, with those of its parts that are not the same in the other.
func (d *Difference) said(s *models.Summary) string {
	text := fmt.Sprintf(
		"accepted %d = queued %d + success %d + failed %d + cancelled %d",
		s.Accepted,
		s.Queued,
		s.Success,
		s.Failed,
		s.Cancelled,
	)
	part := func(name string, n, shown, counted int64) {
		if shown != counted {
			text += fmt.Sprintf(", %s %d", name, n)
		}
	}
	part("unconfirmed", s.Unconfirmed, d.Shown.Unconfirmed, d.Counted.Unconfirmed)
	part("rerouted", s.Rerouted, d.Shown.Rerouted, d.Counted.Rerouted)
	part("possible duplicates", s.MayDouble, d.Shown.MayDouble, d.Counted.MayDouble)
	part("doubled", s.Doubled, d.Shown.Doubled, d.Counted.Doubled)
	if !maps.Equal(d.Shown.Reasons, d.Counted.Reasons) {
		text += fmt.Sprintf(", reasons %v", s.Reasons)
	}
	if !maps.Equal(d.Shown.Providers, d.Counted.Providers) {
		text += fmt.Sprintf(", providers %+v", s.Providers)
	}
	return text
}

const (
	checkPage   = 50
	checkAtOnce = 8
	settleTime  = 15 * time.Second
)

// check is one run.
type check struct {
	s     *Rollup
	o     CheckOptions
	out   telemetry.Recount
	whole bool // Recipients are read, too
}

// Check runs through everything and reports each difference.
func (s *Rollup) Check(ctx context.Context, o CheckOptions) (telemetry.Recount, error) {
	ctx = priority.WithLow(ctx)
	if o.Found == nil {
		o.Found = func(Difference) {}
	}
	if o.Progress == nil {
		o.Progress = func(telemetry.Recount) {}
	}
	if o.Settle <= 0 {
		o.Settle = settleTime
	}
	if o.To.IsZero() {
		o.To = time.Now().Add(time.Hour)
	}
	c := &check{s: s, o: o, whole: true}
	users, err := s.store.Users(ctx)
	if err != nil {
		return c.out, err
	}
	for i := range users {
		if o.User != "" && users[i].ID != o.User {
			continue
		}
		c.out.Users++
		if err := c.user(ctx, users[i].ID); err != nil {
			return c.out, err
		}
	}
	return c.out, nil
}

// user checks a user's batches, newest first, and each day when it is complete.
func (c *check) user(ctx context.Context, user string) error {
	var day time.Time
	var total models.Summary
	var seconds map[time.Time]models.Summary // of the day alone: there may be many
	var partly bool                          // a batch of the day cannot be read
	counted := func() error {
		if seconds == nil || partly || day.Before(c.o.From) ||
			day.AddDate(0, 0, 1).After(c.o.To) && !c.o.To.After(time.Now()) {
			return nil // only a part of it was counted
		}
		c.out.Days++
		return c.day(ctx, user, day, total, seconds)
	}
	for before := models.MinID(c.o.To); ; {
		page, err := c.s.store.Batches(ctx, user, before, checkPage)
		if err != nil {
			return err
		}
		for i := range page {
			b := &page[i]
			if b.Created().Before(c.o.From) {
				page = page[:i]
				break
			}
			if at := models.DayOf(b.Created()); !at.Equal(day) {
				if err := counted(); err != nil {
					return err
				}
				day, total, seconds, partly = at, models.Summary{}, map[time.Time]models.Summary{}, false
			}
			if b.Damaged {
				c.damaged("batch", b, b.ID, models.ErrDamaged)
				partly = true
				continue
			}
			sum, err := c.batch(ctx, b)
			if err != nil {
				return err
			}
			total.Add(&sum)
			addAt(seconds, b.Created().Truncate(time.Second), &sum)
		}
		c.o.Progress(c.out)
		if len(page) < checkPage {
			return counted()
		}
		before = page[len(page)-1].ID
	}
}

func addAt(sums map[time.Time]models.Summary, at time.Time, s *models.Summary) {
	sum := sums[at]
	sum.Add(s)
	sums[at] = sum
}

// batch recounts a batch and compares every chunk's summary.
func (c *check) batch(ctx context.Context, b *models.Batch) (models.Summary, error) {
	stored := map[int]models.Summary{}
	for s, err := range c.s.store.Summaries(ctx, b.User, b.ID, 0) {
		if errors.Is(err, models.ErrDamaged) {
			c.damaged("batch", b, b.ID, err)
			break // an unread summary differs, and is repaired
		}
		if err != nil {
			return models.Summary{}, err
		}
		stored[s.Chunk.ChunkNumber()] = s.Summary
	}
	counted, unread, missing := make([]models.Summary, b.Chunks), make([]error, b.Chunks), make([]error, b.Chunks)
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(checkAtOnce)
	for n := range b.Chunks {
		g.Go(func() error {
			k, err := c.s.dispatch.Load(gctx, b.ID.Chunk(n))
			switch {
			case err == nil:
				counted[n] = k.View.Summary()
				missing[n], err = c.addressed(gctx, k)
			case errors.Is(err, models.ErrDamaged):
				unread[n], err = err, nil
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return models.Summary{}, err
	}
	var total models.Summary
	for n := range counted {
		shown := stored[n]
		if shown.Accepted == 0 { // Nothing was stored yet: it counts as queued
			shown = models.Summary{
				Accepted: int64(b.ChunkSize(n)),
				Queued:   int64(b.ChunkSize(n)),
				Untried:  int64(b.ChunkSize(n)),
			}
		}
		if unread[n] != nil {
			c.damaged("chunk", b, b.ID.Chunk(n), unread[n])
			counted[n] = shown
		}
		if missing[n] != nil {
			c.damaged("recipients", b, b.ID.Chunk(n), missing[n])
		}
		if !same(&shown, &counted[n]) || ahead(&shown, &counted[n]) {
			sum, err := c.differs(ctx, b, n)
			if err != nil {
				return models.Summary{}, err
			}
			counted[n] = sum
		}
		total.Add(&counted[n])
	}
	c.out.Batches++
	c.out.Chunks += b.Chunks
	c.out.Recipients += int64(b.Recipients)
	if total.Accepted != int64(b.Recipients) || !total.Balanced() {
		c.found(
			Difference{
				What:    "batch",
				User:    b.User,
				ID:      b.ID.String(),
				Shown:   models.Summary{Accepted: int64(b.Recipients)},
				Counted: total,
			},
		)
	}
	return total, nil
}

// addressed reads the recipients of a chunk, where all is checked, and says what is
// wrong with them. Those of an old batch are removed in their time.
func (c *check) addressed(ctx context.Context, k *dispatch.Chunk) (wrong, err error) {
	if !c.whole || k.Batch.Redacted || time.Since(k.Batch.Created()) > c.s.Cfg.KeepContent {
		return nil, nil
	}
	err = c.s.dispatch.LoadRecipients(ctx, k)
	if errors.Is(err, models.ErrNotFound) || errors.Is(err, models.ErrDamaged) || errors.Is(err, models.ErrInvalid) {
		return err, nil
	}
	return nil, err
}

// ahead reports whether a summary was made from more than there is: something that
// was known is gone.
func ahead(shown, counted *models.Summary) bool { return shown.Version > counted.Version }

// differs waits whether a chunk's summary is renewed by itself, as it is while
// mail flows, and reports it if not. It returns the newest recount.
func (c *check) differs(ctx context.Context, b *models.Batch, n int) (models.Summary, error) {
	id := b.ID.Chunk(n)
	since := time.Now() // of the newest change of the record
	version := int64(-1)
	for {
		k, err := c.s.dispatch.Load(ctx, id)
		if err != nil {
			return models.Summary{}, err
		}
		counted := k.View.Summary()
		shown, err := c.shown(ctx, b, n)
		if err != nil || same(&shown, &counted) && !ahead(&shown, &counted) {
			return counted, err
		}
		if counted.Version != version {
			version, since = counted.Version, time.Now()
		}
		if time.Since(since) >= c.o.Settle {
			c.found(Difference{What: "chunk", User: b.User, ID: id.String(), Shown: shown, Counted: counted})
			if c.o.Repair {
				return c.repairChunk(ctx, b, n, &shown)
			}
			return counted, nil
		}
		select {
		case <-time.After(min(time.Second, c.o.Settle/4)):
		case <-ctx.Done():
			return counted, ctx.Err()
		}
	}
}

// repairTries is how often a repair raises the version of what it replaces.
const repairTries = 5

func (c *check) shown(ctx context.Context, b *models.Batch, n int) (models.Summary, error) {
	for s, err := range c.s.store.Summaries(ctx, b.User, b.ID, n) {
		if errors.Is(err, models.ErrDamaged) {
			return models.Summary{}, nil // which it is not
		}
		if err != nil {
			return models.Summary{}, err
		}
		if s.Chunk.ChunkNumber() == n {
			return s.Summary, nil
		}
		break
	}
	size := int64(b.ChunkSize(n))
	return models.Summary{Accepted: size, Queued: size, Untried: size}, nil
}

// day compares the sum of a user's day with a recount, and those below it: where
// one of them is wrong, the next renewal of the day would be.
func (c *check) day(
	ctx context.Context,
	user string,
	day time.Time,
	counted models.Summary,
	seconds map[time.Time]models.Summary,
) error {
	recount := func(ctx context.Context, s models.Span) (models.Summary, error) {
		return c.recountBatches(ctx, user, s.Start, s.Start.Add(s.Level.Length()))
	}
	whole := models.Span{User: user, Level: models.Day, Start: day}
	wrong, err := c.span(ctx, whole, counted, recount)
	for h := day; h.Before(day.AddDate(0, 0, 1)) && !wrong && err == nil; h = h.Add(time.Hour) {
		wrong, err = c.seconds(ctx, user, h, seconds, recount)
	}
	if !wrong && err == nil {
		wrong, err = c.tree(ctx, user, day)
	}
	if !wrong || err != nil || !c.o.Repair {
		return err
	}
	if err := c.repairDay(ctx, user, day); err != nil {
		return err
	}
	if counted, err = recount(ctx, whole); err != nil {
		return err
	}
	shown, err := c.node(ctx, whole)
	if err == nil && same(&shown, &counted) {
		c.out.Repaired++
	}
	return err
}

// seconds compares the sums of the seconds of an hour with a recount.
func (c *check) seconds(ctx context.Context, user string, hour time.Time, counted map[time.Time]models.Summary,
	recount func(context.Context, models.Span) (models.Summary, error)) (wrong bool, err error) {
	nodes, err := c.s.store.Nodes(ctx, user, models.Second, hour, hour.Add(time.Hour))
	if err != nil && !errors.Is(err, models.ErrDamaged) {
		return false, err
	}
	shown := map[time.Time]models.Summary{} // without what cannot be read: it differs
	for i := range nodes {
		shown[nodes[i].Span.Start.UTC()] = nodes[i].Summary
	}
	for at := hour; at.Before(hour.Add(time.Hour)); at = at.Add(time.Second) {
		sum, node := counted[at], shown[at]
		if same(&node, &sum) {
			continue
		}
		bad, err := c.span(ctx, models.Span{User: user, Level: models.Second, Start: at}, sum, recount)
		if err != nil {
			return wrong, err
		}
		wrong = wrong || bad
	}
	return wrong, nil
}

// batchesOf calls f for the batches of a user that were accepted in [from, to).
func (c *check) batchesOf(ctx context.Context, user string, from, to time.Time, f func(*models.Batch) error) error {
	for before := models.MinID(to); ; {
		page, err := c.s.store.Batches(ctx, user, before, checkPage)
		if err != nil {
			return err
		}
		for i := range page {
			if page[i].Created().Before(from) {
				return nil
			}
			if page[i].Damaged {
				return fmt.Errorf("batch %s: %w", page[i].ID, models.ErrDamaged)
			}
			if err := f(&page[i]); err != nil {
				return err
			}
		}
		if len(page) < checkPage {
			return nil
		}
		before = page[len(page)-1].ID
	}
}

// recountBatches sums the chunk summaries of the batches accepted in [from, to).
func (c *check) recountBatches(ctx context.Context, user string, from, to time.Time) (total models.Summary, err error) {
	err = c.batchesOf(ctx, user, from, to, func(b *models.Batch) error {
		var sum models.Summary
		for s, err := range c.s.store.Summaries(ctx, user, b.ID, 0) {
			if err != nil {
				return err
			}
			sum.Add(&s.Summary)
		}
		sum = b.Total(sum)
		total.Add(&sum)
		return nil
	})
	return total, err
}

func (c *check) damaged(what string, b *models.Batch, id models.ID, err error) {
	c.found(Difference{What: what, User: b.User, ID: id.String(), Damaged: err.Error()})
}

func (c *check) found(d Difference) {
	c.out.Differences++
	c.o.Found(d)
}

// same compares what people see of two sums.
func same(a, b *models.Summary) bool {
	return a.Accepted == b.Accepted && a.Queued == b.Queued && a.Success == b.Success && a.Failed == b.Failed && a.Cancelled == b.Cancelled &&
		a.Unconfirmed == b.Unconfirmed && a.Rerouted == b.Rerouted && a.MayDouble == b.MayDouble &&
		a.Doubled == b.Doubled &&
		maps.Equal(a.Reasons, b.Reasons) &&
		maps.Equal(a.Providers, b.Providers)
}
