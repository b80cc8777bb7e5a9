package service

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/inproc/inproctest"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/commands"
	"github.com/safedelivr/safedelivr/service/intake"
	"github.com/safedelivr/safedelivr/service/mail"
	"github.com/safedelivr/safedelivr/store/memory"
)

// cutOffStore is a store whose process ends before it writes a batch or a command, as often as it says.
type cutOffStore struct {
	models.Store
	batches, commands int
}

func (s *cutOffStore) PutBatch(ctx context.Context, b models.Batch, first models.Chunk, es ...models.AgendaEntry) error {
	if s.batches > 0 {
		s.batches--
		return models.ErrUnavailable
	}
	return s.Store.PutBatch(ctx, b, first, es...)
}

func (s *cutOffStore) AppendCommand(ctx context.Context, c models.Command) error {
	if s.commands > 0 {
		s.commands--
		return models.ErrUnavailable
	}
	return s.Store.AppendCommand(ctx, c)
}

// scheduledRig is a service with scheduled mail of two users.
type scheduledRig struct {
	testing.TB
	*Service
	store    *cutOffStore
	ada, bob Caller
	base     time.Time
}

func newScheduledRig(t testing.TB) *scheduledRig {
	t.Helper()
	f := &scheduledRig{TB: t, store: &cutOffStore{Store: memory.Open(t)},
		ada: Caller{User: "aaaa", By: "aaaa"}, bob: Caller{User: "bbbb", By: "bbbb"},
		base: time.Now().UTC().Truncate(time.Hour).Add(48 * time.Hour)}
	f.Service = New(Deps{
		Store:     f.store,
		Broker:    inproctest.New(t, "sg"),
		Providers: []models.Provider{{Name: "sg"}},
		Config:    Config{SpoolDir: t.TempDir(), Sole: true, CountTime: time.Hour},
	})
	t.Cleanup(f.Close)
	for id, name := range map[string]string{"aaaa": "ada", "bbbb": "bob"} {
		u := models.User{ID: id, Name: name, Created: time.Now().UTC()}
		require.NoError(t, f.store.CreateUser(t.Context(), u))
	}
	return f
}

// at returns a time that is so many hours after the base.
func (f *scheduledRig) at(hours int) string {
	return f.base.Add(time.Duration(hours) * time.Hour).Format(time.RFC3339)
}

// put accepts a batch that is due so many hours after the base.
func (f *scheduledRig) put(who Caller, hours int) models.ID {
	f.Helper()
	return acceptBatch(f.TB, f.Service, who, "deliver_at", f.at(hours), "subject", fmt.Sprint("at ", hours))
}

func (f *scheduledRig) move(who Caller, id models.ID, hours int) error {
	f.Helper()
	times := intake.Times{DeliverAt: f.at(hours)}
	_, _, err := f.Commands.Reschedule(f.Context(), who, commands.Reschedule{Batch: id.String(), Times: times}, Repeat{})
	return err
}

// list reads the list in pages of two, forwards and backwards.
func (f *scheduledRig) list(who Caller, filter mail.BatchFilter) []models.ID {
	f.Helper()
	filter.State = "scheduled"
	read := func(cursor string) mail.BatchPage {
		page, err := f.Mail.FindBatches(f.Context(), who, filter, Page{Limit: 2, Cursor: cursor})
		require.NoError(f, err)
		return page
	}
	page := read("")
	all := batchIDs(page.Batches)
	for page.Next != "" {
		page = read(page.Next)
		all = append(all, batchIDs(page.Batches)...)
	}
	back := batchIDs(page.Batches)
	for page.Prev != "" {
		page = read(page.Prev)
		if page.Prev == "" { // the first page is a whole one
			page.Batches = page.Batches[:len(all)-len(back)]
		}
		back = append(batchIDs(page.Batches), back...)
	}
	require.Equal(f, all, back, "backwards")
	return all
}

// batchIDs returns the IDs of batches.
func batchIDs(list []mail.BatchView) (out []models.ID) {
	for i := range list {
		out = append(out, list[i].ID)
	}
	return out
}

