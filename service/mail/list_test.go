package mail

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/internal/testkit"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
	"github.com/safedelivr/safedelivr/models/policy"
	"github.com/safedelivr/safedelivr/service/audit"
	"github.com/safedelivr/safedelivr/service/caller"
	"github.com/safedelivr/safedelivr/service/operation"
	"github.com/safedelivr/safedelivr/service/people"
	"github.com/safedelivr/safedelivr/service/stats"
	"github.com/safedelivr/safedelivr/store/memory"
)

// fate is a way that a log of the test's mail may go, and what lists must say of it.
type fate struct {
	state     models.State
	reason    models.Reason
	results   map[string]ProviderResult
	mayDouble bool
	doubled   bool
}

// fates: the chunk's ledger and facts are made by listRig.put.
var fates = []fate{
	{state: models.Queued},
	{state: models.Success, results: map[string]ProviderResult{"sg": ResultDelivered}},
	{state: models.Failed, reason: models.MailboxInvalid, results: map[string]ProviderResult{"sg": ResultFailed}},
	{
		state:   models.Failed,
		reason:  models.NoProviderLeft,
		results: map[string]ProviderResult{"sg": ResultRefused, "mg": ResultRefused},
	},
	{state: models.Sent, results: map[string]ProviderResult{"sg": ResultRefused, "mg": ResultWaiting}},
	{state: models.Cancelled, reason: models.CancelledByRq},
	{state: models.Success, results: map[string]ProviderResult{"sg": ResultDelivered, "mg": ResultDelivered},
		mayDouble: true, doubled: true},
	{state: models.Queued, results: map[string]ProviderResult{"sg": ResultPending}},
}

// listedLog is a log of the test's mail.
type listedLog struct {
	fate
	id    models.ID
	user  string
	email string
	tag   string
}

// listRig is a service with mail of two users.
type listRig struct {
	testing.TB
	*Reader
	models.Store
	logs    []listedLog // newest first
	batches []models.Batch
}

// newReader returns a reader of the mail of a store with this process alone. It counts a list for so long.
func newReader(store models.Store, counting time.Duration) *Reader {
	log := slog.New(slog.DiscardHandler)
	trail := audit.New(audit.Deps{Store: store, Follower: control.NewFollower(store), Sole: true, Log: log})
	return New(Deps{
		Store: store, Audit: trail, People: people.New(people.Deps{Store: store, Audit: trail, Log: log}),
		Policy: policy.New(policy.Config{}, nil), CountTime: counting, Logger: log,
	})
}

func newListRig(t testing.TB, store models.Store) *listRig {
	t.Helper()
	f := &listRig{TB: t, Store: store}
	f.Reader = newReader(store, time.Hour) // however slow the machine is
	for _, name := range []string{"ada", "bob"} {
		u := models.User{ID: name + models.NewUserID(), Name: name + models.NewUserID(), Created: time.Now().UTC()}
		require.NoError(t, store.CreateUser(t.Context(), u))
		for n := range 12 {
			at := time.Now().Add(-time.Duration(n*n) * 37 * time.Minute).Truncate(time.Millisecond)
			f.put(u.ID, n, at)
		}
	}
	slices.SortFunc(f.logs, func(a, b listedLog) int { return slices.Compare(b.id[:], a.id[:]) })
	slices.SortFunc(f.batches, func(a, b models.Batch) int { return slices.Compare(b.ID[:], a.ID[:]) })
	return f
}

