package softbounce

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/store/memory"
)

var begin = time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)

// mails returns a report of each of n mails, an hour after the other.
func mails(n int) (out []Bounce) {
	batch := models.NewBatchID(begin)
	for i := range n {
		at := begin.Add(time.Duration(i) * time.Hour)
		out = append(out, Bounce{Log: batch.Log(i + 1), At: at, Provider: "sg", Reason: models.MailboxFull})
	}
	return out
}

// TestOrderOfReports: a record is the same if reports come in another order, in other parts, or repeatedly.
func TestOrderOfReports(t *testing.T) {
	t.Parallel()
	reports := mails(6)
	again := reports[2]
	again.At = again.At.Add(10 * time.Hour) // a second report of a mail, the newest of all
	reports = append(reports, again)
	want := []Bounce{reports[4], reports[5], again}
	for range 200 {
		rand.Shuffle(len(reports), func(i, j int) { reports[i], reports[j] = reports[j], reports[i] })
		var got []Bounce
		for part := range slices.Chunk(reports, 1+rand.IntN(4)) {
			got = newest(slices.Concat(got, part, part[:1]), 3)
		}
		require.Equal(t, want, got)
	}
}

// TestDue: an address is due from the set number of mails on, until it was decided. A mail that comes during the
// decision makes it due again.
func TestDue(t *testing.T) {
	t.Parallel()
	s, ctx := memory.Open(t), t.Context()
	h := models.HashAddress("ann@x.test")
	all := mails(5)
	add := func(bs ...Bounce) {
		t.Helper()
		require.NoError(t, Note(ctx, s, "ann", 3, map[models.AddressHash][]Bounce{h: bs}))
	}
	due := func(now time.Time) []Due {
		t.Helper()
		users, err := DueOf(ctx, s, shardOf(h), now)
		require.NoError(t, err)
		return users["ann"]
	}
	add(all[0], all[1])
	require.Empty(t, due(begin))
	add(all[0], all[1])
	require.Empty(t, due(begin), "a repeat is no further mail")
	add(all[2])
	found := due(begin)
	require.Len(t, found, 1)
	require.Equal(t, h, found[0].Hash)

	add(all[3])
	require.NoError(t, Done(ctx, s, shardOf(h), found))
	found = due(begin)
	require.Len(t, found, 1, "it became due again")
	found[0].Later = begin.Add(time.Hour)
	require.NoError(t, Done(ctx, s, shardOf(h), found))
	require.Empty(t, due(begin.Add(time.Hour-1)))
	found = due(begin.Add(time.Hour))
	require.Len(t, found, 1)
	require.NoError(t, Done(ctx, s, shardOf(h), found))
	require.Empty(t, due(begin.AddDate(1, 0, 0)))
}

// TestRecordsGo: records go with their newest mail, or with the address. Those of others stay.
func TestRecordsGo(t *testing.T) {
	t.Parallel()
	s, ctx := memory.Open(t), t.Context()
	old, fresh, gone := models.HashAddress("old@x.test"), models.HashAddress("new@x.test"),
		models.HashAddress("gone@x.test")
	all := mails(3)
	for _, user := range []string{"ann", "bob"} {
		require.NoError(t, Note(ctx, s, user, 5, map[models.AddressHash][]Bounce{old: all[:2], fresh: all[1:], gone: all}))
	}
	require.NoError(t, Erase(ctx, s, "ann", "GONE@x.test"))
	require.NoError(t, Drop(ctx, s, "ann", all[1].At))
	left := func(user string) (out []models.AddressHash) {
		t.Helper()
		records, err := Records(ctx, s, user, []models.AddressHash{old, fresh, gone})
		require.NoError(t, err)
		for i := range records {
			out = append(out, records[i].Hash)
		}
		return out
	}
	require.Equal(t, []models.AddressHash{fresh}, left("ann"))
	require.Len(t, left("bob"), 3)
}

// TestKeep: what was removed from a record stays removed, unless a bounce came since it was read.
func TestKeep(t *testing.T) {
	t.Parallel()
	s, ctx := memory.Open(t), t.Context()
	h, all := models.HashAddress("ann@x.test"), mails(3)
	note := func(bs ...Bounce) {
		t.Helper()
		require.NoError(t, Note(ctx, s, "ann", 5, map[models.AddressHash][]Bounce{h: bs}))
	}
	read := func() []Record {
		t.Helper()
		records, err := Records(ctx, s, "ann", []models.AddressHash{h})
		require.NoError(t, err)
		return records
	}
	note(all[:2]...)
	r := read()[0]
	r.After(all[0].At)
	require.NoError(t, Keep(ctx, s, "ann", r))
	require.Equal(t, all[1:2], read()[0].Bounces)
	r = read()[0]
	note(all[2])
	r.After(all[2].At)
	require.NoError(t, Keep(ctx, s, "ann", r))
	require.Equal(t, all[1:], read()[0].Bounces, "a bounce came meanwhile")
	r = read()[0]
	r.After(all[2].At)
	require.NoError(t, Keep(ctx, s, "ann", r))
	require.Empty(t, read())
}
