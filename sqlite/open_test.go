package sqlite

import (
	"bufio"
	"context"
	"database/sql/driver"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/codec"
	"github.com/safedelivr/safedelivr/models/storetest"
	"github.com/safedelivr/safedelivr/store"
)

func TestOpenInUse(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data folder #1 ?")
	s := openStore(t, dir)
	_, err := Open(dir, Options{})
	require.ErrorIs(t, err, ErrInUse)
	require.ErrorContains(t, err, dir)
	require.ErrorContains(t, err, "process "+strconv.Itoa(os.Getpid()))
	require.NoError(t, s.Ping(t.Context()), "the holder keeps it")
	require.NoError(t, s.Close())
	require.NoError(t, openStore(t, dir).Close())
}

func TestOpenNewerSchema(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	require.NoError(t, s.engine.write(t.Context(), 0,
		func(c *conn) error { return c.script("PRAGMA user_version = 9999") }))
	require.NoError(t, s.Close())
	for range 2 {
		_, err := Open(dir, Options{})
		require.ErrorContains(t, err, "newer version")
		require.NotErrorIs(t, err, ErrInUse)
	}
}

// TestOpenOlderSchema: a table that an older database does not have is created.
func TestOpenOlderSchema(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	b, chunks := storetest.SampleBatch(1)
	require.NoError(t, s.PutBatch(t.Context(), b, chunks))
	require.NoError(t, s.engine.write(t.Context(), 0, func(c *conn) error {
		return c.script(fmt.Sprintf("DROP TABLE documents; PRAGMA user_version = %d", store.Form-1))
	}))
	require.NoError(t, s.Close())
	s = openStore(t, dir)
	_, err := s.Document(t.Context(), "u", "kind", "none")
	require.ErrorIs(t, err, models.ErrNotFound)
	_, err = s.Batch(t.Context(), b.ID)
	require.NoError(t, err)
	require.NoError(t, s.Close())
	require.NoError(t, openStore(t, dir).Close(), "a repeat changes nothing")
}

func TestOpenBadFolder(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	_, err := Open(file, Options{})
	require.Error(t, err)

	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, databaseFile), []byte(strings.Repeat("this is no database ", 1000)),
		0o600))
	for range 2 {
		_, err = Open(dir, Options{})
		require.Error(t, err)
		require.NotErrorIs(t, err, ErrInUse)
	}
}

// A bubble fails if a goroutine of it still waits at its end.
func TestCloseLeavesNothingRunning(t *testing.T) {
	_, err := codec.Unpack(codec.Pack(make([]byte, 1<<10))) // its first use makes channels, which stay
	require.NoError(t, err)
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		s, err := Open(dir, Options{})
		require.NoError(t, err)
		b, ch := storetest.SampleBatch(10)
		require.NoError(t, s.PutBatch(t.Context(), b, ch))
		for range s.Agenda(t.Context(), 0, time.Now(), time.Now().Add(time.Hour)) {
			break
		}
		require.NoError(t, s.Close())
		require.NoFileExists(t, filepath.Join(dir, databaseFile+"-wal"), "the database is complete without its log")
	})
}

