package rollup

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

// clock is the time of rounds. Each round is two settleRounds after the one before.
type clock struct{ now time.Time }

// round makes a round and returns its result.
func (c *clock) round(f *fixture) Round {
	f.Helper()
	require.NoError(f, f.checkSums(f.Context(), c.now))
	w, err := f.lastRound(f.Context())
	require.NoError(f, err)
	c.now = c.now.Add(2 * settleRounds)
	return w
}

// reported returns what the reported suspects of a round are.
func reported(w Round) (out []string) {
	for i := range w.Suspects {
		if w.Suspects[i].Reported {
			out = append(out, w.Suspects[i].What)
		}
	}
	return out
}

// TestRoundFindsWrongChunk: a round finds a wrong summary, reports it once it lasts, passes
// it on to the next worker, and forgets it when it is right again.
func TestRoundFindsWrongChunk(t *testing.T) {
	t.Parallel()
	f, c := newFixture(t, nil), &clock{now: time.Now().Add(40 * time.Minute)}
	var batches []*models.Batch
	for n := range 5 {
		batches = append(batches, f.delivered(10+n))
	}
	w := c.round(f)
	require.Empty(t, w.Suspects)
	require.Equal(t, 5, w.Batches, "accepted since the last round")
	w = c.round(f)
	require.Empty(t, w.Suspects)
	require.Equal(t, 5, w.Batches, "older: the walk begins again")

	truth := f.lie(batches[1])
	w = c.round(f)
	require.NotEmpty(t, w.Suspects)
	require.Zero(t, w.Differences, "the sum may be late")
	require.Contains(t, reported(c.round(f)), "chunk")
	f.restart()
	w = c.round(f)
	require.Equal(t, 1, w.Differences)
	require.Equal(t, batches[1].ID.String(), w.Suspects[0].ID)
	f.put(batches[1], truth)
	require.Empty(t, c.round(f).Suspects)
}

// TestRoundFindsWrongSum: a round finds a sum that is wrong at any level, above a chunk that
// is right.
func TestRoundFindsWrongSum(t *testing.T) {
	t.Parallel()
	f, c := newFixture(t, nil), &clock{now: time.Now().Add(40 * time.Minute)}
	f.delivered(10)
	b := f.delivered(11)
	truth := f.lie(b)
	f.rollUp(b, models.Levels[:]...)
	f.put(b, truth)
	for _, level := range models.Levels {
		c.round(f)
		require.Equal(t, []string{string(level)}, reported(c.round(f)))
		f.rollUp(b, level)
	}
	require.Empty(t, c.round(f).Suspects)
}

// TestCheckRepairsOneLevel: a check finds and repairs a sum that is wrong at one level only.
func TestCheckRepairsOneLevel(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	f.delivered(10)
	b := f.delivered(11)
	for i, level := range models.Levels {
		truth := f.lie(b)
		f.rollUp(b, models.Levels[:i+1]...)
		f.put(b, truth)
		f.rollUp(b, models.Levels[:i]...)
		var found []string
		out, err := f.Check(t.Context(), CheckOptions{
			Repair: true,
			Settle: 100 * time.Millisecond,
			Found:  func(d Difference) { found = append(found, d.What) },
		})
		require.NoError(t, err)
		require.Contains(t, found, string(level))
		require.Equal(t, 1, out.Repaired)
		out, err = f.Check(t.Context(), CheckOptions{Settle: 100 * time.Millisecond})
		require.NoError(t, err)
		require.Zero(t, out.Differences, level)
	}
}

// TestCheckRepairsGroups: a check finds and repairs a sum in which only the counts of a group are wrong.
func TestCheckRepairsGroups(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	f.tags = []string{"spring"}
	b := f.delivered(11)
	group := models.Group{Kind: models.ByTag, Name: "spring"}
	truth := f.stored(b)
	require.Equal(t, []models.Group{{Kind: models.ByProvider, Name: "sg"}, group}, truth.In)
	wrong := truth
	wrong.In = truth.In[:1]
	f.put(b, wrong)
	f.rollUp(b, models.Levels[:]...)
	f.put(b, truth)
	var found []string
	out, err := f.Check(t.Context(), CheckOptions{
		Repair: true,
		Settle: 100 * time.Millisecond,
		Found:  func(d Difference) { found = append(found, d.String()) },
	})
	require.NoError(t, err)
	require.Positive(t, out.Repaired)
	require.Contains(t, found[len(found)-1], "in tag:spring accepted 11")
	out, err = f.Check(t.Context(), CheckOptions{Settle: 100 * time.Millisecond})
	require.NoError(t, err)
	require.Zero(t, out.Differences)
}

