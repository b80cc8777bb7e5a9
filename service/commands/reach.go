package commands

import (
	"context"
	"errors"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
)

// maxChunksNamed is the number of chunks that a command names. A command that reaches more
// chunks applies to all chunks of its batch.
const maxChunksNamed = 1000

// reach says which recipients a retry or release sends again, by the commands known when they were counted.
type reach struct {
	recipients int
	chunks     []int // numbers of their chunks, ascending
	pending    bool  // workers have not applied an earlier retry or release yet
	newest     int   // number of the newest retry or release of the batch
}

// newestRelease returns the number of the newest retry or release of a batch, or 0.
func newestRelease(rule *control.BatchRule) int {
	if n := len(rule.Releases); n > 0 {
		return rule.Releases[n-1].Number
	}
	return 0
}

// releaseReach counts the recipients that a try, retry or release would send. It leaves
// out those of earlier commands that workers have not applied yet.
func (s *Commands) releaseReach(
	ctx context.Context, rules *control.Rules, b *models.Batch, c *models.Command,
) (reach, error) {
	if c.Kind == models.TryBatch {
		n, err := s.toTry(ctx, b)
		return reach{recipients: n}, err
	}
	rule := rules.Batch(b)
	out := reach{newest: newestRelease(&rule)}
	counts, pending := make([]int, b.Chunks), make([]bool, b.Chunks)
	err := s.eachChunk(ctx, b, c.Log, func(ctx context.Context, n int) error {
		v, err := s.endedView(ctx, b, n)
		if v == nil || err != nil {
			return err
		}
		earlier := rule.Pending(b.ID.Chunk(n), v.Entries)
		pending[n] = len(earlier) > 0
		who, err := s.withAddress(ctx, rules, b.ID.Chunk(n), control.Released(v, c).Minus(releasedByAny(v, earlier)))
		counts[n] = who.Len()
		return err
	})
	for n, count := range counts {
		if count > 0 {
			out.recipients += count
			out.chunks = append(out.chunks, n)
		}
	}
	out.pending = slices.Contains(pending, true)
	return out, err
}

// releasedBy counts the recipients that a retry or release of the command log sends again.
func (s *Commands) releasedBy(
	ctx context.Context, rules *control.Rules, b *models.Batch, c *models.Command,
) (int, error) {
	rule := rules.Batch(b)
	counts := make([]int, b.Chunks)
	err := s.eachChunk(ctx, b, c.Log, func(ctx context.Context, n int) error {
		v, err := s.endedView(ctx, b, n)
		if v == nil || err != nil || !c.Reaches(b.ID.Chunk(n)) {
			return err
		}
		pending := rule.Pending(b.ID.Chunk(n), v.Entries)
		if i := slices.IndexFunc(pending, func(p models.Command) bool { return p.Number == c.Number }); i >= 0 {
			who, err := s.withAddress(ctx, rules, b.ID.Chunk(n), control.Released(v, c).Minus(releasedByAny(v, pending[:i])))
			counts[n] = who.Len()
			return err
		}
		for i := range v.Entries { // the first entry that contains the command
			if e := &v.Entries[i]; e.Kind == models.Release && e.Command >= c.Number {
				counts[n] = e.Recipients.Len()
				return nil
			}
		}
		return nil
	})
	return total(counts), err
}

// withAddress returns those of some recipients of a chunk whose address was not erased.
func (s *Commands) withAddress(
	ctx context.Context, rules *control.Rules, chunk models.ID, who models.Set,
) (models.Set, error) {
	if who.Empty() || rules.Erasures() == 0 {
		return who, nil
	}
	rs, err := s.Store.Recipients(ctx, chunk)
	if errors.Is(err, models.ErrNotFound) {
		return who, nil
	}
	return who.Minus(models.ErasedRecipients(rs)), err
}

// releasedByAny returns the recipients that any of the commands sends again.
func releasedByAny(v *models.View, commands []models.Command) models.Set {
	var out models.Set
	for i := range commands {
		out = out.Or(control.Released(v, &commands[i]))
	}
	return out
}

// endedView returns the state of a chunk, or nil if no recipient of it can be released because none has ended.
func (s *Commands) endedView(ctx context.Context, b *models.Batch, n int) (*models.View, error) {
	chunk := b.ID.Chunk(n)
	entries, err := s.Store.Ledger(ctx, chunk) // usually enough: most chunks have no ending
	if err != nil || !slices.ContainsFunc(entries, func(e models.Entry) bool { return e.Kind == models.Ending }) {
		return nil, err
	}
	entries, facts, err := s.Store.Record(ctx, chunk)
	if err != nil {
		return nil, err
	}
	return models.Resolve(b.ChunkSize(n), entries, facts), nil
}