func TestSweep(t *testing.T) {
	ctx := t.Context()
	now := time.Now().UTC().Truncate(time.Millisecond)
	clock := now.Add(-8 * 24 * time.Hour)
	s, err := Open(t.TempDir(), Options{Options: store.Options{Now: func() time.Time { return clock }}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })

	const old = 1200 // more than one write deletes
	var posts [2][]models.ID
	for i, at := range []time.Time{clock, now.Add(-time.Hour)} {
		clock = at
		var es []models.AgendaEntry
		for range old {
			es = append(es, models.AgendaEntry{Due: at, Kind: models.LookAtChunk, ID: models.NewBatchID(at)})
		}
		require.NoError(t, s.Schedule(ctx, es...))
		for range 10 {
			in := models.Inbox{ID: models.NewInboxID(at), Provider: "sg", Posts: []models.Post{{Body: []byte("{}")}}}
			require.NoError(t, s.PutInbox(ctx, in))
			posts[i] = append(posts[i], in.ID)
		}
		_, err := s.GuardReplays(ctx, models.ReplayMark{
			Group:  "g",
			Key:    fmt.Sprint("key ", i),
			Digest: "first",
			Entry:  posts[i][0],
		})
		require.NoError(t, err)
	}
	count := func(table string) (n int64) {
		require.NoError(t, s.engine.read(ctx, func(c *conn) error {
			return c.query(`SELECT count(*) FROM `+table, func(row []driver.Value) error {
				n = row[0].(int64)
				return nil
			})
		}))
		return n
	}
	sweep := func(at time.Time) {
		clock = at
		require.NoError(t, s.Sweep(ctx))
	}
	sweep(now.Add(-2 * 24 * time.Hour))
	require.EqualValues(t, 2*old, count("agenda"), "without a mark nothing may be deleted")
	require.EqualValues(t, 20, count("inbox"))

	clock = now
	for shard := range s.Shards() {
		require.NoError(t, s.SetAgendaMark(ctx, shard, now.Add(-time.Hour)))
	}
	sweep(now.Add(-9 * 24 * time.Hour))
	require.EqualValues(t, 2*old, count("agenda"), "none was due by then, in spite of the mark")
	for range 2 {
		sweep(now)
		require.EqualValues(t, old, count("agenda"))
		require.EqualValues(t, 10, count("inbox"))
		require.EqualValues(t, 10, count("inbox_pending"))
		require.EqualValues(t, 2, count("replay_guards"), "two days longer than the posts")
	}
	in, err := s.Inbox(ctx, append(posts[0], posts[1]...)...)
	require.NoError(t, err)
	require.Len(t, in, 10)
	first, err := s.GuardReplays(ctx, models.ReplayMark{
		Group:  "g",
		Key:    "key 1",
		Digest: "second",
		Entry:  models.NewInboxID(now),
	})
	require.NoError(t, err)
	require.Equal(t, []string{"first"}, first)
	sweep(now.Add(9 * 24 * time.Hour))
	require.Zero(t, count("inbox"))
	require.Zero(t, count("inbox_pending"))
	require.Positive(t, count("replay_guards"), "longer than the posts")
	sweep(now.Add(12 * 24 * time.Hour))
	require.Zero(t, count("replay_guards"))
}

// killedFolder names the variable with the data folder of the process that is killed.
const killedFolder = "SAFEDELIVR_TEST_KILLED_STORE"

// All writes that returned nil before the process was killed must be there afterwards.
func TestKilled(t *testing.T) {
	if dir := os.Getenv(killedFolder); dir != "" {
		writeUntilKilled(t, dir)
	}
	dir := t.TempDir()
	for round := range 3 {
		child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestKilled$")
		child.Env = append(os.Environ(), killedFolder+"="+dir)
		child.Stderr = os.Stderr
		out, err := child.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, child.Start())
		var acknowledged []string
		fatal := 200 + rand.N(2000)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if acknowledged = append(acknowledged, lines.Text()); len(acknowledged) == fatal {
				require.NoError(t, child.Process.Kill())
			}
		}
		require.Error(t, child.Wait(), "it was killed")
		require.GreaterOrEqual(t, len(acknowledged), fatal, "it died by itself")

		s := openStore(t, dir)
		for _, line := range acknowledged {
			requireKept(t, s, line)
		}
		require.NoError(t, s.engine.read(t.Context(), func(c *conn) error {
			return c.query(`PRAGMA integrity_check`, func(row []driver.Value) error {
				require.Equal(t, "ok", row[0])
				return nil
			})
		}))
		require.NoError(t, s.Close())
		t.Logf("round %d: %d acknowledged", round, len(acknowledged))
	}
}

