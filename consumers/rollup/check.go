package rollup

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/safedelivr/safedelivr/consumers/dispatch"
	"github.com/safedelivr/safedelivr/internal/priority"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/feed"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// CheckOptions configure a check.
type CheckOptions struct {
	User   string        // check only this user; empty: all
	From   time.Time     // check batches accepted in [From, To); zero: from the first
	To     time.Time     // zero: until now
	Repair bool          // repair what is wrong
	Settle time.Duration // how long a difference must last to be reported; default 15 seconds

	Found    func(Difference)        // called for each difference
	Progress func(telemetry.Recount) // called now and then
}

const (
	checkPage   = 50
	checkAtOnce = 8
	settleTime  = 15 * time.Second
)

// check is one run of Check or one round of RunChecks.
type check struct {
	s          *Rollup
	o          CheckOptions
	out        telemetry.Recount
	recipients bool // recipients are read, too
	feed       *feed.Writer
	unfed      map[string]bool // users whose feed cannot be read
}

// Check recounts every chunk from its recipients, ledger and facts, every batch from its
// chunks, and every day of a user from its batches. It compares the results with the
// stored sums, and the chunks with their published state, and reports
// each difference.
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
	c := &check{s: s, o: o, recipients: true, feed: feed.NewWriter(s.store), unfed: map[string]bool{}}
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

// dayCount is what was counted of one day of a user.
type dayCount struct {
	day     time.Time
	total   models.Summary
	seconds map[time.Time]models.Summary
	partial bool // a batch of the day cannot be read
}

// add adds the sum of a batch that was accepted at a time.
func (d *dayCount) add(at time.Time, sum *models.Summary) {
	d.total.Add(sum)
	addAt(d.seconds, at.Truncate(time.Second), sum)
}

// addAt adds s to the sum of a time.
func addAt(sums map[time.Time]models.Summary, at time.Time, s *models.Summary) {
	sum := sums[at]
	sum.Add(s)
	sums[at] = sum
}

// user checks a user's batches, newest first, and each day after its last batch. It leaves
// out days whose batches are purged.
func (c *check) user(ctx context.Context, user string) error {
	purged, err := telemetry.LogsPurged(ctx, c.s.store, user)
	if err != nil {
		return err
	}
	defer func(from time.Time) { c.o.From = from }(c.o.From)
	c.o.From = models.LaterOf(c.o.From, purged)
	var count *dayCount // of one day only: a user may have very many seconds
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
			if day := models.DayOf(b.Created()); count == nil || !day.Equal(count.day) {
				if err := c.counted(ctx, user, count); err != nil {
					return err
				}
				count = &dayCount{day: day, seconds: map[time.Time]models.Summary{}}
			}
			if b.Damaged {
				c.damaged("batch", b, b.ID, models.ErrDamaged)
				count.partial = true
				continue
			}
			sum, err := c.batch(ctx, b)
			if err != nil {
				return err
			}
			count.add(b.Created(), &sum)
		}
		c.o.Progress(c.out)
		if len(page) < checkPage {
			return c.counted(ctx, user, count)
		}
		before = page[len(page)-1].ID
	}
}

// counted checks the sums of a day that was counted as a whole.
func (c *check) counted(ctx context.Context, user string, d *dayCount) error {
	if d == nil || d.partial || d.day.Before(c.o.From) ||
		d.day.AddDate(0, 0, 1).After(c.o.To) && !c.o.To.After(time.Now()) {
		return nil
	}
	c.out.Days++
	return c.day(ctx, user, d.day, d.total, d.seconds)
}

// recounted is the recount of one chunk.
type recounted struct {
	sum        models.Summary
	view       models.FeedView
	unreadable error // why the chunk cannot be read
	recipients error // what is wrong with its recipients
}

// batch recounts a batch and compares the summaries of its chunks. It returns the sum of
// the recounts.
func (c *check) batch(ctx context.Context, b *models.Batch) (total models.Summary, err error) {
	stored := map[int]models.Summary{}
	for s, err := range c.s.store.Summaries(ctx, b.User, b.ID, 0) {
		if errors.Is(err, models.ErrDamaged) {
			c.damaged("batch", b, b.ID, err)
			break // the missing summaries differ, and are repaired
		}
		if err != nil {
			return models.Summary{}, err
		}
		stored[s.Chunk.ChunkNumber()] = s.Summary
	}
	chunks, err := c.recountChunks(ctx, b)
	if err != nil {
		return models.Summary{}, err
	}
	for n := range chunks {
		sum, err := c.compare(ctx, b, n, stored[n], &chunks[n])
		if err != nil {
			return models.Summary{}, err
		}
		total.Add(&sum)
	}
	if err := c.fed(ctx, b, chunks); err != nil {
		return models.Summary{}, err
	}
	c.out.Batches++
	c.out.Chunks += b.Chunks
	c.out.Recipients += int64(b.Recipients)
	if total.Accepted != int64(b.Recipients) || !total.Balanced() {
		c.found(Difference{
			What:    "batch",
			User:    b.User,
			ID:      b.ID.String(),
			Shown:   models.Summary{Batches: 1, Accepted: int64(b.Recipients)},
			Counted: total,
		})
	}
	return total, nil
}

