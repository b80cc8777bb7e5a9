package control

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

// applied applies commands, numbered in order.
func applied(t *testing.T, commands ...models.Command) *Rules {
	t.Helper()
	r := NewRules()
	for i := range commands {
		commands[i].Number = i + 1
		require.True(t, r.Apply(commands[i]))
		require.True(t, r.Apply(commands[i]), "again changes nothing")
	}
	require.Equal(t, len(commands), r.UpTo())
	require.False(t, r.Apply(models.Command{Number: len(commands) + 2}), "a gap")
	return r
}

func TestRulesOfBatches(t *testing.T) {
	t.Parallel()
	b := models.Batch{ID: models.NewBatchID(time.Now()), User: "u"}
	stop, resume := models.Command{
		Kind:  models.StopBatch,
		Batch: b.ID,
		By:    "me",
		Why:   "typo",
		At:    time.Unix(5, 0),
	}, models.Command{
		Kind:  models.ResumeBatch,
		Batch: b.ID,
	}
	require.Equal(t, BatchRule{}, applied(t).Batch(&b))
	require.Equal(
		t,
		&models.Wait{Code: models.WaitBatchStopped, Text: "stopped by me", By: "me", Why: "typo", Since: stop.At},
		applied(t, resume, stop).Batch(&b).Waits,
	)
	require.Equal(t, "me", applied(t, resume, stop).StoppedBy(b.ID))
	require.Empty(t, applied(t, stop, resume).StoppedBy(b.ID))
	require.Equal(t, BatchRule{}, applied(t, stop, resume).Batch(&b))
	r := applied(
		t,
		stop,
		models.Command{Kind: models.CancelBatch, Batch: b.ID, Why: "first"},
		models.Command{Kind: models.CancelBatch, Batch: b.ID},
		resume,
	)
	require.Equal(t, "first", r.Batch(&b).Cancel.Why, "a cancellation is permanent")
	stopped, cancelled := r.Stopped(b.ID)
	require.False(t, stopped)
	require.True(t, cancelled)

	r = applied(t, models.Command{Kind: models.PauseUser, User: "u"})
	require.True(t, r.Paused("u"))
	require.NotEmpty(t, r.Batch(&b).Waits)
	require.Empty(t, r.Batch(&models.Batch{ID: b.ID, User: "v"}).Waits)
	require.Empty(
		t,
		applied(
			t,
			models.Command{Kind: models.PauseUser, User: "u"},
			models.Command{Kind: models.ResumeUser, User: "u"},
		).Batch(
			&b,
		).Waits,
	)

	hold := models.Command{Kind: models.HoldOld, Before: b.Created().Add(time.Millisecond)}
	require.NotEmpty(t, applied(t, hold).Batch(&b).Waits)
	require.Empty(t, applied(t, hold, models.Command{Kind: models.LiftHolds}).Batch(&b).Waits)
	require.Empty(
		t,
		applied(t, models.Command{Kind: models.HoldOld, Before: b.Created()}).Batch(&b).Waits,
		"what came after the restore goes out",
	)

	other := models.Batch{ID: models.NewBatchID(time.Now()), User: "u"}
	r = applied(
		t,
		models.Command{Kind: models.RetryBatch, Batch: b.ID},
		models.Command{Kind: models.ReleaseBatch, Batch: b.ID, Log: b.ID.Log(1)},
		models.Command{Kind: models.RetryBatch, Batch: other.ID},
		models.Command{Kind: models.CancelBatch, Batch: other.ID},
	)
	require.Len(t, r.Batch(&b).Releases, 2)
	r.Forget(b.Created(), models.ID{})
	require.Len(t, r.Batch(&b).Releases, 2)
	r.Forget(b.Created().Add(time.Second), models.ID{})
	require.Empty(t, r.Batch(&b).Releases)
	require.Empty(t, r.Batch(&other).Releases)
	_, cancelled = r.Stopped(other.ID)
	require.True(t, cancelled)
}