// eachChunk calls f with the number of each chunk of a batch, some at a time, or only with that of a log's chunk.
func (s *Commands) eachChunk(
	ctx context.Context, b *models.Batch, log models.ID, f func(ctx context.Context, n int) error,
) error {
	if !log.IsZero() {
		return f(ctx, log.ChunkNumber())
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(8)
	for n := range b.Chunks {
		g.Go(func() error { return f(ctx, n) })
	}
	return g.Wait()
}

// unfinished counts recipients that have not ended.
type unfinished struct {
	inFlight int // of calls that may be running
	unsent   int // of no call, or of calls that no provider accepted; cancelled ones count
}

// countUnfinished counts the recipients that a command reaches that are in flight, and those that are unsent if it
// changed whether they are sent. It reads the ledger of every chunk, because a summary without queued logs may be older
// than a release.
func (s *Commands) countUnfinished(ctx context.Context, b *models.Batch, done *Result) (unfinished, error) {
	unsent := done.Changed && !counted(done.Command)
	flying, waiting := make([]int, b.Chunks), make([]int, b.Chunks)
	err := s.eachChunk(ctx, b, done.LogID, func(ctx context.Context, n int) error {
		if done.Command == models.RescheduleBatch && n >= b.OwnFrom() {
			return nil // its times stay
		}
		entries, err := s.Store.Ledger(ctx, b.ID.Chunk(n)) // usually enough: most chunks have no running call
		if err != nil {
			return err
		}
		waiting[n] = b.ChunkSize(n)
		running := runningCalls(entries)
		if len(entries) == 0 || len(running) == 0 && !unsent {
			return nil
		}
		entries, facts, err := s.Store.Record(ctx, b.ID.Chunk(n))
		if err != nil {
			return err
		}
		for i := range facts {
			delete(running, facts[i].Key)
		}
		for _, count := range running {
			flying[n] += count
		}
		if unsent {
			v := models.Resolve(b.ChunkSize(n), entries, facts)
			waiting[n] = v.Where(func(_ int, st *models.Status) bool {
				return st.Waiting() || st.State == models.Cancelled
			}).Len()
		}
		return nil
	})
	return unfinished{inFlight: total(flying), unsent: total(waiting)}, err
}

// runningCalls maps the key of the answer to each call whose time is not over to the number of its recipients.
func runningCalls(ledger []models.Entry) map[string]int {
	now, running := time.Now(), map[string]int{}
	for i := range ledger {
		if e := &ledger[i]; e.CallEnds.After(now) {
			running[models.OutcomeKey(e.Number)] = e.Recipients.Len()
		}
	}
	return running
}

func total(counts []int) int {
	sum := 0
	for _, n := range counts {
		sum += n
	}
	return sum
}

// toTry counts the recipients of a batch that wait for another attempt: those that were tried and that no provider has.
func (s *Commands) toTry(ctx context.Context, b *models.Batch) (int, error) {
	counts := make([]int, b.Chunks)
	err := s.eachChunk(ctx, b, models.ID{}, func(ctx context.Context, n int) error {
		chunk := b.ID.Chunk(n)
		entries, err := s.Store.Ledger(ctx, chunk) // usually enough: a new chunk has no attempt
		if err != nil || !slices.ContainsFunc(entries, func(e models.Entry) bool { return e.Kind == models.Attempt }) {
			return err
		}
		entries, facts, err := s.Store.Record(ctx, chunk)
		if err != nil {
			return err
		}
		v := models.Resolve(b.ChunkSize(n), entries, facts)
		counts[n] = v.Where(func(_ int, st *models.Status) bool { return st.Waiting() && st.Tried() }).Len()
		return nil
	})
	return total(counts), err
}

// countInFlight sets the number of recipients in flight: of the chunk if the command was about a log, otherwise of the
// batch. For a command that changes which recipients are sent for the first time, it also sets the number of those. If
// they cannot be counted, it adds a warning.
func (s *Commands) countInFlight(ctx context.Context, b *models.Batch, out *Result) {
	byState := !counted(out.Command)
	n, err := s.countUnfinished(ctx, b, out)
	if err != nil {
		s.Log.Warn("cannot count the recipients of a command", "batch_id", b.ID.String(), "err", err)
		out.warn(uncountedWarning)
		return
	}
	out.InFlight = &n.inFlight
	if byState {
		out.Recipients = new(int)
		if out.Changed {
			*out.Recipients = n.unsent
		}
	}
}