// TestCheckRepairsProviders: a check finds and repairs wrong counts of a provider. They are of a chunk whose mail is
// all at one, of one whose mail was rerouted, and of the sums above them.
func TestCheckRepairsProviders(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	b := f.delivered(11)
	sg, mg := models.Group{Kind: models.ByProvider, Name: "sg"}, models.Group{Kind: models.ByProvider, Name: "mg"}
	check := func(repair bool) (out []string) {
		_, err := f.Check(t.Context(), CheckOptions{
			Repair: repair, Settle: 100 * time.Millisecond,
			Found: func(d Difference) { out = append(out, d.String()) },
		})
		require.NoError(t, err)
		return out
	}
	wrong := f.stored(b)
	require.Equal(t, []models.Group{sg}, wrong.In)
	wrong.In = []models.Group{mg}
	f.put(b, wrong)
	f.rollUp(b, models.Levels[:]...)
	require.Contains(t, strings.Join(check(true), "\n"), ", in provider:mg; counted")
	require.Empty(t, check(false))
	require.Equal(t, []models.Group{sg}, f.stored(b).In)

	blocked := models.Event{
		ID: "e", Attempt: 1, Provider: "sg", Recipient: 3, Kind: models.Blocked, Reason: models.PolicyReputation,
		At: time.Now(),
	}
	require.NoError(t, f.store.PutFacts(t.Context(), models.ChunkFact{
		Chunk: b.ID, Fact: models.Fact{Key: "blocked", Events: []models.Event{blocked}},
	}))
	require.NoError(t, f.store.Append(t.Context(), b.ID, models.Entry{
		Number: 2, Token: models.NewToken(), Kind: models.Attempt, Provider: "mg", Recipients: models.SetOf(3),
		At: time.Now().UTC(), CallEnds: time.Now().UTC(),
	}))
	f.Mark(f.user, b.ID)
	require.NoError(t, f.Flush(t.Context()))
	day := func() map[models.Group]*models.Summary {
		nodes, err := f.store.Nodes(t.Context(), f.user, models.Day, models.DayOf(b.Created()), b.Created())
		require.NoError(t, err)
		require.Len(t, nodes, 1)
		return nodes[0].Summary.Groups
	}
	require.Equal(t, []int64{10, 1, 1}, []int64{day()[sg].Accepted, day()[sg].Rerouted, day()[mg].Accepted})
	truth := day()
	for name, change := range map[string]func(s *models.Summary){
		"rerouted 0":  func(s *models.Summary) { s.Rerouted = 0 },
		"events map[": func(s *models.Summary) { s.Events = map[models.EventKind]int64{models.Opened: 7} },
		"delivered 4": func(s *models.Summary) { s.Success, s.Failed = 4, 6 },
	} {
		wrong = f.stored(b)
		change(wrong.Groups[sg])
		f.put(b, wrong)
		f.rollUp(b, models.Levels[:]...)
		require.Contains(t, strings.Join(check(true), "\n"), name)
		require.Empty(t, check(false))
		require.Equal(t, truth, day())
	}
}

// unreadable is a store in which the sums of one level, or all batches, cannot be read.
type unreadable struct {
	models.Store
	level   models.Level
	batches bool
}

func (s *unreadable) Nodes(
	ctx context.Context,
	user string,
	level models.Level,
	from, to time.Time,
) ([]models.Node, error) {
	if level == s.level {
		return nil, models.ErrDamaged
	}
	return s.Store.Nodes(ctx, user, level, from, to)
}