// stored returns the batches of the entries of a user.
func (f *scheduledRig) stored(user string) []models.ID {
	f.Helper()
	dues, err := f.store.Dues(f.Context(), user, models.ID{}, false, 1000)
	require.NoError(f, err)
	var out []models.ID
	for _, d := range dues {
		out = append(out, d.Batch)
	}
	return out
}

// TestScheduledInOrderOfTime: the list of scheduled batches begins with the next one, whenever they were accepted,
// for a user and for everybody, with filters, and follows changes of times, stops and cancellations.
func TestScheduledInOrderOfTime(t *testing.T) {
	t.Parallel()
	f := newScheduledRig(t)
	by := map[int]models.ID{}
	for _, hours := range []int{5, 1, 9, 3, 7} {
		by[hours] = f.put(f.ada, hours)
	}
	for _, hours := range []int{8, 2} {
		by[hours] = f.put(f.bob, hours)
	}
	acceptBatch(t, f.Service, f.ada) // at once
	order := func(hours ...int) (out []models.ID) {
		for _, h := range hours {
			out = append(out, by[h])
		}
		return out
	}
	everyone := Caller{User: "aaaa", Operator: true, Everyone: true}
	require.Equal(t, order(1, 3, 5, 7, 9), f.list(f.ada, mail.BatchFilter{}))
	require.Equal(t, order(2, 8), f.list(f.bob, mail.BatchFilter{}))
	require.Equal(t, order(1, 2, 3, 5, 7, 8, 9), f.list(everyone, mail.BatchFilter{}))
	require.Equal(t, order(2, 8), f.list(everyone, mail.BatchFilter{User: "bbbb"}))
	require.Equal(t, order(7), f.list(f.ada, mail.BatchFilter{Subject: "AT 7"}))
	created := by[3].Time()
	then := mail.LogFilter{From: created, To: created.Add(time.Millisecond)}
	require.Contains(t, f.list(f.ada, mail.BatchFilter{Logs: then}), by[3])
	require.Empty(t, f.list(f.ada, mail.BatchFilter{Logs: mail.LogFilter{To: by[5].Time()}}), "it was accepted first")
	require.Empty(t, f.list(f.ada, mail.BatchFilter{Logs: mail.LogFilter{Tag: "none"}}))
	require.Empty(t, f.list(f.ada, mail.BatchFilter{Logs: mail.LogFilter{State: models.Failed}}))
	page, err := f.Mail.FindBatches(t.Context(), f.ada, mail.BatchFilter{State: "scheduled"}, Page{})
	require.NoError(t, err)
	require.Equal(t, f.base.Add(time.Hour), page.Batches[0].DueAt)
	require.EqualValues(t, 5, *page.Total, "the page is the list")

	require.NoError(t, f.move(f.ada, by[9], 0))
	require.NoError(t, f.move(f.ada, by[1], 6))
	require.Equal(t, order(9, 3, 5, 1, 7), f.list(f.ada, mail.BatchFilter{}))
	require.NoError(t, f.move(f.ada, by[9], 9))
	require.Equal(t, order(3, 5, 1, 7, 9), f.list(f.ada, mail.BatchFilter{}), "it is back")

	for _, do := range []models.CommandKind{models.StopBatch, models.ResumeBatch, models.CancelBatch} {
		_, _, err := f.Commands.Batch(t.Context(), f.ada, do, by[5].String(), "", Repeat{})
		require.NoError(t, err)
		want := order(3, 1, 7, 9)
		if do == models.ResumeBatch {
			want = order(3, 5, 1, 7, 9)
		}
		require.Equal(t, want, f.list(f.ada, mail.BatchFilter{}), do)
	}
	require.NotContains(t, f.stored("aaaa"), by[5], "the entry of a cancelled batch is removed")
	require.Equal(t, order(2, 3, 1, 7, 8, 9), f.list(everyone, mail.BatchFilter{}))
}

