package models

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// applied folds orders, numbered as they come.
func applied(t *testing.T, orders ...Control) *Rules {
	t.Helper()
	r := NewRules()
	for i := range orders {
		orders[i].Number = i + 1
		require.True(t, r.Apply(orders[i]))
		require.True(t, r.Apply(orders[i]), "again changes nothing")
	}
	require.Equal(t, len(orders), r.UpTo())
	require.False(t, r.Apply(Control{Number: len(orders) + 2}), "a gap")
	return r
}

func TestRulesOfBatches(t *testing.T) {
	t.Parallel()
	b := Batch{ID: NewBatchID(time.Now()), User: "u"}
	stop, resume := Control{Action: StopBatch, Batch: b.ID, By: "me"}, Control{Action: ResumeBatch, Batch: b.ID}
	require.Equal(t, BatchRule{}, applied(t).Batch(&b))
	require.Equal(t, "stopped by me", applied(t, resume, stop).Batch(&b).Waits)
	require.Equal(t, "me", applied(t, resume, stop).StoppedBy(b.ID))
	require.Empty(t, applied(t, stop, resume).StoppedBy(b.ID))
	require.Equal(t, BatchRule{}, applied(t, stop, resume).Batch(&b))
	r := applied(t, stop, Control{Action: CancelBatch, Batch: b.ID, Why: "first"}, Control{Action: CancelBatch, Batch: b.ID}, resume)
	require.Equal(t, "first", r.Batch(&b).Cancel.Why, "a cancellation stands for ever")
	stopped, cancelled := r.Stopped(b.ID)
	require.False(t, stopped)
	require.True(t, cancelled)

	r = applied(t, Control{Action: PauseUser, User: "u"})
	require.True(t, r.Paused("u"))
	require.NotEmpty(t, r.Batch(&b).Waits)
	require.Empty(t, r.Batch(&Batch{ID: b.ID, User: "v"}).Waits)
	require.Empty(t, applied(t, Control{Action: PauseUser, User: "u"}, Control{Action: ResumeUser, User: "u"}).Batch(&b).Waits)

	hold := Control{Action: HoldOld, Before: b.Created().Add(time.Millisecond)}
	require.NotEmpty(t, applied(t, hold).Batch(&b).Waits)
	require.Empty(t, applied(t, hold, Control{Action: LiftHolds}).Batch(&b).Waits)
	require.Empty(t, applied(t, Control{Action: HoldOld, Before: b.Created()}).Batch(&b).Waits, "what came after the restore goes out")

	other := Batch{ID: NewBatchID(time.Now()), User: "u"}
	r = applied(t, Control{Action: RetryBatch, Batch: b.ID}, Control{Action: ReleaseBatch, Batch: b.ID, Log: b.ID.Log(1)},
		Control{Action: RetryBatch, Batch: other.ID}, Control{Action: CancelBatch, Batch: other.ID})
	require.Len(t, r.Batch(&b).Releases, 2)
	r.Forget(b.Created())
	require.Len(t, r.Batch(&b).Releases, 2)
	r.Forget(b.Created().Add(time.Second))
	require.Empty(t, r.Batch(&b).Releases)
	require.Empty(t, r.Batch(&other).Releases)
	_, cancelled = r.Stopped(other.ID)
	require.True(t, cancelled)
}

func TestRulesOfProvidersAndBlocks(t *testing.T) {
	t.Parallel()
	require.Equal(t, ProviderOnline, applied(t).Provider("sg").Mode)
	r := applied(t, Control{Action: ProviderDrain, Provider: "sg"}, Control{Action: ProviderOffline, Provider: "sg", Why: "w"})
	require.Equal(t, ProviderOffline, r.Provider("sg").Mode)
	require.Equal(t, "w", r.Provider("sg").Why)

	list, set := applied(t).Senders("u")
	require.False(t, set)
	require.Empty(t, list)
	list, set = applied(t, Control{Action: SetSenders, User: "u", Senders: []string{"@x.example"}}).Senders("u")
	require.True(t, set)
	require.Equal(t, []string{"@x.example"}, list)

	add := func(b Block) Control { return Control{Action: AddBlock, Block: &b} }
	r = applied(t, add(Block{ID: "1", Domain: "a.example"}), add(Block{ID: "2"}), add(Block{ID: "1", Domain: "b.example"}),
		Control{Action: RemoveBlock, Block: &Block{ID: "2"}})
	require.Len(t, r.Blocks(), 1)
	require.Equal(t, "b.example", r.Blocks()[0].Domain)

	b := &Batch{User: "u", Content: Content{From: Address{Email: "News@Shop.example"}}}
	for _, c := range []struct {
		block    Block
		provider string
		to       string
		want     bool
	}{
		{Block{Provider: "sg"}, "sg", "", true},
		{Block{Provider: "sg"}, "mg", "", false},
		{Block{Provider: "sg"}, "", "", false},
		{Block{User: "u"}, "", "", true},
		{Block{User: "v"}, "", "", false},
		{Block{Sender: "news@shop.example"}, "", "", true},
		{Block{Sender: "@SHOP.example"}, "", "", true},
		{Block{Sender: "@hop.example"}, "", "", false},
		{Block{Domain: "GMAIL.com"}, "", "x@gmail.com", true},
		{Block{Domain: "gmail.com"}, "", "x@notgmail.com", false},
		{Block{Domain: "gmail.com"}, "", "", false},
		{Block{User: "u", Domain: "gmail.com", Provider: "sg"}, "sg", "x@gmail.com", true},
		{Block{User: "u", Domain: "gmail.com", Provider: "sg"}, "mg", "x@gmail.com", false},
	} {
		require.Equal(t, c.want, c.block.Meets(b, c.provider, c.to), "%+v", c)
	}
}