// TestNewTimesReplaceThoseOfBatch: the last command about the times of a batch counts. It is kept as long as the
// batch.
func TestNewTimesReplaceThoseOfBatch(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	b := &models.Batch{
		ID:        models.NewBatchID(at),
		User:      "u",
		DeliverAt: at.AddDate(0, 0, 1),
		ExpiresAt: at.AddDate(0, 0, 8),
	}
	move := func(days int, w *models.SendWindow) models.Command {
		s := models.Schedule{DeliverAt: at.AddDate(0, 0, days), Window: w, ExpiresAt: at.AddDate(0, 0, days+7)}
		return models.Command{Kind: models.RescheduleBatch, Batch: b.ID, Schedule: &s}
	}
	require.Same(t, b, applied(t).Scheduled(b))
	r := applied(t, move(5, &models.SendWindow{To: 60, Zone: "UTC"}), move(3, nil),
		models.Command{Kind: models.StopBatch, Batch: b.ID}, models.Command{Kind: models.ResumeBatch, Batch: b.ID})
	for range 2 {
		now := r.Scheduled(b)
		require.Equal(t, *move(3, nil).Schedule, now.Schedule())
		require.Equal(t, "u", now.User)
		require.Equal(t, at.AddDate(0, 0, 1), b.DeliverAt, "the batch itself never changes")
		r.Forget(at.AddDate(1, 0, 0), models.ID{})
	}
	r.Forget(at, models.MinID(at.AddDate(0, 0, 1)))
	require.Same(t, b, r.Scheduled(b), "the batch was purged")
}

// TestPendingReleases: the releases of a chunk are pending until an entry of its ledger has
// their number or a higher one. One entry contains those of one kind and reason.
func TestPendingReleases(t *testing.T) {
	t.Parallel()
	b := models.Batch{ID: models.NewBatchID(time.Now())}
	r := applied(
		t,
		models.Command{Kind: models.ReleaseBatch, Batch: b.ID, Log: b.ID.Log(1)},
		models.Command{Kind: models.ReleaseBatch, Batch: b.ID, Log: b.ID.Log(2)},
		models.Command{Kind: models.ReleaseBatch, Batch: b.ID, Chunks: []int{1, 5}},
		models.Command{Kind: models.RetryBatch, Batch: b.ID},
		models.Command{Kind: models.RetryBatch, Batch: b.ID, Why: "fixed"},
	)
	rule := r.Batch(&b)
	pending := func(chunk, upTo int) (numbers []int) {
		ledger := []models.Entry{
			{Number: 1, Kind: models.Release, Command: upTo},
			{Number: 2, Kind: models.Cancel, Command: 100},
		}
		for _, c := range rule.Pending(b.ID.Chunk(chunk), ledger) {
			numbers = append(numbers, c.Number)
		}
		return numbers
	}
	require.Equal(t, []int{1, 2, 4, 5}, pending(0, 0))
	require.Equal(t, []int{4, 5}, pending(0, 2))
	require.Empty(t, pending(0, 5))
	require.Equal(t, []int{3, 4, 5}, pending(5, 0))
	require.Equal(t, []int{4, 5}, pending(2, 0))
	all := rule.Pending(b.ID.Chunk(0), nil)
	require.Equal(t, 2, OneEntry(all))
	require.Equal(t, 1, OneEntry(all[2:]))
	require.Equal(t, 1, OneEntry(all[3:]))
}

