package cassandra

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/codec"
	"github.com/safedelivr/safedelivr/models/storetest"
)

// Earlier builds stamped rows by the clocks of their processes, and some clocks
// were far ahead: what they left can be replaced and removed all the same.
func TestRowsOfClocksThatWereAhead(t *testing.T) {
	s := open(t, newConfig(t))
	ctx, ahead := t.Context(), time.Now().AddDate(1, 0, 0)
	old := func(cql string, args ...any) {
		t.Helper()
		require.NoError(t, s.exec(ctx, plain, cql, args...))
	}
	t.Run("Reports", func(t *testing.T) {
		for name, leave := range map[string]func(name string){
			"there": func(name string) {
				old(`INSERT INTO reports (kind, name, value) VALUES ('k', ?, ?) USING TTL 3600 AND TIMESTAMP ?`, name, []byte("old"), ahead.UnixMicro())
			},
			"ended": func(name string) {
				old(`INSERT INTO reports (kind, name, value) VALUES ('k', ?, ?) USING TTL 1 AND TIMESTAMP ?`, name, []byte("old"), ahead.UnixMicro())
				require.Eventually(t, func() bool {
					_, err := s.Transient(ctx, "k", name)
					return err != nil
				}, 10*time.Second, 50*time.Millisecond)
			},
			"of a server": func(name string) {
				old(`INSERT INTO reports (kind, name, value) VALUES ('k', ?, ?) USING TTL 3600 AND TIMESTAMP ?`, name, []byte("old"), reportEpoch+ahead.UnixMicro())
			},
			"removed": func(name string) {
				old(`DELETE FROM reports USING TIMESTAMP ? WHERE kind = 'k' AND name = ?`, ahead.UnixMicro(), name)
			},
		} {
			for _, first := range []string{"", "new"} {
				leave(name + first)
				for _, value := range []string{first, "newer", "", "newest"} {
					ttl := time.Hour
					if value == "" {
						ttl = 0
					}
					require.NoError(t, s.PutTransient(ctx, "k", name+first, []byte(value), ttl))
					got, err := s.Transient(ctx, "k", name+first)
					if value == "" {
						require.ErrorIs(t, err, models.ErrNotFound, name)
						continue
					}
					require.NoError(t, err, "%s: %q", name, value)
					require.Equal(t, value, string(got), name)
				}
			}
		}
	})
	t.Run("Removal", func(t *testing.T) {
		for _, hours := range []int{1, 100} {
			require.NoError(t, s.PutTransient(ctx, "long", "n", []byte("old"), time.Duration(hours)*time.Hour))
			for range 2 {
				require.NoError(t, s.PutTransient(ctx, "long", "n", nil, 0))
			}
			left, err := single(ctx, &s.runner, column[int], `SELECT TTL(gone) FROM reports WHERE kind = 'long' AND name = 'n'`)
			require.NoError(t, err)
			require.GreaterOrEqual(t, left, (max(hours, 24)*3600)-60, "it lasts as long as what it removed")
		}
	})
	t.Run("User", func(t *testing.T) {
		u := models.User{ID: models.NewUserID(), Name: "free", Created: time.Now().UTC().Truncate(time.Millisecond)}
		require.NoError(t, s.CreateUser(ctx, models.User{ID: models.NewUserID(), Name: "taken", Created: u.Created}))
		old(`INSERT INTO users (id, name) VALUES (?, 'taken') USING TIMESTAMP ?`, u.ID, ahead.UnixMicro())
		require.NoError(t, s.CreateUser(ctx, u))
		got, err := s.User(ctx, u.ID)
		require.NoError(t, err)
		require.Equal(t, u, got)
	})
	t.Run("Mark", func(t *testing.T) {
		old(`INSERT INTO agenda_marks (shard, mark) VALUES (3, ?) USING TIMESTAMP ?`, ahead.UnixMilli(), ahead.UnixMilli())
		require.NoError(t, s.SetAgendaMark(ctx, 3, time.Time{}), "it says nothing")
		mark, err := s.AgendaMark(ctx, 3)
		require.NoError(t, err)
		require.WithinDuration(t, time.Now(), mark, 10*time.Second)
		at := time.Now().Add(-time.Hour).UTC().Truncate(time.Millisecond)
		require.NoError(t, s.SetAgendaMark(ctx, 3, at))
		mark, err = s.AgendaMark(ctx, 3)
		require.NoError(t, err)
		require.Equal(t, at, mark)

		require.NoError(t, s.SetAgendaMark(ctx, 4, ahead))
		ms, err := s.mark(ctx, 4)
		require.NoError(t, err)
		require.WithinDuration(t, time.Now(), timeOf(ms), 10*time.Second, "none is written ahead of the servers")
	})
}

