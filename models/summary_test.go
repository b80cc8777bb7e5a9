package models

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestSetGroups(t *testing.T) {
	b := Batch{
		Category: "news",
		Template: &TemplateUse{Name: "weekly", Version: 3},
		Content:  Content{From: Address{Email: "a@example.com"}, Tags: []string{"b", "a:c"}},
	}
	want := []Group{{byCategory, "news"}, {BySender, "example.com"}, {byTemplate, "weekly"}, {ByTag, "b"}, {ByTag, "a:c"}}
	b.SetGroups()
	require.Equal(t, want, b.Groups)
	for _, g := range want {
		text, err := json.Marshal(map[Group]int{g: 1})
		require.NoError(t, err)
		var back map[Group]int
		require.NoError(t, json.Unmarshal(text, &back))
		require.Equal(t, map[Group]int{g: 1}, back)
	}
}

// TestBatchesAreCountedOnce: a sum counts each batch once, with any number of chunks, and so does each group.
func TestBatchesAreCountedOnce(t *testing.T) {
	newsletter := Group{ByTag, "news"}
	var sum Summary
	for n, chunks := range []int{1, 3, 2} {
		id, in := NewBatchID(time.Now()), []Group(nil)
		if n > 0 {
			in = []Group{newsletter}
		}
		for k := range chunks {
			of := Resolve(2, nil, nil).SummaryOf(id.Chunk(k), in)
			sum.Add(&of)
		}
	}
	require.EqualValues(t, 3, sum.Batches)
	require.EqualValues(t, 12, sum.Accepted)
	require.EqualValues(t, 2, sum.Groups[newsletter].Batches)
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

// TestGroupsByProvider: a log counts for the provider that decided its state or has it now. Its events count for those
// that reported them. At a provider that it left it counts as rerouted.
func TestGroupsByProvider(t *testing.T) {
	t.Parallel()
	chunk, newsletter := NewBatchID(time.Now()), Group{ByTag, "news"}
	sg, mg := Group{ByProvider, "sg"}, Group{ByProvider, "mg"}
	entries := []Entry{attempt(1, "sg", 1, 2, 3, 4, 5, 6)}
	facts := []Fact{answer(1, Accepted, 1, 2, 3, 4, 5, 6)}
	sum := Resolve(6, entries, facts).SummaryOf(chunk, []Group{newsletter})
	require.Equal(t, []Group{sg, newsletter}, sum.In, "all are at sg")
	require.Empty(t, sum.Groups)

	facts = append(facts,
		event(1, "sg", Delivered, "", 1), event(1, "sg", Complained, "", 1), event(1, "sg", Opened, "", 1),
		event(1, "sg", Bounced, MailboxInvalid, 2),
		event(1, "sg", Deferred, "", 3), event(1, "sg", Blocked, PolicyReputation, 3),
		event(1, "sg", Deferred, "", 4),
		event(1, "sg", Blocked, PolicyReputation, 5),
	)
	entries = append(entries, attempt(2, "mg", 3, 5))
	facts = append(facts, answer(2, Accepted, 3, 5), event(2, "mg", Delivered, "", 3), event(2, "mg", Clicked, "", 3),
		event(2, "mg", Bounced, MailboxFull, 5))
	entries = append(entries, ending(3, RetriesUsedUp, 5))
	sum = Resolve(7, entries, facts).SummaryOf(chunk, []Group{newsletter})
	require.Equal(t, []Group{newsletter}, sum.In)
	require.EqualValues(t, 1, sum.Untried)
	require.Equal(t, map[Group]*Summary{
		sg: {
			Batches: 1, Accepted: 4, Sent: 2, Success: 1, Failed: 1, Rerouted: 2,
			Reasons:   map[Reason]int64{MailboxInvalid: 1},
			Events:    map[EventKind]int64{Complained: 1, Opened: 1, Bounced: 3, Deferred: 2},
			Providers: map[string]ProviderCounts{"sg": {Tried: 6, Delivered: 1, Failed: 3, Waiting: 2}},
		},
		mg: {
			Batches: 1, Accepted: 2, Success: 1, Failed: 1,
			Reasons:   map[Reason]int64{MailboxFull: 1},
			Events:    map[EventKind]int64{Clicked: 1, Bounced: 1},
			Providers: map[string]ProviderCounts{"mg": {Tried: 2, Delivered: 1, Failed: 1}},
		},
	}, sum.Groups)

	var day Summary
	day.Add(&sum)
	require.EqualValues(t, 7, day.Groups[newsletter].Accepted)
	require.Equal(t, sum.Groups[sg], day.Groups[sg])
}

// A summary that leaves out a log, or counts one twice, does not add up.
func TestUnbalancedSum(t *testing.T) {
	t.Parallel()
	sum := Summary{Accepted: 15, Queued: 1, Sent: 2, Success: 3, Failed: 4, Cancelled: 5}
	require.True(t, sum.Balanced())
	for _, count := range []*int64{&sum.Accepted, &sum.Queued, &sum.Sent, &sum.Success, &sum.Failed, &sum.Cancelled} {
		for _, by := range []int64{1, -1} {
			*count += by
			require.False(t, sum.Balanced(), "%+v", sum)
			*count -= by
		}
	}
}

// TestProvidersAddUp: the mails of the providers and those that were never tried are all mails. Those that were tried
// at a provider count for it or were rerouted.
func TestProvidersAddUp(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		h := drawHistory(t)
		sum := Resolve(h.size, h.entries, h.facts).SummaryOf(NewBatchID(t0), nil)
		var day, all Summary
		day.Add(&sum)
		for g, of := range day.Groups {
			require.Equal(t, ByProvider, g.Kind)
			require.True(t, of.Balanced())
			require.Equal(t, day.Providers[g.Name].Tried, of.Accepted+of.Rerouted)
			require.Equal(t, map[string]ProviderCounts{g.Name: day.Providers[g.Name]}, of.Providers)
			for kind, n := range of.Events {
				require.LessOrEqual(t, n, day.Events[kind])
			}
			all.addCounts(of)
		}
		require.Len(t, day.Groups, len(day.Providers))
		untried := int64(0)
		for _, l := range Resolve(h.size, h.entries, h.facts).Logs {
			if l.Attempts == 0 {
				untried++
			}
		}
		require.Equal(t, day.Accepted, all.Accepted+untried)
		require.Equal(t, day.Success, all.Success)
		require.Equal(t, []int64{day.Unconfirmed, day.MayDouble, day.Doubled},
			[]int64{all.Unconfirmed, all.MayDouble, all.Doubled})
	})
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
		for _, n := range rnd.Perm(2 * maxGroups)[:5] {
			g := Group{ByTag, fmt.Sprintf("tag%03d", n)}
			c.In = append(c.In, g)
			counts[g] += 2
		}
	}
	var want Summary
	for i := range chunks {
		want.Add(&chunks[i])
	}
	require.Len(t, want.Groups, maxGroups)
	require.True(t, want.MoreGroups)
	for g, sum := range want.Groups {
		require.Equal(t, counts[g], sum.Accepted, g.Name)
		require.Equal(t, counts[g]/2, sum.Events[Opened], g.Name)
		require.Less(t, g.Name, fmt.Sprintf("tag%03d", maxGroups))
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
