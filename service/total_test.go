package service

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
	"github.com/safedelivr/safedelivr/service/walk"
	"github.com/safedelivr/safedelivr/sqlite/sqlitetest"
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
// everybody. Only combinations and parts of addresses have none.
func TestTotals(t *testing.T) {
	t.Parallel()
	f := newListRig(t, sqlitetest.Open(t))
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
	for name, c := range filters {
		for range 25 {
			from, to := edge(), edge()
			if !from.IsZero() && !to.IsZero() && !from.Before(to) {
				continue
			}
			who, of := Caller{User: user}, user
			if rand.N(2) == 0 {
				who, of = Caller{User: user, Operator: true, Everyone: true}, ""
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
			page, err := f.FindLogs(t.Context(), who, filter, Page{Limit: 1})
			require.NoError(t, err)
			f.requireTotal(logs, &page.PageInfo, name != "both" && c.Part == "")
			list, err := f.FindBatches(
				t.Context(),
				who,
				BatchFilter{Logs: LogFilter{From: from, To: to}},
				Page{Limit: 1},
			)
			require.NoError(t, err)
			f.requireTotal(batches, &list.PageInfo, true)
		}
	}
}

// requireTotal checks the total of a list that has as many entries as want. A page that is the whole list has one
// in any case.
func (f *listRig) requireTotal(want int, info *PageInfo, known bool) {
	f.Helper()
	if !known && info.Next != "" {
		require.Nil(f, info.Total)
		return
	}
	require.NotNil(f, info.Total)
	require.EqualValues(f, want, *info.Total)
}

// TestTotalsOfPurgedDays: what was purged does not count, and nothing is said while some of it is
// left, or if more is known to be in the list than the sums have.
func TestTotalsOfPurgedDays(t *testing.T) {
	t.Parallel()
	f := newListRig(t, sqlitetest.Open(t))
	who := Caller{User: f.batches[0].User}
	totals := func() (logs, batches *int64) {
		found, err := f.FindLogs(t.Context(), who, LogFilter{}, Page{Limit: 1})
		require.NoError(t, err)
		list, err := f.FindBatches(t.Context(), who, BatchFilter{}, Page{Limit: 1})
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
		logs, batches := totals()
		require.Nil(t, logs)
		require.Nil(t, batches)
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
	f := newListRig(t, sqlitetest.Open(t))
	user := f.batches[0].User
	boss := Caller{User: user, Operator: true, Everyone: true}
	list, err := f.FindBatches(t.Context(), boss, BatchFilter{}, Page{Limit: 1})
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
		_, err := f.RollUp(t.Context(), models.SpanOf(user, l, second))
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
	f.users = cached[[]models.User]{}
	list, err = f.FindBatches(t.Context(), boss, BatchFilter{}, Page{Limit: 1})
	require.NoError(t, err)
	require.Nil(t, list.Total)
}