// TestScheduledAfterCutOff: a process that ends between an entry of the order of time and the batch or the change that
// it is about leaves an entry that is not shown.
func TestScheduledAfterCutOff(t *testing.T) {
	t.Parallel()
	f := newScheduledRig(t)
	first, second := f.put(f.ada, 1), f.put(f.ada, 2)

	f.store.batches = 1
	in := f.NewIntake(t.Context(), f.ada)
	defer in.Close()
	in.Batch = intake.Batch{From: "a@b.example", Subject: "s", Text: "t", Times: intake.Times{DeliverAt: f.at(0)}}
	require.NoError(t, in.Read(intake.Of(Recipient{Email: "x@y.example"})))
	_, _, err := f.Accept(t.Context(), f.ada, in, Repeat{})
	require.ErrorContains(t, err, "store_unavailable")
	require.Len(t, f.stored("aaaa"), 3)
	require.Equal(t, []models.ID{first, second}, f.list(f.ada, mail.BatchFilter{}))
	require.Len(t, f.stored("aaaa"), 3, "the batch may be about to be stored")
	lost := models.NewBatchID(time.Now().Add(-25 * time.Hour))
	require.NoError(t, f.store.PutDue(t.Context(), "aaaa", models.Due{At: f.base, Batch: lost}))
	require.Equal(t, []models.ID{first, second}, f.list(f.ada, mail.BatchFilter{}))
	require.NotContains(t, f.stored("aaaa"), lost)

	f.store.commands = 1
	require.Error(t, f.move(f.ada, second, 0))
	require.Equal(t, []models.ID{first, second}, f.list(f.ada, mail.BatchFilter{}), "it is due as before")
	require.NoError(t, f.move(f.ada, second, 0))
	require.Equal(t, []models.ID{second, first}, f.list(f.ada, mail.BatchFilter{}))
}

// TestScheduledAtOwnTimes: a batch whose recipients have times of their own is in the list once, at the next of them.
func TestScheduledAtOwnTimes(t *testing.T) {
	t.Parallel()
	f := newScheduledRig(t)
	now := time.Now().UTC().Truncate(time.Millisecond)
	b := models.Batch{
		ID:         models.NewBatchID(now.Add(-3 * time.Hour)),
		User:       "aaaa",
		Lane:       models.Bulk,
		Recipients: 4,
		Chunks:     4,
		Sizes:      []int{1, 1, 1, 1},
		OnUnknown:  models.Hold,
		Content:    models.Content{Subject: "in the morning"},
		DeliverAt:  f.base.Add(4 * time.Hour),
		ExpiresAt:  f.base.Add(9 * time.Hour),
	}
	for i, at := range []time.Time{now.Add(-time.Hour), f.base.Add(6 * time.Hour), f.base.Add(2 * time.Hour)} {
		own := models.Schedule{DeliverAt: at, ExpiresAt: f.base.Add(9 * time.Hour)}
		b.Own = append(b.Own, models.OwnTimes{Schedule: own, From: i + 1})
	}
	require.NoError(t, mail.PutDues(t.Context(), f.store, &b))
	for n := 1; n < b.Chunks; n++ {
		rs := []models.Recipient{{Email: "x@y.example"}}
		require.NoError(t, f.store.PutChunk(t.Context(), models.Chunk{ID: b.ID.Chunk(n), Recipients: rs}))
	}
	rs := []models.Recipient{{Email: "x@y.example"}}
	require.NoError(t, f.store.PutBatch(t.Context(), b, models.Chunk{ID: b.ID, Recipients: rs}))
	one, three := f.put(f.ada, 1), f.put(f.ada, 3)
	require.Equal(t, []models.ID{one, b.ID, three}, f.list(f.ada, mail.BatchFilter{}), "its first time has come")
	page, err := f.Mail.FindBatches(t.Context(), f.ada, mail.BatchFilter{State: "scheduled"}, Page{})
	require.NoError(t, err)
	require.Equal(t, f.base.Add(2*time.Hour), page.Batches[1].DueAt)
	require.Equal(t, models.BatchQueued, page.Batches[1].State)
	require.Zero(t, page.Until)
}

