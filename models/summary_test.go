package models

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestGroupsOf(t *testing.T) {
	b := Batch{
		Category: "news",
		Template: &TemplateUse{Name: "weekly", Version: 3},
		Content:  Content{From: Address{Email: "a@example.com"}, Tags: []string{"b", "a:c"}},
	}
	want := []Group{{ByCategory, "news"}, {BySender, "example.com"}, {ByTemplate, "weekly"}, {ByTag, "b"}, {ByTag, "a:c"}}
	require.Equal(t, want, GroupsOf(&b))
	for _, g := range want {
		text, err := json.Marshal(map[Group]int{g: 1})
		require.NoError(t, err)
		var back map[Group]int
		require.NoError(t, json.Unmarshal(text, &back))
		require.Equal(t, map[Group]int{g: 1}, back)
	}
}

// TestBatchesAreCountedOnce: a sum counts each batch once, whatever number of chunks it has, and so does each group.
func TestBatchesAreCountedOnce(t *testing.T) {
	news := Group{ByTag, "news"}
	var sum Summary
	for n, chunks := range []int{1, 3, 2} {
		id, in := NewBatchID(time.Now()), []Group(nil)
		if n > 0 {
			in = []Group{news}
		}
		for k := range chunks {
			of := Resolve(2, nil, nil).SummaryOf(id.Chunk(k), in)
			sum.Add(&of)
		}
	}
	require.EqualValues(t, 3, sum.Batches)
	require.EqualValues(t, 12, sum.Accepted)
	require.EqualValues(t, 2, sum.Groups[news].Batches)
	require.EqualValues(t, 1, (&Batch{Recipients: 5}).Total(Summary{}).Batches, "before its first chunk has a summary")
}

// TestRunningCallIsNotUnknown: a call that was not answered is in flight while its mail is queued. Its outcome is
// unknown after the mail has ended.
func TestRunningCallIsNotUnknown(t *testing.T) {
	entries := []Entry{{Number: 1, Kind: Attempt, Provider: "sg", Recipients: SetOf(1)}}
	sum := Resolve(1, entries, nil).Summary()
	require.Equal(t, map[string]ProviderCounts{"sg": {Tried: 1, Pending: 1}}, sum.Providers)
	require.EqualValues(t, 1, sum.Awaited)
	entries = append(entries, Entry{Number: 2, Kind: Ending, Recipients: SetOf(1), Reason: OutcomeUnknown})
	sum = Resolve(1, entries, nil).Summary()
	require.Equal(t, map[string]ProviderCounts{"sg": {Tried: 1, Unknown: 1}}, sum.Providers)
}

// TestGroupsInAnyOrder adds chunks of more groups than are kept, in different orders and by
// different sums between: what is kept must be complete and the same.
func TestGroupsInAnyOrder(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // a test
	chunks := make([]Summary, 300)
	counts := map[Group]int64{}
	for i := range chunks {
		c := &chunks[i]
		c.Accepted, c.Success = 2, 1
		c.Events = map[EventKind]int64{Opened: 1}
		for _, n := range rnd.Perm(2 * MaxGroups)[:5] {
			g := Group{ByTag, fmt.Sprintf("tag%03d", n)}
			c.In = append(c.In, g)
			counts[g] += 2
		}
	}
	var want Summary
	for i := range chunks {
		want.Add(&chunks[i])
	}
	require.Len(t, want.Groups, MaxGroups)
	require.True(t, want.MoreGroups)
	for g, sum := range want.Groups {
		require.Equal(t, counts[g], sum.Accepted, g.Name)
		require.Equal(t, counts[g]/2, sum.Events[Opened], g.Name)
		require.Less(t, g.Name, fmt.Sprintf("tag%03d", MaxGroups))
	}
	for range 20 {
		var parts [7]Summary
		for _, i := range rnd.Perm(len(chunks)) {
			parts[rnd.IntN(len(parts))].Add(&chunks[i])
		}
		var got Summary
		for _, i := range rnd.Perm(len(parts)) {
			got.Add(&parts[i])
		}
		require.Equal(t, want, got)
	}
}
