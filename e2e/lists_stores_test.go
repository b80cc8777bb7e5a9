package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/inproc/inproctest"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
	mailroom "github.com/safedelivr/safedelivr/service/mail"
)

// twoStores writes to both stores what lists read.
type twoStores struct {
	models.Store
	other models.Store
}

func (s *twoStores) CreateUser(ctx context.Context, u models.User) error {
	return errors.Join(s.Store.CreateUser(ctx, u), s.other.CreateUser(ctx, u))
}

func (s *twoStores) PutBatch(ctx context.Context, b models.Batch, first models.Chunk, es ...models.AgendaEntry) error {
	return errors.Join(s.Store.PutBatch(ctx, b, first, es...), s.other.PutBatch(ctx, b, first, es...))
}

func (s *twoStores) PutDue(ctx context.Context, user string, ds ...models.Due) error {
	return errors.Join(s.Store.PutDue(ctx, user, ds...), s.other.PutDue(ctx, user, ds...))
}

func (s *twoStores) PutChunk(ctx context.Context, c models.Chunk) error {
	return errors.Join(s.Store.PutChunk(ctx, c), s.other.PutChunk(ctx, c))
}

func (s *twoStores) Append(ctx context.Context, chunk models.ID, e models.Entry) error {
	return errors.Join(s.Store.Append(ctx, chunk, e), s.other.Append(ctx, chunk, e))
}

func (s *twoStores) PutFacts(ctx context.Context, facts ...models.ChunkFact) error {
	return errors.Join(s.Store.PutFacts(ctx, facts...), s.other.PutFacts(ctx, facts...))
}

func (s *twoStores) PutSummaries(ctx context.Context, sums ...models.ChunkSummary) error {
	return errors.Join(s.Store.PutSummaries(ctx, sums...), s.other.PutSummaries(ctx, sums...))
}

func (s *twoStores) PutAddressIndex(ctx context.Context, user string, i models.AddressIndex) error {
	return errors.Join(s.Store.PutAddressIndex(ctx, user, i), s.other.PutAddressIndex(ctx, user, i))
}

func (s *twoStores) RollUp(ctx context.Context, span models.Span) error {
	return errors.Join(s.Store.RollUp(ctx, span), s.other.RollUp(ctx, span))
}

// putListed stores a batch of two chunks with what happened to its recipients: each is delivered by sg, bounced there,
// delivered by mg after sg failed, failed at both, or not tried. It has a time to come, in another order than they are
// stored.
func (s *twoStores) putListed(t *testing.T, user string, n int, at time.Time) {
	t.Helper()
	ctx := t.Context()
	b := models.Batch{ID: models.NewBatchID(at), User: user, Chunks: 2, Lane: models.Bulk, OnUnknown: models.Hold,
		DeliverAt: time.Now().Add(time.Duration(1+5*n%8) * time.Hour), ExpiresAt: at.Add(time.Hour), Content: models.Content{
			From:    models.Address{Email: "shop@example.com"},
			Subject: fmt.Sprintf("Offer %d", n%4),
			Text:    "t",
			Tags:    []string{"news", fmt.Sprintf("tag%d", n%5)},
		}}
	b.SetGroups()
	var chunks []models.Chunk
	for k := range b.Chunks {
		c := models.Chunk{ID: b.ID.Chunk(k)}
		for i := range 3 + (n+k)%4 {
			c.Recipients = append(c.Recipients, models.Recipient{Email: fmt.Sprintf("Ann%d@host%d.example", i, n%3)})
		}
		b.Sizes, b.Recipients = append(b.Sizes, len(c.Recipients)), b.Recipients+len(c.Recipients)
		chunks = append(chunks, c)
	}
	require.NoError(t, s.PutDue(ctx, user, b.Dues(time.Now())...))
	require.NoError(t, s.PutChunk(ctx, chunks[1]))
	require.NoError(t, s.PutBatch(ctx, b, chunks[0]))
	for _, c := range chunks {
		by := make([]models.Set, 5)
		for i := range c.Recipients {
			by[(i+n)%len(by)].Add(i + 1)
		}
		s.tellListed(t, c.ID, at, by)
		entries, facts, err := s.Record(ctx, c.ID)
		require.NoError(t, err)
		sum := models.Resolve(len(c.Recipients), entries, facts).SummaryOf(c.ID, b.Groups)
		require.NoError(t, s.PutSummaries(ctx, models.ChunkSummary{User: user, Chunk: c.ID, Summary: sum}))
		require.NoError(t, s.PutAddressIndex(ctx, user, models.NewAddressIndex(c.ID, c.Recipients)))
	}
	for _, l := range models.Levels {
		err := s.RollUp(ctx, models.SpanOf(user, l, at))
		require.NoError(t, err)
	}
}

// tellListed stores the calls of a chunk and the events about it.
func (s *twoStores) tellListed(t *testing.T, chunk models.ID, at time.Time, by []models.Set) {
	t.Helper()
	number := 0
	call := func(provider string, accepted, refused models.Set) {
		if accepted.Or(refused).Empty() {
			return
		}
		number++
		require.NoError(t, s.Append(t.Context(), chunk, models.Entry{Number: number, Token: models.NewToken(),
			Kind: models.Attempt, At: at, Provider: provider, Recipients: accepted.Or(refused)}))
		o := models.Outcome{Attempt: number, At: at, Parts: []models.Part{
			{Class: models.Accepted, Recipients: accepted}, {Class: models.Unavailable, Recipients: refused},
		}}
		facts := []models.ChunkFact{{Chunk: chunk, Fact: models.Fact{Key: models.OutcomeKey(number), Outcome: &o}}}
		for r := range accepted.All() {
			e := models.Event{ID: fmt.Sprint(number, r), Attempt: number, Provider: provider, Recipient: r,
				Kind: models.Delivered, At: at}
			if by[1].Has(r) {
				e.Kind, e.Reason = models.Bounced, models.MailboxInvalid
			}
			facts = append(facts, models.ChunkFact{Chunk: chunk, Fact: models.Fact{Key: e.ID, Events: []models.Event{e}}})
		}
		require.NoError(t, s.PutFacts(t.Context(), facts...))
	}
	call("sg", by[0].Or(by[1]), by[2].Or(by[3]))
	call("mg", by[2], by[3])
	if !by[3].Empty() {
		require.NoError(t, s.Append(t.Context(), chunk, models.Entry{Number: number + 1, Token: models.NewToken(),
			Kind: models.Ending, At: at, Recipients: by[3], Reason: models.NoProviderLeft}))
	}
}