// TestScheduledAtManyTimes: a batch with very many times costs a page one read of it.
func TestScheduledAtManyTimes(t *testing.T) {
	t.Parallel()
	f := newScheduledRig(t)
	const times = 1000
	b := models.Batch{ID: models.NewBatchID(time.Now()), User: "aaaa", Lane: models.Bulk, Recipients: times, Chunks: times,
		OnUnknown: models.Hold, ExpiresAt: f.base.Add(9 * time.Hour)}
	rs := []models.Recipient{{Email: "x@y.example"}}
	for i := range times {
		own := models.Schedule{DeliverAt: f.base.Add(time.Duration(i) * time.Second), ExpiresAt: b.ExpiresAt}
		b.Own, b.Sizes = append(b.Own, models.OwnTimes{Schedule: own, From: i}), append(b.Sizes, 1)
	}
	require.NoError(t, mail.PutDues(t.Context(), f.store, &b))
	require.NoError(t, f.store.PutChunk(t.Context(), models.Chunk{ID: b.ID.Chunk(1), Recipients: rs}))
	require.NoError(t, f.store.PutBatch(t.Context(), b, models.Chunk{ID: b.ID, Recipients: rs}))
	later := f.put(f.ada, 1)
	page, err := f.Mail.FindBatches(t.Context(), f.ada, mail.BatchFilter{State: "scheduled"}, Page{})
	require.NoError(t, err)
	require.Equal(t, []models.ID{b.ID, later}, batchIDs(page.Batches))
	require.Zero(t, page.Until, "the page is complete")
}

// TestEntriesOfTimes: each time of a batch that has not come has an entry, which names the last own time before it.
func TestEntriesOfTimes(t *testing.T) {
	t.Parallel()
	now := time.Now().UTC().Truncate(time.Hour)
	at := func(hours int) time.Time { return now.Add(time.Duration(hours) * time.Hour) }
	b := models.Batch{ID: models.NewBatchID(now), Chunks: 5, Recipients: 5, DeliverAt: at(3)}
	for i, hours := range []int{5, -1, 2, 3} {
		b.Own = append(b.Own, models.OwnTimes{Schedule: models.Schedule{DeliverAt: at(hours)}, From: i + 1})
	}
	dues := b.Dues(now)
	slices.SortFunc(dues, func(a, b models.Due) int { return a.At.Compare(b.At) })
	require.Equal(t, []models.Due{
		{At: at(2), Batch: b.ID, After: at(-1)},
		{At: at(3), Batch: b.ID, After: at(2)},
		{At: at(5), Batch: b.ID, After: at(3)},
	}, dues)
	require.Equal(t, at(2), b.NextDue(now))
	require.Equal(t, at(3), b.NextDue(at(2)))
	require.Zero(t, b.NextDue(at(5)))
	b.Own[0].From = 0 // no recipient has the time of the batch
	b.DeliverAt = at(1)
	require.Equal(t, at(2), b.NextDue(now))
	require.Empty(t, (&models.Batch{ID: b.ID, Chunks: 1, Recipients: 1}).Dues(now))
}

// TestScheduledPagesReadABoundedAmount: a page with many entries that are not shown ends early, and the next one goes
// on.
func TestScheduledPagesReadABoundedAmount(t *testing.T) {
	t.Parallel()
	f := newScheduledRig(t)
	var lost []models.Due
	for i := range 500 {
		lost = append(lost, models.Due{At: f.base.Add(time.Duration(i) * time.Second), Batch: models.NewBatchID(time.Now())})
	}
	require.NoError(t, f.store.PutDue(t.Context(), "aaaa", lost...))
	id := f.put(f.ada, 1)
	page, err := f.Mail.FindBatches(t.Context(), f.ada, mail.BatchFilter{State: "scheduled"}, Page{})
	require.NoError(t, err)
	require.Empty(t, page.Batches)
	require.NotEmpty(t, page.Next)
	require.WithinRange(t, page.Until, lost[100].At, lost[300].At)
	require.Equal(t, []models.ID{id}, f.list(f.ada, mail.BatchFilter{}))
}