func TestRulesOfProvidersAndBlocks(t *testing.T) {
	t.Parallel()
	require.Equal(t, models.ProviderOnline, applied(t).Provider("sg").Mode)
	r := applied(
		t,
		models.Command{Kind: models.ProviderDrain, Provider: "sg"},
		models.Command{Kind: models.ProviderOffline, Provider: "sg", Why: "w"},
	)
	require.Equal(t, models.ProviderOffline, r.Provider("sg").Mode)
	require.Equal(t, "w", r.Provider("sg").Why)

	list, set := applied(t).Senders("u")
	require.False(t, set)
	require.Empty(t, list)
	list, set = applied(
		t,
		models.Command{Kind: models.SetSenders, User: "u", Senders: []string{"@x.example"}},
	).Senders(
		"u",
	)
	require.True(t, set)
	require.Equal(t, []string{"@x.example"}, list)

	add := func(b models.Block) models.Command { return models.Command{Kind: models.AddBlock, Block: &b} }
	r = applied(
		t,
		add(models.Block{ID: "1", Domain: "a.example"}),
		add(models.Block{ID: "2"}),
		add(models.Block{ID: "1", Domain: "b.example"}),
		models.Command{Kind: models.RemoveBlock, Block: &models.Block{ID: "2"}},
	)
	require.Len(t, r.Blocks(), 1)
	require.Equal(t, "b.example", r.Blocks()[0].Domain)

	b := &models.Batch{User: "u", Content: models.Content{From: models.Address{Email: "News@Shop.example"}}}
	for _, c := range []struct {
		block    models.Block
		provider string
		to       string
		want     bool
	}{
		{models.Block{Provider: "sg"}, "sg", "", true},
		{models.Block{Provider: "sg"}, "mg", "", false},
		{models.Block{Provider: "sg"}, "", "", false},
		{models.Block{User: "u"}, "", "", true},
		{models.Block{User: "v"}, "", "", false},
		{models.Block{Sender: "news@shop.example"}, "", "", true},
		{models.Block{Sender: "@SHOP.example"}, "", "", true},
		{models.Block{Sender: "@hop.example"}, "", "", false},
		{models.Block{Domain: "GMAIL.com"}, "", "x@gmail.com", true},
		{models.Block{Domain: "gmail.com"}, "", "x@notgmail.com", false},
		{models.Block{Domain: "gmail.com"}, "", "", false},
		{models.Block{User: "u", Domain: "gmail.com", Provider: "sg"}, "sg", "x@gmail.com", true},
		{models.Block{User: "u", Domain: "gmail.com", Provider: "sg"}, "mg", "x@gmail.com", false},
	} {
		require.Equal(t, c.want, c.block.Meets(b, c.provider, c.to), "%+v", c)
	}
}

// TestDisabledUser: a disabled user's mail goes on, and the sessions stay ended after the user
// is enabled.
func TestDisabledUser(t *testing.T) {
	t.Parallel()
	disable := models.Command{Kind: models.DisableUser, User: "u", Why: "left", By: "boss"}
	r := applied(t)
	require.Nil(t, r.Disabled("u"))
	require.Zero(t, r.SessionsEnded("u"))
	r = applied(t, models.Command{Kind: models.PauseUser, User: "v"}, disable)
	require.Equal(t, "left", r.Disabled("u").Why)
	require.Equal(t, 2, r.SessionsEnded("u"))
	require.Empty(t, r.Batch(&models.Batch{User: "u"}).Waits)
	require.Nil(t, r.Disabled("v"))
	r = applied(t, disable, models.Command{Kind: models.EnableUser, User: "u"})
	require.Nil(t, r.Disabled("u"))
	require.Equal(t, 1, r.SessionsEnded("u"))
	r = applied(t, disable, models.Command{Kind: models.EndSessions, User: "u"})
	require.NotNil(t, r.Disabled("u"))
	require.Equal(t, 2, r.SessionsEnded("u"))
}

// TestKinds: each kind of command changes the rules, unless it is only recorded.
func TestKinds(t *testing.T) {
	t.Parallel()
	for kind := range models.CommandKinds() {
		id := models.NewBatchID(time.Now())
		c := models.Command{
			Batch: id, User: "u", Provider: "sg", At: time.Unix(5, 0),
			Senders: []string{"@example.com"}, Block: &models.Block{ID: "1"}, Limits: models.Limits{"batches_per_day": 1},
			Defaults: models.SendDefaults{Zone: "UTC"}, Schedule: &models.Schedule{},
		}
		var before []models.Command // what the kind may end
		for _, begin := range []models.CommandKind{
			models.StopBatch, models.PauseUser, models.DisableUser, models.AddBlock, models.HoldOld,
		} {
			c.Kind = begin
			before = append(before, c)
		}
		r := applied(t, before...)
		c.Kind, c.Number, c.By = kind, r.UpTo()+1, "another"
		was := state(t, r)
		require.True(t, r.Apply(c))
		require.Equal(t, kind.Recorded(), state(t, r) == was, "%s: Apply, or its effect in models/command.go", kind)
	}
}

// state returns the rules as they are stored, without the number of the last command and of the last that resumed mail.
func state(t *testing.T, r *Rules) string {
	t.Helper()
	_, raw, err := r.Snapshot(models.ID{})
	require.NoError(t, err)
	var s snapshot
	require.NoError(t, json.Unmarshal(raw, &s))
	s.UpTo, s.Resumed = 0, 0
	raw, err = json.Marshal(s)
	require.NoError(t, err)
	return string(raw)
}
