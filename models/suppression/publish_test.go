package suppression

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/codec"
	"github.com/safedelivr/safedelivr/models/feed"
	"github.com/safedelivr/safedelivr/store/memory"
)

var errKilled = errors.New("killed")

// killed is a store whose process is killed before a write.
type killed struct {
	models.Store
	left int // writes before that one
}

func (k *killed) write(do func() error) error {
	if k.left--; k.left < 0 {
		return errKilled
	}
	return do()
}

func (k *killed) PutDocument(ctx context.Context, owner, kind string, d models.Document) error {
	return k.write(func() error { return k.Store.PutDocument(ctx, owner, kind, d) })
}

func (k *killed) PutSuppressions(ctx context.Context, list string, es ...models.Suppression) error {
	return k.write(func() error { return k.Store.PutSuppressions(ctx, list, es...) })
}

func (k *killed) AppendAddition(ctx context.Context, list string, a models.SuppressionAddition) error {
	return k.write(func() error { return k.Store.AppendAddition(ctx, list, a) })
}

func (k *killed) AppendFeed(ctx context.Context, user string, e models.FeedEntry) error {
	return k.write(func() error { return k.Store.AppendFeed(ctx, user, e) })
}

// publishedOf returns how often a feed publishes each addition, by ID, and the additions in their order.
func publishedOf(t *testing.T, s models.Store, owner string) (often map[string]int, all []feed.Suppression) {
	t.Helper()
	page, err := feed.Read(t.Context(), s, owner, feed.Query{After: feed.Begin, Limit: 2000})
	require.NoError(t, err)
	described, err := feed.NewDescriber(s).Describe(t.Context(), owner, page.Updates)
	require.NoError(t, err)
	often = map[string]int{}
	for i := range described {
		require.Equal(t, feed.SuppressionAdded, described[i].Type())
		v := described[i].Suppression
		if often[v.ID]++; often[v.ID] == 1 {
			all = append(all, *v)
		}
	}
	return often, all
}

// untoldOf reports whether notes are left.
func untoldOf(t *testing.T, l *Lists) bool {
	t.Helper()
	left, err := l.Unpublished(t.Context())
	require.NoError(t, err)
	return left
}

// TestAdditionsArePublished: the process that adds and the worker that publishes are killed before each of their
// writes. A stored entry is published, with one ID, and in effect, whether or not the caller repeats. An entry that is
// not stored is not published.
func TestAdditionsArePublished(t *testing.T) {
	t.Parallel()
	s := memory.Open(t)
	worker := New(s, DefaultMemory)
	for _, repeats := range []bool{false, true} {
		for writes := 0; ; writes++ {
			user, address := models.NewUserID(), fmt.Sprintf("u%d@x.example", writes)
			e := entry(address)
			err := New(&killed{s, writes}, DefaultMemory).Add(t.Context(), user, e)
			require.True(t, err == nil || errors.Is(err, errKilled))
			finished := err == nil
			if !finished && repeats {
				require.NoError(t, New(s, DefaultMemory).Add(t.Context(), user, e))
			}
			stored, err := s.SuppressionsOf(t.Context(), user, e.Hash)
			require.NoError(t, err)
			for publishes := 0; ; publishes++ {
				err := New(&killed{s, publishes}, DefaultMemory).Publish(t.Context(), time.Now())
				if err == nil {
					break
				}
				require.ErrorIs(t, err, errKilled)
			}
			often, all := publishedOf(t, s, user)
			require.Len(t, often, len(stored), "%d writes", writes)
			if len(stored) > 0 {
				require.Equal(t, address, all[0].Email)
				require.Equal(t, []string{address}, find(t, worker, Mail{User: user}, address))
			}
			require.NoError(t, worker.Publish(t.Context(), time.Now().Add(keepUnstored)))
			require.False(t, untoldOf(t, worker))
			again, _ := publishedOf(t, s, user)
			require.Equal(t, often, again)
			if finished {
				require.GreaterOrEqual(t, writes, 3, "note, entry and mark")
				break
			}
		}
	}
}

