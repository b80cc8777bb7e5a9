package drift

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/store/memory"
)

// note stores entries of addresses at providers, and returns the store.
func note(t *testing.T, es ...Entry) *memory.Store {
	t.Helper()
	s := memory.Open(t)
	for i := range es {
		require.NoError(t, Note(t.Context(), s, &es[i]))
	}
	return s
}

func bounce(email, provider string) Entry {
	return Entry{Email: email, Provider: provider, List: "bounces", Reason: models.HardBounce, At: time.Now().UTC()}
}

func TestKeys(t *testing.T) {
	t.Parallel()
	e := Entry{Email: "Ann@x.test", Provider: "sg", List: "groups/7"}
	h, provider, list := ParseKey(e.Key())
	require.Equal(t, models.HashAddress("ann@x.test"), h)
	require.Equal(t, []string{"sg", "groups/7"}, []string{provider, list})
}

// TestEntryOfAnotherCaller: an entry that another caller has changed is neither replaced nor removed.
func TestEntryOfAnotherCaller(t *testing.T) {
	t.Parallel()
	ctx, e := t.Context(), bounce("ann@x.test", "sg")
	s := note(t, e)
	read := func() Stored {
		t.Helper()
		all, err := EntriesOf(ctx, s, []string{e.Key()})
		require.NoError(t, err)
		require.Len(t, all, 1)
		return all[e.Key()]
	}
	mine := read()
	theirs := mine
	theirs.Text, theirs.Version = "theirs", mine.Version+1
	require.NoError(t, Put(ctx, s, []Stored{theirs}))

	late := mine
	late.Text, late.Version = "mine", mine.Version+1
	require.NoError(t, Put(ctx, s, []Stored{late}))
	require.NoError(t, Note(ctx, s, &e))
	require.NoError(t, Remove(ctx, s, []Stored{mine}))
	require.Equal(t, "theirs", read().Text)
	require.NoError(t, Remove(ctx, s, []Stored{theirs}))
	all, err := EntriesOf(ctx, s, []string{e.Key()})
	require.NoError(t, err)
	require.Empty(t, all)
}

// TestForget: only the entries of the address that match are removed.
func TestForget(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := note(t, bounce("ann@x.test", "sg"), bounce("ann@x.test", "mg"), bounce("bob@x.test", "sg"))
	require.NoError(t, Forget(ctx, s, "ANN@x.test", func(e *Entry) bool { return e.Provider == "sg" }))
	all, err := Entries(ctx, s, "", 10)
	require.NoError(t, err)
	var left []string
	for i := range all {
		left = append(left, all[i].Email+" "+all[i].Provider)
	}
	require.ElementsMatch(t, []string{"ann@x.test mg", "bob@x.test sg"}, left)
}

// TestShow: a page has the entries of one provider that everyone's list does not suppress. It says what was removed
// from that list.
func TestShow(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := note(t, bounce("suppressed@x.test", "sg"), bounce("removed@x.test", "sg"), bounce("other@x.test", "mg"))
	for n := range 5 {
		e := bounce(fmt.Sprintf("u%d@x.test", n), "sg")
		require.NoError(t, Note(ctx, s, &e))
	}
	there := models.NewSuppression("suppressed@x.test", models.HardBounce, models.FromEvent, time.Now())
	gone := models.NewSuppression("removed@x.test", models.HardBounce, models.FromEvent, time.Now())
	gone.Removed, gone.Why = true, "they asked"
	require.NoError(t, s.PutSuppressions(ctx, models.EveryonesList, there, gone))

	seen, pages := map[string]string{}, 0
	for next, after := "begin", ""; next != ""; pages++ {
		var page []Shown
		var err error
		page, next, err = Show(ctx, s, "sg", after, 4)
		require.NoError(t, err)
		require.LessOrEqual(t, len(page), 4)
		for i := range page {
			require.NotContains(t, seen, page[i].Email)
			seen[page[i].Email] = ""
			if r := page[i].Removed; r != nil {
				seen[page[i].Email] = r.Why
			}
		}
		after = next
	}
	require.Equal(t, map[string]string{
		"u0@x.test": "", "u1@x.test": "", "u2@x.test": "", "u3@x.test": "", "u4@x.test": "", "removed@x.test": "they asked",
	}, seen)
	require.Equal(t, 2, pages)
}

// TestState: the state of a provider is stored by compare-and-set. Lists that the key may not read are named in the
// provider's order.
func TestState(t *testing.T) {
	t.Parallel()
	ctx, s := context.Background(), memory.Open(t)
	st, version, err := ReadState(ctx, s, "sg")
	require.NoError(t, err)
	require.Zero(t, version)
	st.Lists = map[string]*Cover{"b": {Refused: true}, "a": {Refused: true}, "c": {}}
	require.NoError(t, PutState(ctx, s, "sg", &st, 1))
	require.ErrorIs(t, PutState(ctx, s, "sg", &State{}, 1), models.ErrConflict)
	all, err := States(ctx, s)
	require.NoError(t, err)
	require.Len(t, all, 1)
	st = all["sg"]
	require.Equal(t, []string{"a", "b"}, st.Refused([]models.ProviderList{{Name: "a"}, {Name: "c"}, {Name: "d"},
		{Name: "b"}}))
}