// writeUntilKilled writes from many goroutines and prints what was acknowledged: a kind
// and an ID per line.
func writeUntilKilled(t *testing.T, dir string) {
	s, err := Open(dir, Options{})
	require.NoError(t, err)
	ctx := context.Background()
	for range 8 {
		go func() {
			for {
				b, ch := storetest.SampleBatch(3)
				at := time.Now()
				in := models.Inbox{ID: models.NewInboxID(at), Provider: "sg", Posts: []models.Post{{Body: []byte("{}")}}}
				for _, step := range []struct {
					kind string
					id   models.ID
					do   func() error
				}{
					{"agenda", b.ID, func() error {
						return s.Schedule(ctx, models.AgendaEntry{
							Due:  b.ID.Time(),
							Kind: models.LookAtBatch,
							ID:   b.ID,
							User: b.User,
						})
					}},
					{"batch", b.ID, func() error { return s.PutBatch(ctx, b, ch) }},
					{"entry", b.ID, func() error { return s.Append(ctx, b.ID, storetest.SampleEntry(1)) }},
					{"fact", b.ID, func() error {
						return s.PutFacts(ctx, models.ChunkFact{Chunk: b.ID, Fact: storetest.SampleFact(1)})
					}},
					{"inbox", in.ID, func() error { return s.PutInbox(ctx, in) }},
				} {
					if err := step.do(); err != nil {
						panic(err)
					}
					if _, err := os.Stdout.WriteString(step.kind + " " + step.id.String() + "\n"); err != nil {
						panic(err)
					}
				}
			}
		}()
	}
	<-time.After(patience) // the parent kills it earlier
	os.Exit(1)
}

// requireKept checks that a line of writeUntilKilled is stored.
func requireKept(t *testing.T, s *Store, line string) {
	t.Helper()
	ctx := t.Context()
	kind, text, _ := strings.Cut(line, " ")
	id, err := models.ParseID(text)
	require.NoError(t, err, line)
	switch kind {
	case "agenda":
		found := false
		for e, err := range s.Agenda(ctx, id.Shard(s.Shards()), id.Time(), id.Time().Add(time.Millisecond)) {
			require.NoError(t, err)
			found = found || e.ID == id
		}
		require.True(t, found, line)
	case "batch":
		b, err := s.Batch(ctx, id)
		require.NoError(t, err, line)
		rs, err := s.Recipients(ctx, id)
		require.NoError(t, err, line)
		require.Len(t, rs, b.Recipients)
	case "entry":
		es, err := s.Ledger(ctx, id)
		require.NoError(t, err)
		require.Len(t, es, 1, line)
	case "fact":
		_, fs, err := s.Record(ctx, id)
		require.NoError(t, err)
		require.Len(t, fs, 1, line)
	case "inbox":
		in, err := s.Inbox(ctx, id)
		require.NoError(t, err)
		require.Len(t, in, 1, line)
	default:
		require.Fail(t, "unknown line", line)
	}
}

// A stored value that cannot be read must be reported as damaged, and others must be
// read.
func TestDamaged(t *testing.T) {
	ctx := t.Context()
	s := openStore(t, t.TempDir())
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	bad, good := models.NewBatchID(time.Now().Add(-time.Second)), models.NewBatchID(time.Now())
	for _, id := range []models.ID{bad, good} {
		require.NoError(t, s.Append(ctx, id, models.Entry{
			Number:   1,
			Token:    models.NewToken(),
			Kind:     models.Attempt,
			At:       time.Now(),
			Provider: "sg",
		}))
	}
	require.NoError(t, s.engine.write(ctx, 0, func(c *conn) error {
		_, err := c.exec(`UPDATE ledger SET value = ? WHERE part = ?`, []byte{0xff}, bad)
		return err
	}))
	_, _, err := s.Record(ctx, bad)
	require.ErrorIs(t, err, models.ErrDamaged)
	require.NotErrorIs(t, err, models.ErrUnavailable, "trying again is of no use")
	_, err = s.Ledger(ctx, bad)
	require.ErrorIs(t, err, models.ErrDamaged)
	es, _, err := s.Record(ctx, good)
	require.NoError(t, err)
	require.Len(t, es, 1)

	// A list names the damaged batch and has the others.
	for _, id := range []models.ID{bad, good} {
		b := models.Batch{
			ID:         id,
			User:       "u",
			Lane:       models.Bulk,
			Recipients: 1,
			Chunks:     1,
		}
		require.NoError(t, s.PutBatch(ctx, b, models.Chunk{ID: id, Recipients: []models.Recipient{{Email: "a@b.test"}}}))
	}
	require.NoError(t, s.engine.write(ctx, 0, func(c *conn) error {
		_, err := c.exec(`UPDATE batches SET value = ? WHERE part = ?`, []byte{0xff, 'b'}, bad)
		return err
	}))
	_, err = s.Batch(ctx, bad)
	require.ErrorIs(t, err, models.ErrDamaged)
	list, err := s.Batches(ctx, "u", models.ID{}, 10)
	require.NoError(t, err)
	require.Len(t, list, 2)
	require.False(t, list[0].Damaged)
	require.Equal(t, models.Batch{ID: bad, User: "u", Damaged: true}, list[1])
}

