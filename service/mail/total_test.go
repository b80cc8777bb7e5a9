package mail

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/internal/testkit"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
	"github.com/safedelivr/safedelivr/service/caller"
	"github.com/safedelivr/safedelivr/service/operation"
	"github.com/safedelivr/safedelivr/service/walk"
	"github.com/safedelivr/safedelivr/store/memory"
)

// sort sorts the mail of the rig, the newest first.
func (f *listRig) sort() {
	slices.SortFunc(f.logs, func(a, b listedLog) int { return slices.Compare(b.id[:], a.id[:]) })
	slices.SortFunc(f.batches, func(a, b models.Batch) int { return slices.Compare(b.ID[:], a.ID[:]) })
}

// listed returns how many logs that a filter selects, and how many batches, were accepted in
// [from, to) by a user, or by anybody.
func (f *listRig) listed(user string, from, to time.Time, selects func(*listedLog) bool) (logs, batches int) {
	in := func(id models.ID) bool { return !id.Time().Before(from) && id.Time().Before(to) }
	logs = len(f.want(user, func(l *listedLog) bool { return in(l.id) && selects(l) }))
	for i := range f.batches {
		if b := &f.batches[i]; (user == "" || b.User == user) && in(b.ID) {
			batches++
		}
	}
	return logs, batches
}

// TestTotals: the total of a list is what a recount of the mail finds, for any time, of one user and of
// everybody, also by combinations and parts of addresses.
func TestTotals(t *testing.T) {
	t.Parallel()
	f := newListRig(t, memory.Open(t))
	now := time.Now().UTC()
	user := f.batches[0].User
	times := []time.Time{now.AddDate(0, 0, -400).Add(-time.Hour), now.AddDate(0, 0, -400).Add(time.Hour)}
	for range 40 {
		at := now.Add(-time.Duration(rand.Int64N(int64(72 * time.Hour))))
		times = append(times, at, at.Truncate(time.Second), at.Truncate(24*time.Hour))
	}
	for i, at := range times {
		f.put(f.batches[i%len(f.batches)].User, i, at.Truncate(time.Millisecond))
	}
	f.sort()
	edge := func() time.Time { // often at a batch, or at the end of a span
		switch at := times[rand.N(len(times))]; rand.N(5) {
		case 0:
			return time.Time{}
		case 1:
			return at.Truncate(models.Levels[rand.N(len(models.Levels))].Length())
		case 2:
			return at.Truncate(time.Millisecond).Add(time.Duration(rand.N(3)-1) * time.Millisecond)
		default:
			return now.Add(-time.Duration(rand.Int64N(int64(96 * time.Hour))))
		}
	}
	for _, c := range filters {
		for range testkit.Mails(4, 10) {
			from, to := edge(), edge()
			if !from.IsZero() && !to.IsZero() && !from.Before(to) {
				continue
			}
			who, of := caller.Caller{User: user}, user
			if rand.N(2) == 0 {
				who, of = caller.Caller{User: user, Operator: true, Everyone: true}, ""
			}
			first, last := from, to
			if first.IsZero() {
				first = models.DayOf(now.Add(-maxAge))
			}
			if last.IsZero() {
				last = now.Add(time.Hour)
			}
			logs, batches := f.listed(of, first, last, c.want)
			filter := c.LogFilter
			filter.From, filter.To = from, to
			page, err := f.FindLogs(t.Context(), who, filter, operation.Page{Limit: 1})
			require.NoError(t, err)
			f.requireTotal(logs, &page.PageInfo)
			list, err := f.FindBatches(
				t.Context(),
				who,
				BatchFilter{Logs: LogFilter{From: from, To: to}},
				operation.Page{Limit: 1},
			)
			require.NoError(t, err)
			f.requireTotal(batches, &list.PageInfo)
		}
	}
}

// requireTotal checks the total of a list that has as many entries as want.
func (f *listRig) requireTotal(want int, info *PageInfo) {
	f.Helper()
	require.NotNil(f, info.Total)
	require.EqualValues(f, want, *info.Total)
	require.Zero(f, info.AtLeast)
}

// TestLongListsAreCountedInPart: a list whose total the sums do not tell is counted up to a bound of entries, reads and
// time, and the page says how many entries there are at least.
func TestLongListsAreCountedInPart(t *testing.T) {
	t.Parallel()
	store := memory.Open(t)
	s, late := newReader(store, time.Hour), newReader(store, time.Nanosecond)
	// put stores a batch whose chunks have size recipients; it finds many of each by an "ann" in the address.
	put := func(chunks, size, many int) string {
		b := models.Batch{ID: models.NewBatchID(time.Now()), User: "ada", Chunks: chunks, Recipients: chunks * size,
			Lane: models.Bulk, OnUnknown: models.Hold, Content: models.Content{Subject: "s"}}
		var all []models.Chunk
		for k := range chunks {
			c := models.Chunk{ID: b.ID.Chunk(k)}
			for i := range size {
				name := "bob"
				if i < many {
					name = "ann"
				}
				c.Recipients = append(c.Recipients, models.Recipient{Email: fmt.Sprintf("%s%d@example.com", name, k*size+i)})
			}
			b.Sizes, all = append(b.Sizes, size), append(all, c)
		}
		for _, c := range all[1:] {
			require.NoError(t, store.PutChunk(t.Context(), c))
		}
		require.NoError(t, store.PutBatch(t.Context(), b, all[0]))
		return b.ID.String()
	}
	first := func(s *Reader, batch string) PageInfo {
		page, err := s.Logs(t.Context(), caller.Caller{User: "ada"}, batch, LogFilter{Part: "ann"}, operation.Page{Limit: 50})
		require.NoError(t, err)
		require.NotEmpty(t, page.Next)
		return page.PageInfo
	}
	batch := put(2, 600, walk.MaxCounted/2)
	info := first(s, batch)
	require.EqualValues(t, walk.MaxCounted, *info.Total)
	info = first(late, batch)
	require.Nil(t, info.Total)
	require.Zero(t, info.AtLeast)

	info = first(s, put(2, 600, walk.MaxCounted/2+1))
	require.Nil(t, info.Total)
	require.EqualValues(t, walk.MaxCounted+1, info.AtLeast)

	info = first(s, put(120, 1000, 5)) // a chunk of this size costs 480
	require.Nil(t, info.Total)
	require.Greater(t, info.AtLeast, int64(5*70))
	require.Less(t, info.AtLeast, int64(5*100))

	gone, leave := context.WithCancel(t.Context())
	leave()
	_, _, err := walk.CountList(gone, s.counts, "left", &walk.List[int]{Steps: func(models.ID, bool) walk.Steps {
		return func(yield func(walk.Step, error) bool) { yield(walk.Step{}, nil) }
	}}, true)
	require.ErrorIs(t, err, context.Canceled)
}