func (s *unreadable) Batches(ctx context.Context, user string, before models.ID, limit int) ([]models.Batch, error) {
	bs, err := s.Store.Batches(ctx, user, before, limit)
	for i := range bs {
		if s.batches {
			bs[i] = models.Batch{ID: bs[i].ID, User: user, Damaged: true}
		}
	}
	return bs, err
}

// TestUnreadableIsReported: a sum or a batch that cannot be read is reported, and stops
// neither a check nor a round.
func TestUnreadableIsReported(t *testing.T) {
	t.Parallel()
	s := &unreadable{}
	f := newFixture(t, func(store models.Store) models.Store { s.Store = store; return s })
	f.deliveredAt(3, time.Now().Add(-3*time.Hour)) // a round leaves what is newer to the next one
	for i, c := range []unreadable{
		{level: models.Second},
		{level: models.Minute},
		{level: models.Hour},
		{level: models.Day},
		{batches: true},
	} {
		s.level, s.batches = c.level, c.batches
		damaged := 0
		_, err := f.Check(t.Context(), CheckOptions{Settle: 50 * time.Millisecond, Found: func(d Difference) {
			if d.Damaged != "" {
				damaged++
			}
		}})
		require.NoError(t, err, c.level)
		require.NotZero(t, damaged, c.level)
		now := time.Now().Add(time.Duration(i+1) * 10 * time.Minute)
		require.NoError(t, f.checkSums(t.Context(), now), c.level)
		w, err := f.lastRound(t.Context())
		require.NoError(t, err)
		require.True(t, w.At.Equal(now), "the round has a result")
		require.NotZero(t, w.Differences, c.level)
	}
}

// killed is a store whose writer is killed after some writes of sums.
type killed struct {
	models.Store
	left int // writes before the kill; below 0: no kill
}

func (s *killed) write() error {
	if s.left == 0 {
		return models.ErrUnavailable
	}
	s.left--
	return nil
}

func (s *killed) PutSummaries(ctx context.Context, ss ...models.ChunkSummary) error {
	if err := s.write(); err != nil {
		return err
	}
	return s.Store.PutSummaries(ctx, ss...)
}

func (s *killed) RollUp(ctx context.Context, span models.Span) error {
	if err := s.write(); err != nil {
		return err
	}
	return s.Store.RollUp(ctx, span)
}

// TestRoundRenewsSumsThatAKillCutOff: a worker is killed between two writes of a renewal: of the
// summary, or of one of the sums above it. No mark is left, and nothing about the batch is due. A
// round renews the sums, and reports nothing.
func TestRoundRenewsSumsThatAKillCutOff(t *testing.T) {
	t.Parallel()
	for k := range 2 * (1 + len(models.Levels)) {
		writes, at := k/2, time.Now()
		if k%2 > 0 {
			at = models.DayOf(at).AddDate(0, 0, -20).Add(time.Hour)
		}
		s := &killed{left: -1}
		f := newFixture(t, func(store models.Store) models.Store { s.Store = store; return s })
		c := &clock{now: time.Now().Add(40 * time.Minute)}
		b := f.deliveredAt(10, at)
		f.deliveredAt(11, at.Add(time.Hour))
		bounced := models.Event{
			ID:        "e",
			Attempt:   1,
			Provider:  "sg",
			Recipient: 3,
			Kind:      models.Bounced,
			Reason:    models.MailboxInvalid,
			At:        time.Now(),
		}
		fact := models.Fact{Key: "late", Events: []models.Event{bounced}}
		require.NoError(t, f.store.PutFacts(t.Context(), models.ChunkFact{Chunk: b.ID, Fact: fact}))
		f.Mark(f.user, b.ID)
		s.left = writes
		require.Error(t, f.Flush(t.Context()))
		s.left = -1
		f.restart()

		for range 2 * len(models.Levels) {
			w := c.round(f)
			require.Empty(t, reported(w), "killed after %d writes", writes)
			require.NoError(t, f.Flush(t.Context()))
		}
		require.Empty(t, c.round(f).Suspects)
		require.EqualValues(t, 1, f.stored(b).Failed)
		out, err := f.Check(t.Context(), CheckOptions{Settle: 50 * time.Millisecond})
		require.NoError(t, err)
		require.Zero(t, out.Differences, "killed after %d writes", writes)
	}
}
