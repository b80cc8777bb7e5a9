package mail

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/caller"
	"github.com/safedelivr/safedelivr/service/operation"
	"github.com/safedelivr/safedelivr/store/memory"
)

// TestPagesReadABoundedAmount: a page that would read too much ends early, says until when it
// searched, and the next page goes on there.
func TestPagesReadABoundedAmount(t *testing.T) {
	t.Parallel()
	store := memory.Open(t)
	s := newReader(store, time.Second/2)
	const batches = 1200
	at := time.Now().Add(-time.Hour).Truncate(time.Millisecond)
	wanted := map[int]bool{0: true, 700: true, 1199: true}
	var want []models.ID
	for n := range batches {
		b := models.Batch{ID: models.NewBatchID(at.Add(-time.Duration(n) * time.Second)), User: "aaaa", Chunks: 1,
			Recipients: 1, Lane: models.Urgent, OnUnknown: models.Hold, Content: models.Content{Subject: "Nothing"}}
		if wanted[n] {
			b.Content.Subject = "A needle"
			want = append(want, b.ID)
		}
		rs := []models.Recipient{{Email: fmt.Sprintf("ann%d@example.com", n)}}
		require.NoError(t, store.PutBatch(t.Context(), b, models.Chunk{ID: b.ID, Recipients: rs}))
	}
	read := func(p operation.Page) BatchPage {
		page, err := s.FindBatches(t.Context(), caller.Caller{User: "aaaa"}, BatchFilter{Subject: "needle"}, p)
		require.NoError(t, err)
		return page
	}
	page := read(operation.Page{Limit: 10})
	require.Equal(t, want[:1], ids(page.Batches, func(b BatchView) models.ID { return b.ID }), "it read all")
	require.WithinRange(t, page.Until, at.Add(-300*time.Second), at.Add(-150*time.Second))
	require.Equal(t, want, ids(pages(t, func(p operation.Page) ([]BatchView, PageInfo, error) {
		page := read(p)
		return page.Batches, page.PageInfo, nil
	}, 10), func(b BatchView) models.ID { return b.ID }))
}

// TestBoundedPagesOfABatch: pages of a batch that end because they have read enough go on where
// they ended, in both directions, and list nothing twice.
func TestBoundedPagesOfABatch(t *testing.T) {
	t.Parallel()
	store := memory.Open(t)
	s := newReader(store, time.Hour)
	const chunks = 1300 // a page reads 100 of this size
	b := models.Batch{ID: models.NewBatchID(time.Now()), User: "aaaa", Chunks: chunks, Recipients: 2 * chunks,
		Lane: models.Bulk, OnUnknown: models.Hold, Content: models.Content{Subject: "s"}}
	var first models.Chunk
	var want []models.ID
	for k := range chunks {
		b.Sizes = append(b.Sizes, 2)
		c := models.Chunk{
			ID:         b.ID.Chunk(k),
			Recipients: []models.Recipient{{Email: "ann@example.com"}, {Email: "bob@example.com"}},
		}
		if k%3 == 0 || k == chunks-100 { // the last chunk of a page, on the way there and back
			c.Recipients[1].Email = "needle@example.com"
			want = append(want, c.ID.Log(2))
		}
		if k == 0 {
			first = c
		} else {
			require.NoError(t, store.PutChunk(t.Context(), c))
		}
	}
	require.NoError(t, store.PutBatch(t.Context(), b, first))
	spent := 0
	require.Equal(t, want, ids(pages(t, func(p operation.Page) ([]LogView, PageInfo, error) {
		page, err := s.Logs(t.Context(), caller.Caller{User: "aaaa"}, b.ID.String(), LogFilter{Part: "needle"}, p)
		if !page.Until.IsZero() {
			spent++
		}
		return page.Logs, page.PageInfo, err
	}, 450), func(l LogView) models.ID { return l.ID }))
	require.Positive(t, spent)
}

// TestTagsThatAreNotCountedApart: a list by a tag is complete, too, if a sum has more groups than it counts apart.
// It is counted then.
func TestTagsThatAreNotCountedApart(t *testing.T) {
	t.Parallel()
	f := newListRig(t, memory.Open(t))
	user, now := f.batches[0].User, time.Now().Truncate(time.Millisecond)
	for n := range 100 {
		f.put(user, 100+n, now.AddDate(0, 0, -40).Add(time.Duration(n)*time.Second))
	}
	f.sort()
	totals := 0
	for _, tag := range []string{"tag100", "tag150", "tag199", "tag4"} {
		want := f.want(user, func(l *listedLog) bool { return l.tag == tag })
		require.Equal(t, want, ids(pages(t, func(p operation.Page) ([]FoundLog, PageInfo, error) {
			page, err := f.FindLogs(t.Context(), caller.Caller{User: user}, LogFilter{Tag: tag}, p)
			if page.Total != nil {
				totals++
				require.EqualValues(t, len(want), *page.Total)
			}
			return page.Logs, page.PageInfo, err
		}, 1), func(l FoundLog) models.ID { return l.ID }), tag)
	}
	require.Positive(t, totals, "some are counted")
}

func ids[T any](list []T, id func(T) models.ID) (out []models.ID) {
	for i := range list {
		out = append(out, id(list[i]))
	}
	return out
}

func batchesOf(logs []models.ID) (out []models.ID) {
	for _, id := range logs {
		if len(out) == 0 || out[len(out)-1] != id.Batch() {
			out = append(out, id.Batch())
		}
	}
	return out
}
