package events

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/safedelivr/safedelivr/internal/priority"
	"github.com/safedelivr/safedelivr/models"
)

// Posts are read from the inbox, refused where they are replays, and marked as
// worked off when what they came to is stored.

const (
	// InboxBytes is what the posts of the entries that are worked off together
	// come to at most, a single larger entry excepted: taken apart, they are
	// several times as large.
	InboxBytes = 1 << 20
	// inboxRead is how many entries are read together at most.
	inboxRead = 16
)

// ReadInbox reads entries until their posts come to inboxBytes, and says how
// many of ids that were. How large an entry is shows when it is read: so a few
// are read together, the more the smaller they turn out to be, and what does not
// fit any more is left to the next group.
func (q *Processor) ReadInbox(ctx context.Context, ids []models.ID) (entries []models.Inbox, n int, err error) {
	size, largest := 0, 0
	for k := 1; n < len(ids) && largest <= InboxBytes-size; k = min(2*k, inboxRead, (InboxBytes-size)/max(largest, 1)) {
		part := ids[n:min(n+k, len(ids))]
		some, err := q.inbox(ctx, part)
		if err != nil {
			return nil, n, err
		}
		for i := range some {
			own := some[i].Size()
			if size+own > InboxBytes && len(entries) > 0 {
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

// inbox reads entries. One that is damaged is left out: it stays in the inbox, for
// a later version to replay, and is not announced again.
func (q *Processor) inbox(ctx context.Context, ids []models.ID) ([]models.Inbox, error) {
	all, err := q.store.Inbox(ctx, ids...)
	if !errors.Is(err, models.ErrDamaged) {
		return all, err
	}
	all = all[:0]
	for _, id := range ids {
		one, err := q.store.Inbox(ctx, id)
		if errors.Is(err, models.ErrDamaged) {
			q.counts.eventsSkipped.Add(1)
			q.log.Error(
				"a post cannot be read; it stays in the inbox, and can be replayed by a version that can",
				"post",
				id.String(),
				"err",
				err,
			)
			one, err = nil, q.store.InboxDone(ctx, id)
		}
		if err != nil {
			return nil, err
		}
		all = append(all, one...)
	}
	return all, nil
}

// dropReplayed leaves out posts whose token came before with another body: in an
// earlier entry, or earlier in the same.
func (q *Processor) dropReplayed(ctx context.Context, entries []models.Inbox) error {
	type token struct {
		entry  models.ID
		replay string
	}
	var (
		ws    []models.ReplayMark
		asked []token
		first = map[token]string{} // the digest of what came first
	)
	for i := range entries {
		in := &entries[i]
		if q.providers.Get(in.Provider) == nil {
			continue
		}
		for k := range in.Posts {
			p := &in.Posts[k]
			of := token{in.ID, p.Replay}
			if _, ok := first[of]; ok || p.Replay == "" {
				continue
			}
			first[of] = digest(p.Body)
			group, _, _ := strings.Cut(p.Replay, ".")
			ws = append(
				ws,
				models.ReplayMark{
					Group:  in.Provider + "/" + group,
					Key:    in.Provider + "/" + p.Replay,
					Digest: first[of],
					Entry:  in.ID,
				},
			)
			asked = append(asked, of)
		}
	}
	if len(ws) == 0 {
		return nil
	}
	firsts, err := q.store.GuardReplays(ctx, ws...)
	if err != nil {
		return err
	}
	for i, of := range asked {
		first[of] = firsts[i]
	}
	for i := range entries {
		in := &entries[i]
		in.Posts = slices.DeleteFunc(in.Posts, func(p models.Post) bool {
			was, ok := first[token{in.ID, p.Replay}]
			if !ok || was == digest(p.Body) {
				return false
			}
			q.counts.eventsReplayed.Add(1)
			q.observer.EventRefused(in.Provider, "replayed")
			q.log.Warn("post refused: its token came before with another body", "provider", in.Provider)
			return true
		})
	}
	return nil
}

func digest(body []byte) string {
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:])
}

// markSummaries marks the chunks for a new summary; when those are stored, the posts
// are worked off.
func (q *Processor) markSummaries(ctx context.Context, work *eventGroup) error {
	left := 0
	for _, c := range work.byChunk {
		if c.taken {
			left++
		}
	}
	if left == 0 {
		return q.store.InboxDone(ctx, work.done...)
	}
	done := work.done // alone: the countdown outlives the work by seconds
	countdown := newCountdown(left, func() { q.markDone(done) })
	for id, c := range work.byChunk {
		if c.taken {
			q.summaries.Mark(c.user, id, countdown)
		}
	}
	return nil
}

// donePosts are entries of the inbox that are to be marked as worked off. Those of
// many groups become so at the same time, when summaries were stored.
type donePosts struct {
	mu      sync.Mutex
	ids     []models.ID
	marking bool
}

func (f *donePosts) take() (ids []models.ID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	ids, f.ids = f.ids, nil
	f.marking = len(ids) > 0
	return ids
}

// markDone marks entries as worked off, for as long as it takes: a crash
// before has them worked off once more.
func (q *Processor) markDone(ids []models.ID) {
	f := &q.finished
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ids = append(f.ids, ids...)
	if f.marking {
		return
	}
	f.marking = true
	q.dispatch.GoBackground(func() {
		for ids := f.take(); len(ids) > 0; ids = f.take() {
			for {
				err := q.store.InboxDone(priority.WithLow(q.dispatch.CallContext()), ids...)
				if err == nil {
					break
				}
				q.log.Warn("posts not marked as worked off yet", "entries", len(ids), "err", err)
				select {
				case <-time.After(2 * time.Second):
				case <-q.dispatch.CallContext().Done():
					return
				}
			}
		}
	})
}

// newCountdown returns a function that runs f at its n-th call.
func newCountdown(n int, f func()) func() {
	var left atomic.Int64
	left.Store(int64(n))
	return func() {
		if left.Add(-1) == 0 {
			f()
		}
	}
}
