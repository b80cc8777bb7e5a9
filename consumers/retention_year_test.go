//go:build full

package consumers

import (
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/consumers/rollup"
	"github.com/safedelivr/safedelivr/inproc/inproctest"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
	"github.com/safedelivr/safedelivr/models/telemetry"
	"github.com/safedelivr/safedelivr/sqlite"
	stores "github.com/safedelivr/safedelivr/store"
)

// retained returns a store with a user, whose time is now, in a folder, and an engine that removes content after 60
// days and mail after 120.
func retained(t *testing.T, now *time.Time) (dir string, store *sqlite.Store, e *Engine, user models.User) {
	t.Helper()
	dir = t.TempDir()
	store, err := sqlite.Open(dir, sqlite.Options{Options: stores.Options{Now: func() time.Time { return *now }}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	cfg := fast()
	cfg.KeepContent, cfg.KeepLogs = 60*24*time.Hour, 120*24*time.Hour
	e, err = New(store, inproctest.New(t, "sg"), nil, cfg)
	require.NoError(t, err)
	user = models.User{ID: models.NewUserID(), Name: "ann", Created: *now}
	require.NoError(t, store.CreateUser(t.Context(), user))
	return dir, store, e, user
}

// TestStoreOfYearsDoesNotGrow simulates a year at a steady rate. The store has as
// many rows after the year as after half of it, except the sums of days,
// which are kept. They still add up.
func TestStoreOfYearsDoesNotGrow(t *testing.T) {
	t.Parallel()
	const half, first = 183, "2020-01-01"
	begin, err := time.Parse(time.DateOnly, first)
	require.NoError(t, err)
	now := begin
	ctx := t.Context()
	dir, store, e, user := retained(t, &now)
	commands := 0
	day := func() {
		now = now.AddDate(0, 0, 1)
		for n := range 2 {
			at := now.Add(time.Duration(n) * time.Hour)
			steadyBatch(t, store, user.ID, at, 1+n)
			for _, kind := range []models.CommandKind{models.StopBatch, models.CancelBatch} {
				commands++
				require.NoError(t, store.AppendCommand(ctx, models.Command{Number: commands, Token: models.NewToken(),
					At: at, Kind: kind, Batch: models.NewBatchID(at)}))
			}
		}
		key, _ := models.NewKey(user.ID, "daily", now)
		require.NoError(t, store.CreateKey(ctx, key))
		require.NoError(t, store.RevokeKey(ctx, user.ID, key.ID, now))
		_, err := store.Claim(ctx, key.ID, models.Claim{ID: models.NewBatchID(now), Hash: "h", At: now}, 24*time.Hour)
		require.NoError(t, err)
		_, err = store.GuardReplays(ctx,
			models.ReplayMark{Group: "g", Key: key.ID, Digest: "d", Entry: models.NewInboxID(now)})
		require.NoError(t, err)
		require.NoError(t, store.PutTransient(ctx, "day", now.String(), []byte("x"), 90*24*time.Hour))
		require.NoError(t, store.PutInbox(ctx, models.Inbox{ID: models.NewInboxID(now), Provider: "sg",
			Posts: []models.Post{{Body: []byte("{}")}}}))
		if now.Sub(begin)%(5*24*time.Hour) == 0 {
			require.NoError(t, e.Purge(ctx, now))
			require.NoError(t, store.Sweep(ctx))
		}
	}
	for range half {
		day()
	}
	before := rowsOf(t, dir)
	for range half {
		day()
	}
	after := rowsOf(t, dir)
	require.Equal(t, half, after["sums_day"]-before["sums_day"])
	delete(after, "sums_day")
	delete(before, "sums_day")
	for _, table := range slices.Sorted(maps.Keys(after)) {
		// Commands are removed a hundred at a time.
		require.InDelta(t, before[table], after[table], 110, table)
	}
	days, err := store.Nodes(ctx, user.ID, models.Day, begin, now.AddDate(0, 0, 2))
	require.NoError(t, err)
	require.Len(t, days, 2*half)
	for i := range days {
		require.True(t, days[i].Summary.Balanced())
		require.EqualValues(t, 5, days[i].Summary.Success)
	}
	out, err := e.Check(ctx, rollup.CheckOptions{
		To:     now.AddDate(0, 0, 2),
		Settle: time.Millisecond,
		Found:  func(d rollup.Difference) { t.Error(d) },
	})
	require.NoError(t, err)
	require.Zero(t, out.Differences)
	require.InDelta(t, 2*120, out.Batches, 20)

	// A purge that is cut off is no difference either.
	ids, err := store.BatchIDs(ctx, user.ID, models.ID{}, 2*half)
	require.NoError(t, err)
	oldest := ids[len(ids)-1]
	next := models.DayOf(oldest.Time()).AddDate(0, 0, 1)
	require.NoError(t, telemetry.SetLogsPurged(ctx, store, user.ID, next))
	require.NoError(t, store.Purge(ctx, user.ID, oldest))
	out, err = e.Check(ctx, rollup.CheckOptions{To: now.AddDate(0, 0, 2), Settle: time.Millisecond})
	require.NoError(t, err)
	require.Zero(t, out.Differences)

	f := control.NewFollower(store)
	require.NoError(t, f.Sync(ctx))
	require.Equal(t, commands, f.Rules().UpTo(), "the numbers go on")
}

// TestUserWhoLeft: a user sends no more, and the mail is purged. Then only the row of the user is left, the sums of
// days, the newest entry of the feed, and the times up to which mail and content are purged.
func TestUserWhoLeft(t *testing.T) {
	t.Parallel()
	now := time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)
	dir, store, e, user := retained(t, &now)
	purge := func() {
		require.NoError(t, e.Purge(t.Context(), now))
		require.NoError(t, store.Sweep(t.Context()))
	}
	purge()
	before := rowsOf(t, dir)
	const days = 5
	for range days {
		now = now.AddDate(0, 0, 1)
		steadyBatch(t, store, user.ID, now, 2)
	}
	require.Greater(t, rowsOf(t, dir)["chunks"], before["chunks"])
	for range 20 {
		now = now.AddDate(0, 0, 20)
		purge()
	}
	after := rowsOf(t, dir)
	before["sums_day"] = days
	before["feed"]++          // its newest entry, so that numbers go on
	before["transients"] += 2 // up to when mail and content are purged
	require.Equal(t, before, after)
}

// steadyBatch stores a batch that was sent: chunks of 1 and 3 recipients.
func steadyBatch(t *testing.T, store *sqlite.Store, user string, at time.Time, chunks int) {
	t.Helper()
	ctx := t.Context()
	b := models.Batch{ID: models.NewBatchID(at), User: user, Lane: models.Bulk, OnUnknown: models.Hold,
		Recipients: 1, Chunks: chunks, Sizes: []int{1, 3}[:chunks], ExpiresAt: at.Add(time.Hour)}
	if chunks == 2 {
		b.Recipients = 4
	}
	for n := chunks - 1; n >= 0; n-- {
		c := models.Chunk{ID: b.ID.Chunk(n)}
		for k := range b.ChunkSize(n) {
			c.Recipients = append(c.Recipients, models.Recipient{Email: fmt.Sprintf("u%d@x.test", k)})
		}
		if n > 0 {
			require.NoError(t, store.PutChunk(ctx, c))
		} else {
			require.NoError(t, store.PutBatch(ctx, b, c))
		}
		require.NoError(t, store.PutAddressIndex(ctx, user, models.NewAddressIndex(c.ID, c.Recipients)))
		all := models.SetTo(len(c.Recipients))
		entry := models.Entry{
			Number:     1,
			Token:      models.NewToken(),
			Kind:       models.Attempt,
			At:         at,
			Recipients: all,
			Provider:   "sg",
		}
		require.NoError(t, store.Append(ctx, c.ID, entry))
		facts := []models.Fact{{Key: models.OutcomeKey(1), Outcome: &models.Outcome{Attempt: 1, At: at,
			Parts: []models.Part{{Class: models.Accepted, Recipients: all}}}}}
		for r := range all.All() {
			facts = append(facts, models.Fact{Key: fmt.Sprint("e", r), Events: []models.Event{{ID: fmt.Sprint(r), Recipient: r,
				Attempt: 1, Provider: "sg", Kind: models.Delivered, At: at}}})
		}
		for _, f := range facts {
			require.NoError(t, store.PutFacts(ctx, models.ChunkFact{Chunk: c.ID, Fact: f}))
		}
		v := models.Resolve(all.Len(), []models.Entry{entry}, facts)
		sum := models.ChunkSummary{User: user, Chunk: c.ID, Summary: v.SummaryOf(c.ID, nil)}
		require.NoError(t, store.PutSummaries(ctx, sum))
		view, published := v.ForFeed(), models.Published{Chunk: c.ID}
		pending, ok := published.Pending(&view)
		require.True(t, ok)
		head, err := store.FeedHead(ctx, user)
		require.True(t, err == nil || errors.Is(err, models.ErrNotFound), err)
		update := models.FeedEntry{Number: head.Number + 1, Token: models.NewToken(), Settled: head.Number,
			At: at.Add(time.Duration(head.Number) * time.Microsecond), Chunks: []models.FeedChunk{pending}}
		require.NoError(t, store.AppendFeed(ctx, user, update))
		published.Apply(&update)
		require.NoError(t, store.PutPublished(ctx, published))
	}
	for _, level := range models.Levels {
		err := store.RollUp(ctx, models.SpanOf(user, level, at))
		require.NoError(t, err)
	}
}

// rowsOf returns the number of rows of each table of the database in a folder.
func rowsOf(t *testing.T, dir string) map[string]int {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+filepath.Join(dir, "safedelivr.db")+"?mode=ro")
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	rows, err := db.QueryContext(t.Context(), `SELECT name FROM sqlite_schema WHERE type = 'table'`)
	require.NoError(t, err)
	defer func() { require.NoError(t, rows.Close()) }()
	var names []string
	for rows.Next() {
		var name string
		require.NoError(t, rows.Scan(&name))
		names = append(names, name)
	}
	require.NoError(t, rows.Err())
	out := map[string]int{}
	for _, name := range names {
		var n int
		require.NoError(t, db.QueryRowContext(t.Context(), `SELECT count(*) FROM `+name).Scan(&n))
		out[name] = n
	}
	return out
}