// put stores a batch of two chunks whose logs have various fates, with its sums and the
// address index, as workers do.
func (f *listRig) put(user string, n int, at time.Time) {
	f.Helper()
	ctx := f.Context()
	b := models.Batch{ID: models.NewBatchID(at), User: user, Chunks: 1 + n%2, Lane: models.Bulk, OnUnknown: models.Hold,
		Content: models.Content{
			From:    models.Address{Email: fmt.Sprintf("shop%d@example.com", n%3)},
			Subject: fmt.Sprintf("Offer %d for {{email}}", n),
			Text:    "t",
			Tags:    []string{"news", fmt.Sprintf("tag%d", n)},
		},
		ExpiresAt: at.Add(time.Hour)}
	b.SetGroups()
	var chunks []models.Chunk
	for k := range b.Chunks {
		size := 1 + rand.N(5)
		c := models.Chunk{ID: b.ID.Chunk(k)}
		for i := range size {
			c.Recipients = append(c.Recipients, models.Recipient{Email: fmt.Sprintf("Ann%d@host%d.example", i, n%4)})
		}
		b.Sizes, b.Recipients = append(b.Sizes, size), b.Recipients+size
		chunks = append(chunks, c)
	}
	for _, c := range chunks[1:] {
		require.NoError(f, f.PutChunk(ctx, c))
	}
	require.NoError(f, f.PutBatch(ctx, b, chunks[0]))
	f.batches = append(f.batches, b)
	for _, c := range chunks {
		by := make([]models.Set, len(fates))
		for i := range c.Recipients {
			kind := rand.N(len(fates))
			if n == 5 {
				kind = 1 // nothing has failed
			}
			by[kind].Add(i + 1)
			f.logs = append(f.logs, listedLog{
				fates[kind], c.ID.Log(i + 1), user, c.Recipients[i].Email, b.Content.Tags[1],
			})
		}
		f.tell(c.ID, at, by)
		entries, facts, err := f.Record(ctx, c.ID)
		require.NoError(f, err)
		sum := models.Resolve(len(c.Recipients), entries, facts).SummaryOf(c.ID, b.Groups)
		require.NoError(f, f.PutSummaries(ctx, models.ChunkSummary{User: user, Chunk: c.ID, Summary: sum}))
		require.NoError(f, f.PutAddressIndex(ctx, user, models.NewAddressIndex(c.ID, c.Recipients)))
	}
	for _, l := range models.Levels {
		err := f.RollUp(ctx, models.SpanOf(user, l, at))
		require.NoError(f, err)
	}
}

// tell stores what happened to the logs of a chunk. by has the logs of each of the fates.
func (f *listRig) tell(chunk models.ID, at time.Time, by []models.Set) {
	f.Helper()
	number := 0
	add := func(e models.Entry) int {
		if e.Recipients.Empty() {
			return 0
		}
		number++
		e.Number, e.Token, e.At = number, models.NewToken(), at
		require.NoError(f, f.Append(f.Context(), chunk, e))
		return number
	}
	var facts []models.ChunkFact
	answer := func(attempt int, parts ...models.Part) {
		o := models.Outcome{Attempt: attempt, At: at, Parts: parts}
		facts = append(facts, models.ChunkFact{Chunk: chunk, Fact: models.Fact{Key: models.OutcomeKey(attempt), Outcome: &o}})
	}
	event := func(attempt int, provider string, kind models.EventKind, reason models.Reason, who models.Set) {
		for r := range who.All() {
			e := models.Event{ID: fmt.Sprint(attempt, r), Attempt: attempt, Provider: provider, Recipient: r, Kind: kind, At: at,
				Reason: reason}
			facts = append(facts, models.ChunkFact{Chunk: chunk, Fact: models.Fact{Key: e.ID, Events: []models.Event{e}}})
		}
	}
	taken, refused := by[1].Or(by[2]).Or(by[6]), by[3].Or(by[4])
	first := add(models.Entry{Kind: models.Attempt, Provider: "sg", Recipients: taken.Or(refused)})
	answer(first, models.Part{Class: models.Accepted, Recipients: taken},
		models.Part{Class: models.Unavailable, Recipients: refused})
	event(first, "sg", models.Delivered, "", by[1].Or(by[6]))
	event(first, "sg", models.Bounced, models.MailboxInvalid, by[2])
	second := add(models.Entry{Kind: models.Attempt, Provider: "mg", Recipients: refused})
	answer(second, models.Part{Class: models.Accepted, Recipients: by[4]},
		models.Part{Class: models.Unavailable, Recipients: by[3]})
	third := add(models.Entry{Kind: models.Attempt, Provider: "mg", Recipients: by[6], MayDouble: true})
	answer(third, models.Part{Class: models.Accepted, Recipients: by[6]})
	event(third, "mg", models.Delivered, "", by[6])
	add(models.Entry{Kind: models.Ending, Recipients: by[3], Reason: models.NoProviderLeft})
	add(models.Entry{Kind: models.Cancel, Recipients: by[5]})
	add(models.Entry{Kind: models.Attempt, Provider: "sg", Recipients: by[7]}) // it runs
	require.NoError(f, f.PutFacts(f.Context(), facts...))
}