// recountChunks recounts the chunks of a batch.
func (c *check) recountChunks(ctx context.Context, b *models.Batch) ([]recounted, error) {
	out := make([]recounted, b.Chunks)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(checkAtOnce)
	for n := range out {
		g.Go(func() error {
			k, err := c.s.chunks.Load(ctx, b.ID.Chunk(n))
			switch {
			case err == nil:
				out[n].sum, out[n].view = k.Summary(), k.View.ForFeed()
				out[n].recipients, err = c.checkRecipients(ctx, k)
			case errors.Is(err, models.ErrDamaged):
				out[n].unreadable, err = err, nil
			}
			return err
		})
	}
	return out, g.Wait()
}

// compare compares the stored summary of a chunk with its recount and reports what is
// wrong. It returns the newest recount.
func (c *check) compare(
	ctx context.Context,
	b *models.Batch,
	n int,
	shown models.Summary,
	chunk *recounted,
) (models.Summary, error) {
	if shown.Accepted == 0 {
		shown = unstored(b, n)
	}
	counted := chunk.sum
	if chunk.unreadable != nil {
		c.damaged("chunk", b, b.ID.Chunk(n), chunk.unreadable)
		counted = shown
	}
	if chunk.recipients != nil {
		c.damaged("recipients", b, b.ID.Chunk(n), chunk.recipients)
	}
	if !same(&shown, &counted) || ahead(&shown, &counted) {
		return c.differs(ctx, b, n)
	}
	return counted, nil
}

// unstored returns the sum of a chunk whose summary was not stored yet: its recipients
// count as queued.
func unstored(b *models.Batch, n int) models.Summary {
	return models.Resolve(b.ChunkSize(n), nil, nil).SummaryOf(b.ID.Chunk(n), b.Groups)
}

// checkRecipients reads the recipients of a chunk and returns what is wrong with them. It
// does nothing in a round, or for a batch whose content is due to be removed.
func (c *check) checkRecipients(ctx context.Context, k *dispatch.Chunk) (wrong, err error) {
	if !c.recipients || k.Batch.Redacted || time.Since(k.Batch.Created()) > c.s.cfg.KeepContent {
		return nil, nil
	}
	err = c.s.chunks.LoadRecipients(ctx, k)
	if errors.Is(err, models.ErrNotFound) || errors.Is(err, models.ErrDamaged) || errors.Is(err, models.ErrInvalid) {
		return err, nil
	}
	return nil, err
}

// differs waits for a chunk's summary to be renewed, as it is while mail flows. If nothing
// changes for as long as Settle, it reports and repairs the difference. It returns the
// newest recount.
func (c *check) differs(ctx context.Context, b *models.Batch, n int) (models.Summary, error) {
	id := b.ID.Chunk(n)
	since := time.Now() // of the newest change of the record
	version := int64(-1)
	for {
		k, err := c.s.chunks.Load(ctx, id)
		if err != nil {
			return models.Summary{}, err
		}
		counted := k.Summary()
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

// shown returns the stored summary of a chunk. It is zero, which is always wrong, if it
// cannot be read.
func (c *check) shown(ctx context.Context, b *models.Batch, n int) (models.Summary, error) {
	for s, err := range c.s.store.Summaries(ctx, b.User, b.ID, n) {
		if errors.Is(err, models.ErrDamaged) {
			return models.Summary{}, nil
		}
		if err != nil {
			return models.Summary{}, err
		}
		if s.Chunk.ChunkNumber() == n {
			return s.Summary, nil
		}
		break
	}
	return unstored(b, n), nil
}

// damaged reports a record that cannot be read.
func (c *check) damaged(what string, b *models.Batch, id models.ID, err error) {
	c.found(Difference{What: what, User: b.User, ID: id.String(), Damaged: err.Error()})
}

// found reports a difference.
func (c *check) found(d Difference) {
	c.out.Differences++
	c.o.Found(d)
}