// What earlier builds wrote where the first is to stay, stays.
func TestRowsThatStay(t *testing.T) {
	s := open(t, newConfig(t))
	ctx := t.Context()
	for _, off := range []time.Duration{0, time.Hour, -time.Hour, 10 * 365 * 24 * time.Hour} {
		id, first, later := models.NewBatchID(time.Now()), storetest.SampleFact(1), storetest.SampleFact(1)
		first.Outcome.Parts[0].Text, later.Outcome.Parts[0].Text = "a", "b"
		require.NoError(t, s.exec(ctx, plain, `INSERT INTO facts (chunk_id, key, value) VALUES (?, ?, ?) USING TIMESTAMP ?`,
			id[:], first.Key, codec.EncodeFact(&first), 3_400_000_000_000_000-time.Now().Add(off).UnixMicro()))
		require.NoError(t, s.PutFacts(ctx, models.ChunkFact{Chunk: id, Fact: later}))
		_, fs, err := s.Record(ctx, id)
		require.NoError(t, err)
		require.Len(t, fs, 1)
		require.Equal(t, "a", fs[0].Outcome.Parts[0].Text, "a clock that was %v off", off)
	}

	at := time.Now().Truncate(12 * time.Hour) // of one span
	old := models.ReplayMark{Group: "g", Key: "k", Digest: "old", Entry: models.NewInboxID(at)}
	var value []byte
	for _, b := range old.Entry {
		value = append(value, ^b)
	}
	require.NoError(t, s.exec(ctx, plain, `INSERT INTO witnessed (shared, key, span, value) VALUES (?, ?, ?, ?) USING TTL 3600 AND TIMESTAMP ?`,
		old.Group, old.Key, at.UnixMilli()/witnessSpan, append(value, old.Digest...), latest+1-at.UnixMilli()))
	for _, after := range []time.Duration{time.Millisecond, time.Hour, 30 * time.Hour} {
		firsts, err := s.GuardReplays(ctx, models.ReplayMark{Group: "g", Key: "k", Digest: "new", Entry: models.NewInboxID(at.Add(after))})
		require.NoError(t, err)
		require.Equal(t, []string{"old"}, firsts)
	}
	firsts, err := s.GuardReplays(ctx, models.ReplayMark{Group: "g", Key: "k", Digest: "older", Entry: models.NewInboxID(at.Add(-time.Millisecond))})
	require.NoError(t, err)
	require.Equal(t, []string{"older"}, firsts)

	claim := models.Claim{ID: models.NewBatchID(time.Now()), Hash: "h", At: time.Now().UTC().Truncate(time.Millisecond)}
	_, err = s.Claim(ctx, "key", claim, time.Hour)
	require.NoError(t, err)
	require.NoError(t, s.exec(ctx, plain, `INSERT INTO claim_answers (key, id, value) VALUES ('key', ?, ?) USING TTL 3600`, claim.ID[:], []byte("kept")))
	there, err := s.Claimed(ctx, "key")
	require.NoError(t, err)
	require.Equal(t, "kept", string(there.Answer))
}