// A lease must end with the process of its holder, even if the clock was ahead.
func TestLeaseEndsWithProcess(t *testing.T) {
	dir := t.TempDir()
	for round, ahead := range []time.Duration{24 * time.Hour, 0, -24 * time.Hour} {
		s, err := Open(dir, Options{Options: store.Options{Now: func() time.Time { return time.Now().Add(ahead) }}})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, s.Close()) })
		held, err := s.Lease(t.Context(), "agenda.0", fmt.Sprint("worker ", round), time.Minute)
		require.NoError(t, err)
		require.True(t, held, "round %d", round)
		require.NoError(t, s.Close())
	}
}

// Leases that have ended must be dropped.
func TestSweepDropsEndedLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t)
		for i, ttl := range []time.Duration{time.Minute, time.Hour} {
			held, err := s.Lease(t.Context(), fmt.Sprint(i), "a", ttl)
			require.NoError(t, err)
			require.True(t, held)
		}
		time.Sleep(time.Minute)
		require.NoError(t, s.Sweep(t.Context()))
		require.Len(t, s.engine.leases.held, 1)
	})
}

// Only the owner can read the database, also if an earlier process left it open to others.
func TestDatabaseIsPrivate(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("Windows has no such permissions")
	}
	dir := t.TempDir()
	require.NoError(t, os.Chmod(dir, 0o755))                                       //nolint:gosec // the point of the test
	require.NoError(t, os.WriteFile(filepath.Join(dir, databaseFile), nil, 0o644)) //nolint:gosec // the point of the test
	s, err := Open(dir, Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	require.NoError(t, s.Ping(t.Context()))
	files, err := filepath.Glob(filepath.Join(dir, databaseFile+"*"))
	require.NoError(t, err)
	require.Greater(t, len(files), 1)
	for _, f := range files {
		info, err := os.Stat(f)
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), info.Mode().Perm(), f)
	}
}

// TestNewerValue: a value that a newer version stored is an error that says so, of its own chunk
// alone, and a newer database is refused.
func TestNewerValue(t *testing.T) {
	ctx := t.Context()
	dir := t.TempDir()
	s := openStore(t, dir)
	id := models.NewBatchID(time.Now())
	require.NoError(t, s.Append(ctx, id, storetest.SampleEntry(1)))
	require.NoError(t, s.engine.write(ctx, 0, func(c *conn) error {
		_, err := c.exec(`UPDATE ledger SET value = ? WHERE part = ?`, []byte("q"), id)
		return err
	}))
	_, _, err := s.Record(ctx, id)
	require.ErrorIs(t, err, models.ErrNewer)
	require.NotErrorIs(t, err, models.ErrDamaged)
	require.NotErrorIs(t, err, models.ErrUnavailable)
	require.ErrorIs(t, s.Append(ctx, id, storetest.SampleEntry(1)), models.ErrNewer)
	require.NoError(t, s.engine.write(ctx, 0, func(c *conn) error { return c.script("PRAGMA user_version = 1000") }))
	require.NoError(t, s.Close())
	_, err = Open(dir, Options{})
	require.ErrorContains(t, err, "a newer version wrote it")
}