// pages reads a list from its first page to its last and back, in pages of n.
func pages[T any](t testing.TB, read func(operation.Page) ([]T, PageInfo, error), n int) []T {
	t.Helper()
	var all, back []T
	p := operation.Page{Limit: n}
	var at []string // cursors of the pages
	for {
		list, info, err := read(p)
		require.NoError(t, err)
		require.LessOrEqual(t, len(list), n)
		require.Equal(t, len(all)+1, info.First)
		require.Equal(t, len(at) == 0, info.Prev == "")
		all, at = append(all, list...), append(at, p.Cursor)
		require.Less(t, len(at), 500, "the pages do not end")
		if p.Cursor = info.Next; p.Cursor == "" {
			back = list
			p.Cursor = info.Prev
			break
		}
	}
	first := len(all) - len(back) + 1 // number of the first entry of back
	for p.Cursor != "" {
		list, info, err := read(p)
		require.NoError(t, err)
		require.LessOrEqual(t, len(list), n)
		require.NotEmpty(t, info.Next)
		if info.Prev == "" { // the first page is a whole one
			require.Equal(t, 1, info.First)
			list = list[:first-1]
		}
		require.Equal(t, first-len(list), info.First)
		back, first = append(slices.Clone(list), back...), info.First
		p.Cursor = info.Prev
	}
	require.True(t, reflect.DeepEqual(all, append([]T(nil), back...)), "backwards")
	return all
}

// filters are filters and what they select.
var filters = map[string]struct {
	LogFilter
	want func(*listedLog) bool
}{
	"all":    {LogFilter{}, func(*listedLog) bool { return true }},
	"failed": {LogFilter{State: models.Failed}, func(l *listedLog) bool { return l.state == models.Failed }},
	"queued": {LogFilter{State: models.Queued}, func(l *listedLog) bool { return l.state == models.Queued }},
	"sent":   {LogFilter{State: models.Sent}, func(l *listedLog) bool { return l.state == models.Sent }},
	"of a reason": {
		LogFilter{Reason: models.MailboxInvalid},
		func(l *listedLog) bool { return l.reason == models.MailboxInvalid },
	},
	"cancelled": {
		LogFilter{Reason: models.CancelledByRq},
		func(l *listedLog) bool { return l.state == models.Cancelled },
	},
	"tried": {LogFilter{Provider: "mg"}, func(l *listedLog) bool { return l.results["mg"] != "" }},
	"refused there": {
		LogFilter{Provider: "sg", Result: ResultRefused},
		func(l *listedLog) bool { return l.results["sg"] == ResultRefused },
	},
	"waiting there": {
		LogFilter{Provider: "mg", Result: ResultWaiting},
		func(l *listedLog) bool { return l.results["mg"] == ResultWaiting },
	},
	"in flight there": {
		LogFilter{Provider: "sg", Result: ResultPending},
		func(l *listedLog) bool { return l.results["sg"] == ResultPending },
	},
	"waiting anywhere": {LogFilter{Result: ResultWaiting}, func(l *listedLog) bool {
		return l.results["sg"] == ResultWaiting || l.results["mg"] == ResultWaiting
	}},
	"delivered anywhere": {LogFilter{Result: ResultDelivered}, func(l *listedLog) bool {
		return l.results["sg"] == ResultDelivered || l.results["mg"] == ResultDelivered
	}},
	"rerouted":   {LogFilter{Rerouted: true}, func(l *listedLog) bool { return len(l.results) > 1 }},
	"may double": {LogFilter{MayDouble: true}, func(l *listedLog) bool { return l.mayDouble }},
	"doubled":    {LogFilter{Doubled: true}, func(l *listedLog) bool { return l.doubled }},
	"both": {LogFilter{State: models.Failed, Provider: "mg"}, func(l *listedLog) bool {
		return l.state == models.Failed && l.results["mg"] != ""
	}},
	"part of an address": {
		LogFilter{Part: "NN3@HOST2"},
		func(l *listedLog) bool { return strings.HasPrefix(l.email, "Ann3@host2") },
	},
	"of a tag":    {LogFilter{Tag: "tag4"}, func(l *listedLog) bool { return l.tag == "tag4" }},
	"all tagged":  {LogFilter{Tag: "news"}, func(*listedLog) bool { return true }},
	"no such tag": {LogFilter{Tag: "tag"}, func(*listedLog) bool { return false }},
	"tag and state": {LogFilter{Tag: "tag7", State: models.Queued}, func(l *listedLog) bool {
		return l.tag == "tag7" && l.state == models.Queued
	}},
	"tag and part of an address": {LogFilter{Tag: "tag6", Part: "nn0"}, func(l *listedLog) bool {
		return l.tag == "tag6" && strings.HasPrefix(l.email, "Ann0")
	}},
	"part and state": {LogFilter{Part: "host1", State: models.Success}, func(l *listedLog) bool {
		return strings.Contains(l.email, "host1") && l.state == models.Success
	}},
}

