package service

import (
	"context"
	"slices"
	"strings"

	"github.com/safedelivr/safedelivr/models"
)

// noneToTry is the warning of a batch.try that changes nothing.
const noneToTry = "No mail of this batch waits for another attempt."

// counted reports whether the recipients that a command reaches are counted before it is given. A command that reaches
// none is not given.
func counted(do models.CommandKind) bool { return sendsAgain(do) || do == models.TryBatch }

// toTry counts the recipients of a batch that wait for another attempt: those that were tried and that no provider has.
func toTry(ctx context.Context, s *Service, b *models.Batch) (int, error) {
	counts := make([]int, b.Chunks)
	err := s.eachChunk(ctx, b, models.ID{}, func(ctx context.Context, n int) error {
		chunk := b.ID.Chunk(n)
		entries, err := s.store.Ledger(ctx, chunk) // usually enough: a new chunk has no attempt
		if err != nil || !slices.ContainsFunc(entries, func(e models.Entry) bool { return e.Kind == models.Attempt }) {
			return err
		}
		entries, facts, err := s.store.Record(ctx, chunk)
		if err != nil {
			return err
		}
		v := models.Resolve(b.ChunkSize(n), entries, facts)
		counts[n] = v.Where(func(_ int, st *models.Status) bool { return st.Waiting() && st.Tried() }).Len()
		return nil
	})
	return total(counts), err
}

// warnOfSuspended adds a warning if every provider that a batch may use is suspended. A suspended provider is tried
// only when its suspension ends.
func warnOfSuspended(ctx context.Context, s *Service, b *models.Batch, out *BatchControlResult) {
	w, err := s.Mail.Waiting(ctx)
	if err != nil || !out.Changed {
		return
	}
	if until := w.Suspended(b); len(until) > 0 {
		out.warn("Its providers are suspended, so it waits for the first of them: " + strings.Join(until, ", ") + ".")
	}
}