// listedPage is what a page of a list says.
type listedPage struct {
	IDs   []models.ID
	First int
	Total int64 // -1: not known
}

// turned reads a list from its first page to its last, and back.
func turned(t *testing.T, read func(service.Page) ([]models.ID, mailroom.PageInfo, error), n int) (out []listedPage) {
	t.Helper()
	p, back := service.Page{Limit: n}, false
	for {
		ids, info, err := read(p)
		require.NoError(t, err)
		page := listedPage{ids, info.First, -1}
		if info.Total != nil {
			page.Total = *info.Total
		}
		out = append(out, page)
		require.Less(t, len(out), 500, "the pages do not end")
		back = back || info.Next == ""
		if p.Cursor = info.Next; back {
			p.Cursor = info.Prev
		}
		if p.Cursor == "" {
			return out
		}
	}
}

// TestListsOnCassandra: lists, searches and totals of the same mail are on Cassandra what they are on SQLite.
func TestListsOnCassandra(t *testing.T) {
	t.Parallel()
	hosts := os.Getenv("SAFEDELIVR_TEST_CASSANDRA_HOSTS")
	if hosts == "" {
		t.Skip("needs Cassandra: SAFEDELIVR_TEST_CASSANDRA_HOSTS")
	}
	s := &twoStores{openListsStore(t, ""), openListsStore(t, hosts)}
	var services []*service.Service
	for _, store := range []models.Store{s.Store, s.other} {
		one := service.New(service.Deps{Store: store, Broker: inproctest.New(t, "sg", "mg"),
			Config: service.Config{SpoolDir: t.TempDir(), Sole: true, CountTime: time.Hour}})
		t.Cleanup(func() { one.Close(); require.NoError(t, store.Close()) })
		services = append(services, one)
	}
	now := time.Now().Truncate(time.Millisecond)
	var user string
	for range 2 {
		u := models.User{ID: models.NewUserID(), Name: models.NewUserID(), Created: now}
		require.NoError(t, s.CreateUser(t.Context(), u))
		for n := range 8 {
			s.putListed(t, u.ID, n, now.Add(-time.Duration(n*n)*97*time.Minute))
		}
		user = u.ID
	}
	from, to := now.Add(-20*time.Hour), now.Add(-time.Hour)
	for name, f := range map[string]mailroom.LogFilter{
		"all":         {},
		"state":       {State: models.Failed},
		"reason":      {Reason: models.MailboxInvalid},
		"provider":    {Provider: "mg"},
		"result":      {Provider: "sg", Result: mailroom.ResultRefused},
		"rerouted":    {Rerouted: true},
		"tag":         {Tag: "tag3"},
		"tag, state":  {Tag: "news", State: models.Queued},
		"combination": {State: models.Failed, Provider: "mg"},
		"part":        {Part: "NN2@HOST1"},
		"address":     {Email: "ann1@host2.example"},
		"domain":      {Email: "@host0.example"},
		"time":        {From: from, To: to},
		"time, state": {From: from, To: to, State: models.Queued},
	} {
		for n, who := range map[int]service.Caller{9: {User: user, Operator: true, Everyone: true}, 500: {User: user}} {
			var logs, batches, scheduled [2][]listedPage
			for i, one := range services {
				logs[i] = turned(t, func(p service.Page) ([]models.ID, mailroom.PageInfo, error) {
					page, err := one.Mail.FindLogs(t.Context(), who, f, p)
					return idsOf(page.Logs, func(l mailroom.FoundLog) models.ID { return l.ID }), page.PageInfo, err
				}, n)
				batches[i] = turned(t, func(p service.Page) ([]models.ID, mailroom.PageInfo, error) {
					page, err := one.Mail.FindBatches(t.Context(), who, mailroom.BatchFilter{Subject: "offer", Logs: f}, p)
					return idsOf(page.Batches, func(b mailroom.BatchView) models.ID { return b.ID }), page.PageInfo, err
				}, n)
				scheduled[i] = turned(t, func(p service.Page) ([]models.ID, mailroom.PageInfo, error) {
					page, err := one.Mail.FindBatches(t.Context(), who, mailroom.BatchFilter{State: "scheduled"}, p)
					return idsOf(page.Batches, func(b mailroom.BatchView) models.ID { return b.ID }), page.PageInfo, err
				}, n/3)
			}
			require.Equal(t, logs[0], logs[1], name)
			require.Equal(t, batches[0], batches[1], name)
			require.Equal(t, scheduled[0], scheduled[1], name)
			require.NotEmpty(t, scheduled[0][0].IDs)
			require.NotEmpty(t, logs[0][0].IDs, name)
		}
	}
}

func idsOf[T any](list []T, id func(T) models.ID) (out []models.ID) {
	for _, one := range list {
		out = append(out, id(one))
	}
	return out
}