// want returns the IDs of the logs that a filter selects, newest first.
func (f *listRig) want(user string, selects func(*listedLog) bool) (out []models.ID) {
	for i := range f.logs {
		if l := &f.logs[i]; (user == "" || l.user == user) && selects(l) {
			out = append(out, l.id)
		}
	}
	return out
}

// TestFilteredLists: every list of logs and of batches has exactly what its filter selects, in
// pages of any size and in both directions, of one user and of everybody.
func TestFilteredLists(t *testing.T) {
	t.Parallel()
	f := newListRig(t, memory.Open(t))
	user := f.batches[0].User
	for name, c := range filters {
		t.Run(name, func(t *testing.T) {
			for _, who := range []caller.Caller{{User: user}, {User: user, Operator: true, Everyone: true}} {
				want := f.want(user, c.want)
				if who.Everyone {
					want = f.want("", c.want)
				}
				for _, n := range []int{testkit.Mails(3, 1), 7, 500} {
					require.Equal(t, want, ids(pages(t, func(p operation.Page) ([]FoundLog, PageInfo, error) {
						page, err := f.FindLogs(t.Context(), who, c.LogFilter, p)
						if page.Total != nil {
							require.EqualValues(t, len(want), *page.Total)
						} else {
							require.True(t, c.Part != "" || name == "both", "the total is known")
						}
						return page.Logs, page.PageInfo, err
					}, n), func(l FoundLog) models.ID { return l.ID }))
					of := ids(pages(t, func(p operation.Page) ([]BatchView, PageInfo, error) {
						page, err := f.FindBatches(t.Context(), who, BatchFilter{Logs: c.LogFilter}, p)
						if page.Total != nil && name != "both" && c.Part == "" {
							require.EqualValues(t, len(batchesOf(want)), *page.Total)
						}
						return page.Batches, page.PageInfo, err
					}, n), func(b BatchView) models.ID { return b.ID })
					if name == "both" || c.Part != "" { // of a combination, each may be true of another log
						require.Subset(t, of, batchesOf(want))
					} else {
						require.Equal(t, batchesOf(want), of)
					}
				}
			}
			for _, b := range f.batches {
				if c.Tag != "" {
					break // all logs of a batch have its tags
				}
				f.checkLogsOf(t, &b, c.LogFilter, c.want)
			}
		})
	}
}

// checkLogsOf checks the list of a batch's logs, and its total.
func (f *listRig) checkLogsOf(t *testing.T, b *models.Batch, filter LogFilter, selects func(*listedLog) bool) {
	t.Helper()
	want := f.want("", func(l *listedLog) bool { return l.id.Batch() == b.ID && selects(l) })
	slices.Reverse(want)
	for _, n := range []int{1, 2, 500} {
		require.Equal(t, want, ids(pages(t, func(p operation.Page) ([]LogView, PageInfo, error) {
			page, err := f.Logs(t.Context(), caller.Caller{User: b.User}, b.ID.String(), filter, p)
			require.NotNil(t, page.Total)
			require.EqualValues(t, len(want), *page.Total)
			return page.Logs, page.PageInfo, err
		}, n), func(l LogView) models.ID { return l.ID }))
	}
}