// TestWhatIsAdded: an entry that is stored again, is older, or lasts longer adds nothing. One that was removed or has
// expired is added again, with another ID. An entry that is removed before it is published is never published.
func TestWhatIsAdded(t *testing.T) {
	t.Parallel()
	s := memory.Open(t)
	l, ctx := New(s, DefaultMemory), t.Context()
	publish := func() []feed.Suppression {
		t.Helper()
		require.NoError(t, l.Publish(ctx, time.Now()))
		_, all := publishedOf(t, s, "u")
		return all
	}
	first := entry("Ada@x.example")
	first.Log, first.Category = models.NewBatchID(time.Now()).Log(1), "news"
	require.NoError(t, l.Add(ctx, "u", first, first))
	all := publish()
	require.Len(t, all, 1)
	require.Equal(t, feed.Suppression{
		ID: all[0].ID, Email: "ada@x.example", Reason: models.Manual, Category: "news", Origin: models.FromAPI,
		Log: first.Log, At: first.At,
	}, all[0])

	later := first
	later.At, later.Expires = first.At.Add(time.Second), first.At.Add(time.Hour).UTC()
	require.NoError(t, l.Add(ctx, "u", first, later))
	require.Len(t, publish(), 1)

	removed := later
	removed.Removed, removed.At = true, later.At.Add(time.Second)
	require.NoError(t, s.PutSuppressions(ctx, "u", removed))
	require.NoError(t, l.Add(ctx, "u", first))
	require.Len(t, publish(), 1, "it is older than the removal")
	again := later
	again.At = removed.At.Add(time.Second)
	require.NoError(t, l.Add(ctx, "u", again))
	all = publish()
	require.Len(t, all, 2)
	require.NotEqual(t, all[0].ID, all[1].ID)
	require.Equal(t, again.Expires, all[1].Expires)

	gone := entry("bob@x.example")
	require.NoError(t, l.Add(ctx, "u", gone))
	gone.Removed, gone.At = true, gone.At.Add(time.Second)
	require.NoError(t, s.PutSuppressions(ctx, "u", gone))
	require.Len(t, publish(), 2)
	require.False(t, untoldOf(t, l))
}

// TestErasedAddition: after an address was erased, no reader of the feed gets it.
func TestErasedAddition(t *testing.T) {
	t.Parallel()
	s := memory.Open(t)
	l, e := New(s, DefaultMemory), entry("ada@x.example")
	require.NoError(t, l.Add(t.Context(), models.EveryonesList, e))
	require.NoError(t, l.Publish(t.Context(), time.Now()))
	_, all := publishedOf(t, s, feed.Installation)
	require.Equal(t, "ada@x.example", all[0].Email)
	e.Email, e.At = "", e.At.Add(time.Millisecond)
	require.NoError(t, s.PutSuppressions(t.Context(), models.EveryonesList, e))
	_, erased := publishedOf(t, s, feed.Installation)
	require.Equal(t, all[0].ID, erased[0].ID)
	require.Empty(t, erased[0].Email)
}

// TestFullNotes: a caller that finds no room for a note publishes the notes that are there.
func TestFullNotes(t *testing.T) {
	t.Parallel()
	s := memory.Open(t)
	l := New(s, DefaultMemory)
	full := note{
		List: "u", Since: time.Now(), Addresses: maxUnpublished,
		Added: codec.EncodeFeedSuppressions(nil), Marks: codec.EncodeMarks(nil),
	}
	for part := range unpublishedParts {
		_, _, err := models.ChangeDocument(t.Context(), s, unpublishedOwner, unpublishedKind, fmt.Sprintf("%02x", part),
			func(d *unpublished, _ int) error { d.Notes = []note{full}; return nil })
		require.NoError(t, err)
	}
	es := make([]models.Suppression, 1200)
	for i := range es {
		es[i] = entry(fmt.Sprintf("u%d@x.example", i))
	}
	require.NoError(t, l.Add(t.Context(), "u", es...))
	require.NoError(t, l.Publish(t.Context(), time.Now()))
	often, _ := publishedOf(t, s, "u")
	require.Len(t, often, 1200)
	entries, err := s.Feed(t.Context(), "u", 0, 10)
	require.NoError(t, err)
	require.Len(t, entries, 2)
	require.Equal(t, 1, entries[1].Settled, "retention may remove what is read")
}

// TestRepeatsDoNotGrow: an event about an address that is on the list, however often it comes, leaves neither a note
// nor an entry of the log of the list. A removed address and one that was published long ago keep their entries: the
// log says who may be suppressed.
func TestRepeatsDoNotGrow(t *testing.T) {
	t.Parallel()
	s := memory.Open(t)
	user, e := models.NewUserID(), entry("ann@x.example")
	for range 50 {
		l := New(s, DefaultMemory) // of another process each time
		e.At = e.At.Add(time.Second)
		require.NoError(t, l.Add(t.Context(), user, e))
		require.NoError(t, l.Publish(t.Context(), time.Now()))
		require.False(t, untoldOf(t, l))
	}
	logged, err := s.Additions(t.Context(), user, 0, 100)
	require.NoError(t, err)
	require.Len(t, logged, 1)
	docs, err := s.Documents(t.Context(), unpublishedOwner, unpublishedKind, "", unpublishedParts)
	require.NoError(t, err)
	require.Len(t, docs, 1)
	require.Equal(t, "{}", string(docs[0].Value))
}