// TestTotalsOfPurgedDays: what was purged does not count. While some of it is left, the list is counted. The sums say
// nothing if more is known to be in the list than they have.
func TestTotalsOfPurgedDays(t *testing.T) {
	t.Parallel()
	f := newListRig(t, memory.Open(t))
	who := caller.Caller{User: f.batches[0].User}
	totals := func() (logs, batches *int64) {
		found, err := f.FindLogs(t.Context(), who, LogFilter{}, operation.Page{Limit: 1})
		require.NoError(t, err)
		list, err := f.FindBatches(t.Context(), who, BatchFilter{}, operation.Page{Limit: 1})
		require.NoError(t, err)
		return found.Total, list.Total
	}
	day := models.DayOf(time.Now()).AddDate(0, 0, -1)
	require.NoError(t, telemetry.SetLogsPurged(t.Context(), f.Store, who.User, day))
	purge := f.batches[:0:0]
	for i := range f.batches {
		if b := &f.batches[i]; b.User == who.User && b.Created().Before(day) {
			purge = append(purge, *b)
		}
	}
	require.NotEmpty(t, purge)
	for i := range purge {
		f.counts = walk.NewCounts(time.Hour)
		wantLogs, wantBatches := f.listed(who.User, time.Time{}, time.Now(), func(l *listedLog) bool {
			return !slices.ContainsFunc(purge[:i], func(b models.Batch) bool { return b.ID == l.id.Batch() })
		})
		logs, batches := totals()
		require.EqualValues(t, wantLogs, *logs)
		require.EqualValues(t, wantBatches-i, *batches)
		require.NoError(t, f.Store.Purge(t.Context(), who.User, purge[i].ID))
	}
	wantLogs, wantBatches := f.listed(who.User, day, time.Now(), func(*listedLog) bool { return true })
	logs, batches := totals()
	require.EqualValues(t, wantLogs, *logs)
	require.EqualValues(t, wantBatches, *batches)
	n, err := f.totalOf(
		t.Context(),
		[]string{who.User},
		spanOf(time.Time{}, time.Time{}),
		walk.Counter{List: "logs", Of: (&LogFilter{}).count},
		wantLogs+1,
	)
	require.NoError(t, err)
	require.Nil(t, n)
}

// TestTotalsAreBounded: mail is not counted that takes too many reads: that of very many users, and the parts of a
// second with very many batches.
func TestTotalsAreBounded(t *testing.T) {
	t.Parallel()
	f := newListRig(t, memory.Open(t))
	user := f.batches[0].User
	boss := caller.Caller{User: user, Operator: true, Everyone: true}
	list, err := f.FindBatches(t.Context(), boss, BatchFilter{}, operation.Page{Limit: 1})
	require.NoError(t, err)
	require.EqualValues(t, len(f.batches), *list.Total)

	second := models.DayOf(time.Now()).Add(-time.Hour)
	var sums []models.ChunkSummary
	for range 1001 {
		id := models.NewBatchID(second)
		sums = append(
			sums,
			models.ChunkSummary{User: user, Chunk: id, Summary: models.Resolve(1, nil, nil).SummaryOf(id, nil)},
		)
	}
	require.NoError(t, f.PutSummaries(t.Context(), sums...))
	for _, l := range models.Levels {
		err := f.RollUp(t.Context(), models.SpanOf(user, l, second))
		require.NoError(t, err)
	}
	total := func(from time.Time) *int64 {
		n, err := f.totalOf(
			t.Context(),
			[]string{user},
			spanOf(from, second.Add(time.Second)),
			walk.Counter{List: "batches", Of: (&BatchFilter{}).count},
			0,
		)
		require.NoError(t, err)
		return n
	}
	require.EqualValues(t, 1001, *total(second))
	require.Nil(t, total(second.Add(time.Millisecond)))

	for n := range countedUsers {
		u := models.User{ID: models.NewUserID(), Name: fmt.Sprint("user", n), Created: time.Now()}
		require.NoError(t, f.Store.CreateUser(t.Context(), u))
	}
	all, err := f.Store.Users(t.Context())
	require.NoError(t, err)
	var ids []string
	for i := range all {
		ids = append(ids, all[i].ID)
	}
	n, err := f.totalOf(t.Context(), ids, spanOf(time.Time{}, time.Time{}),
		walk.Counter{List: "batches", Of: (&BatchFilter{}).count}, 0)
	require.NoError(t, err)
	require.Nil(t, n)
}