// TestSearchByAddressAndDomain: a search finds the logs of a complete address and of a domain.
func TestSearchByAddressAndDomain(t *testing.T) {
	t.Parallel()
	f := newListRig(t, memory.Open(t))
	boss := caller.Caller{User: f.batches[0].User, Operator: true, Everyone: true}
	for email, want := range map[string]func(*listedLog) bool{
		"ANN1@host2.example": func(l *listedLog) bool { return l.email == "Ann1@host2.example" },
		"@Host3.example":     func(l *listedLog) bool { return strings.HasSuffix(l.email, "@host3.example") },
		"@ost3.example":      func(*listedLog) bool { return false },
	} {
		tagged, err := f.FindLogs(t.Context(), boss, LogFilter{Email: email, Tag: "tag3"}, operation.Page{Limit: 500})
		require.NoError(t, err)
		require.Equal(t, f.want("", func(l *listedLog) bool { return l.tag == "tag3" && want(l) }),
			ids(tagged.Logs, func(l FoundLog) models.ID { return l.ID }), email)
		for _, n := range []int{1, 7, 500} {
			var got []models.ID
			p := operation.Page{Limit: n}
			for {
				page, err := f.FindLogs(t.Context(), boss, LogFilter{Email: email}, p)
				require.NoError(t, err)
				require.Equal(t, len(got)+1, page.First)
				got = append(got, ids(page.Logs, func(l FoundLog) models.ID { return l.ID })...)
				if p.Cursor = page.Next; p.Cursor == "" {
					break
				}
			}
			require.Equal(t, f.want("", want), got, email)
		}
	}
}

// TestListsOfOthers: only operators list the mail of others.
func TestListsOfOthers(t *testing.T) {
	t.Parallel()
	f := newListRig(t, memory.Open(t))
	counts := stats.New(stats.Deps{Store: f.Store, People: f.People})
	for _, who := range []caller.Caller{
		{User: "ada", Everyone: true},
		{User: "ada", Everyone: true, Operator: true, Scopes: []models.Scope{models.ScopeRead}},
	} {
		_, err := f.FindLogs(t.Context(), who, LogFilter{}, operation.Page{})
		require.ErrorContains(t, err, "operate")
		_, err = f.FindBatches(t.Context(), who, BatchFilter{}, operation.Page{})
		require.ErrorContains(t, err, "operate")
		_, err = counts.Of(t.Context(), who, stats.Query{})
		require.ErrorContains(t, err, "operate")
	}
	all, err := counts.Of(t.Context(), caller.Caller{Operator: true, Everyone: true}, stats.Query{})
	require.NoError(t, err)
	require.EqualValues(t, len(f.logs), all.Totals.Accepted)
}

// TestListsByTimeAndText: batches are selected by time, subject and sender.
func TestListsByTimeAndText(t *testing.T) {
	t.Parallel()
	f := newListRig(t, memory.Open(t))
	who := caller.Caller{User: f.batches[0].User, Operator: true, Everyone: true}
	from, to := time.Now().Add(-30*time.Hour), time.Now().Add(-3*time.Hour)
	for name, c := range map[string]struct {
		BatchFilter
		want func(*models.Batch) bool
	}{
		"time": {BatchFilter{Logs: LogFilter{From: from, To: to}}, func(b *models.Batch) bool {
			return !b.Created().Before(from) && b.Created().Before(to)
		}},
		"subject": {BatchFilter{Subject: "oFFer 1"}, func(b *models.Batch) bool {
			return strings.HasPrefix(b.Content.Subject, "Offer 1")
		}},
		"sender": {BatchFilter{Sender: "Shop2@"}, func(b *models.Batch) bool {
			return b.Content.From.Email == "shop2@example.com"
		}},
		"user": {BatchFilter{User: f.batches[3].User}, func(b *models.Batch) bool { return b.User == f.batches[3].User }},
	} {
		t.Run(name, func(t *testing.T) {
			var want []models.ID
			for i := range f.batches {
				if c.want(&f.batches[i]) {
					want = append(want, f.batches[i].ID)
				}
			}
			require.NotEmpty(t, want)
			require.Equal(t, want, ids(pages(t, func(p operation.Page) ([]BatchView, PageInfo, error) {
				page, err := f.FindBatches(t.Context(), who, c.BatchFilter, p)
				return page.Batches, page.PageInfo, err
			}, 2), func(b BatchView) models.ID { return b.ID }))
		})
	}
}
