package events

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/safedelivr/safedelivr/consumers/dispatch"
	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/internal/priority"
	"github.com/safedelivr/safedelivr/models"
)

const (
	// inboxBytes is the maximum size of the posts that are processed together, unless a
	// single entry is larger. Parsed posts are several times as large.
	inboxBytes = 1 << 20
	// inboxRead is the maximum number of entries that are read together.
	inboxRead = 16
)

// inboxReader reads the inbox, and refuses posts that were replayed.
type inboxReader struct {
	log       *slog.Logger
	store     Store
	providers *provider.Set
	observer  Observer
	counts    *counts
}

// read reads entries of up to inboxBytes, and at least one. It returns how many of
// ids they are. The size of an entry is known only after it was read, so it reads
// one entry first, and then as many at once as the largest so far allows.
func (r *inboxReader) read(ctx context.Context, ids []models.ID) (entries []models.Inbox, n int, err error) {
	size, largest := 0, 0
	for k := 1; n < len(ids) && largest <= inboxBytes-size; k = min(2*k, inboxRead, (inboxBytes-size)/max(largest, 1)) {
		part := ids[n:min(n+k, len(ids))]
		some, err := r.entries(ctx, part)
		if err != nil {
			return nil, n, err
		}
		for i := range some {
			own := some[i].Size()
			if size+own > inboxBytes && len(entries) > 0 {
				return entries, n + slices.Index(part, some[i].ID), nil
			}
			size += own
			largest = max(largest, own)
			entries = append(entries, some[i])
		}
		n += len(part)
	}
	return entries, n, nil
}

// entries reads entries. It skips damaged ones and marks them as processed; they stay in
// the inbox, so that a later version can replay them.
func (r *inboxReader) entries(ctx context.Context, ids []models.ID) ([]models.Inbox, error) {
	all, err := r.store.Inbox(ctx, ids...)
	if !errors.Is(err, models.ErrDamaged) && !errors.Is(err, models.ErrNewer) {
		return all, err
	}
	all = all[:0]
	for _, id := range ids {
		one, err := r.store.Inbox(ctx, id)
		if errors.Is(err, models.ErrNewer) {
			r.log.Warn("post is left to a newer process", "post", id.String(), "err", err)
			continue
		}
		if errors.Is(err, models.ErrDamaged) {
			r.counts.skipped.Add(1)
			r.log.Error("post cannot be read; replay it with a version that can", "post", id.String(), "err", err)
			one, err = nil, r.store.InboxDone(ctx, id)
		}
		if err != nil {
			return nil, err
		}
		all = append(all, one...)
	}
	return all, nil
}

// replayToken identifies a replay token of an entry.
type replayToken struct {
	entry models.ID
	token string
}

// replayMarks returns a mark for the first post with each token, and the tokens of the marks.
func (r *inboxReader) replayMarks(entries []models.Inbox) (marks []models.ReplayMark, tokens []replayToken) {
	seen := map[replayToken]bool{}
	for i := range entries {
		in := &entries[i]
		if r.providers.Get(in.Provider) == nil {
			continue
		}
		for k := range in.Posts {
			p := &in.Posts[k]
			t := replayToken{in.ID, p.Replay}
			if seen[t] || p.Replay == "" {
				continue
			}
			seen[t] = true
			group, _, _ := strings.Cut(p.Replay, ".")
			marks = append(marks, models.ReplayMark{
				Group:  in.Provider + "/" + group,
				Key:    in.Provider + "/" + p.Replay,
				Digest: digest(p.Body),
				Entry:  in.ID,
			})
			tokens = append(tokens, t)
		}
	}
	return marks, tokens
}

// dropReplayed removes posts whose token was used before for another body, by an earlier
// entry or by an earlier post of the same entry.
func (r *inboxReader) dropReplayed(ctx context.Context, entries []models.Inbox) error {
	marks, tokens := r.replayMarks(entries)
	if len(marks) == 0 {
		return nil
	}
	digests, err := r.store.GuardReplays(ctx, marks...)
	if err != nil {
		return err
	}
	first := make(map[replayToken]string, len(tokens)) // digest of the first body with a token
	for i, t := range tokens {
		first[t] = digests[i]
	}
	for i := range entries {
		in := &entries[i]
		in.Posts = slices.DeleteFunc(in.Posts, func(p models.Post) bool {
			was, ok := first[replayToken{in.ID, p.Replay}]
			if !ok || was == digest(p.Body) {
				return false
			}
			r.counts.replayed.Add(1)
			r.observer.EventRefused(in.Provider, "replayed")
			r.log.Warn("post refused: its token was used before for another body", "provider", in.Provider)
			return true
		})
	}
	return nil
}

// digest returns the SHA-256 of a body in hexadecimal.
func digest(body []byte) string {
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:])
}

// markSummaries marks the summaries of the chunks with events. The posts are marked as
// processed after all these summaries were stored.
func (q *Processor) markSummaries(ctx context.Context, group *eventGroup) error {
	chunks := 0
	for _, c := range group.byChunk {
		if c.taken {
			chunks++
		}
	}
	if chunks == 0 {
		return q.Store.InboxDone(ctx, group.done...)
	}
	done := group.done // the countdown lives for seconds, and must not keep the group in memory
	countdown := newCountdown(chunks, func() { q.finished.mark(done) })
	for id, c := range group.byChunk {
		if c.taken {
			q.Summaries.Mark(c.user, id, countdown)
		}
	}
	return nil
}

// donePosts collects entries of the inbox that can be marked as processed. Many groups
// add theirs at the same time, when summaries were stored.
type donePosts struct {
	log   *slog.Logger
	store Store
	work  *dispatch.Work

	mu      sync.Mutex
	ids     []models.ID
	marking bool
}

// take returns the collected entries and removes them.
func (d *donePosts) take() (ids []models.ID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	ids, d.ids = d.ids, nil
	d.marking = len(ids) > 0
	return ids
}

// mark marks entries as processed in the background, and retries until that
// succeeds. After a crash they are processed again.
func (d *donePosts) mark(ids []models.ID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ids = append(d.ids, ids...)
	if d.marking {
		return
	}
	d.marking = true
	d.work.Go(func() {
		for ids := d.take(); len(ids) > 0; ids = d.take() {
			for {
				err := d.store.InboxDone(priority.WithLow(d.work.Context()), ids...)
				if err == nil {
					break
				}
				d.log.Warn("cannot mark posts as processed; will retry", "entries", len(ids), "err", err)
				select {
				case <-time.After(2 * time.Second):
				case <-d.work.Context().Done():
					return
				}
			}
		}
	})
}

// newCountdown returns a function whose n-th call runs f.
func newCountdown(n int, f func()) func() {
	var left atomic.Int64
	left.Store(int64(n))
	return func() {
		if left.Add(-1) == 0 {
			f()
		}
	}
}
