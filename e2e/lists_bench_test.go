package e2e

import (
	"context"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/safedelivr/safedelivr/cassandra"
	"github.com/safedelivr/safedelivr/inproc/inproctest"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
	mailroom "github.com/safedelivr/safedelivr/service/mail"
	"github.com/safedelivr/safedelivr/sqlite"
)

// listedLogs is the number of logs that BenchmarkLists stores, in steps of 100,000.
var listedLogs = flag.Int("listed", 100_000, "number of logs for BenchmarkLists")

// listsBench fills a store with mail of three users over 30 days. Of each 100,000 logs, 89,000 are of
// one batch, 10,000 of ten batches, and 1,000 of batches of their own. 2 % failed, one chunk
// in ten was rerouted, and only the oldest batch has logs with the reason virus.
type listsBench struct {
	store models.Store
	users []string
	begin time.Time
	large models.ID // a batch of 89,000
	count atomic.Int64
}

func openListsStore(b testing.TB, hosts string) models.Store {
	if hosts == "" {
		s, err := sqlite.Open(b.TempDir(), sqlite.Options{})
		require.NoError(b, err)
		return s
	}
	s, err := cassandra.Open(b.Context(), cassandra.Config{
		Hosts:    strings.Split(hosts, ","),
		Keyspace: fmt.Sprintf("lists_%d", time.Now().UnixNano()),
		Migrate:  true,
	})
	require.NoError(b, err)
	return s
}

// put stores a batch with what happened to it, as a service and workers do.
func (f *listsBench) put(ctx context.Context, user string, at time.Time, n int, oldest bool) (models.ID, error) {
	b := models.Batch{ID: models.NewBatchID(at), User: user, Recipients: n, Chunks: (n + 999) / 1000, Lane: models.Bulk,
		OnUnknown: models.Hold, ExpiresAt: at.Add(time.Hour), Content: models.Content{
			From: models.Address{
				Email: "news@example.com",
			}, Subject: fmt.Sprintf("News of %s", at.Format(time.DateOnly)), Text: "t"}}
	var first models.Chunk
	for k := range b.Chunks {
		c := models.Chunk{ID: b.ID.Chunk(k)}
		for range min(1000, n-1000*k) {
			i := f.count.Add(1)
			c.Recipients = append(c.Recipients, models.Recipient{Email: fmt.Sprintf("user%d@mail%d.example", i, i%500)})
		}
		if oldest && k == 0 {
			c.Recipients[0].Email = "needle@haystack.example"
		}
		if k == 0 {
			first = c
		} else if err := f.store.PutChunk(ctx, c); err != nil {
			return b.ID, err
		}
		if err := f.tell(ctx, user, &c, at, oldest); err != nil {
			return b.ID, err
		}
	}
	return b.ID, f.store.PutBatch(ctx, b, first)
}

// tell stores what happened to a chunk, its summary and its address index.
func (f *listsBench) tell(ctx context.Context, user string, c *models.Chunk, at time.Time, oldest bool) error {
	all, n := models.SetTo(len(c.Recipients)), 1
	reason := models.MailboxInvalid
	if oldest {
		reason = models.Virus
	}
	add := func(provider string, part models.Part) error {
		e := models.Entry{
			Number:     n,
			Token:      models.NewToken(),
			Kind:       models.Attempt,
			At:         at,
			Provider:   provider,
			Recipients: all,
		}
		part.Recipients = all
		o := models.Outcome{Attempt: n, At: at, Parts: []models.Part{part}}
		n++
		if err := f.store.Append(ctx, c.ID, e); err != nil {
			return err
		}
		return f.store.PutFacts(
			ctx,
			models.ChunkFact{Chunk: c.ID, Fact: models.Fact{Key: models.OutcomeKey(n - 1), Outcome: &o}},
		)
	}
	if c.ID.ChunkNumber()%10 == 9 {
		if err := add("mg", models.Part{Class: models.Unavailable, Status: 503}); err != nil {
			return err
		}
	}
	if err := add("sg", models.Part{Class: models.Accepted, Status: 202}); err != nil {
		return err
	}
	var events []models.Event
	for r := range all.All() {
		e := models.Event{
			ID:        fmt.Sprint(r),
			Attempt:   n - 1,
			Provider:  "sg",
			Recipient: r,
			Kind:      models.Delivered,
			At:        at,
			Status:    250,
		}
		if (r+int(f.count.Load()))%50 == 0 || oldest && r < 3 {
			e.Kind, e.Reason, e.Status = models.Bounced, reason, 550
		}
		events = append(events, e)
	}
	fact := models.Fact{Key: "events", Events: events}
	if err := f.store.PutFacts(ctx, models.ChunkFact{Chunk: c.ID, Fact: fact}); err != nil {
		return err
	}
	entries, facts, err := f.store.Record(ctx, c.ID)
	if err != nil {
		return err
	}
	sum := models.Resolve(all.Len(), entries, facts).SummaryOf(c.ID, nil)
	if err := f.store.PutSummaries(ctx, models.ChunkSummary{User: user, Chunk: c.ID, Summary: sum}); err != nil {
		return err
	}
	return f.store.PutAddressIndex(ctx, user, models.NewAddressIndex(c.ID, c.Recipients))
}

func (f *listsBench) fill(b *testing.B, logs int) {
	b.Helper()
	const span = 30 * 24 * time.Hour
	steps := logs / 100_000
	f.begin = time.Now().Add(-span).Truncate(time.Second)
	type batch struct {
		user string
		at   time.Time
		n    int
	}
	var batches []batch
	for s := range steps {
		at, user := f.begin.Add(span*time.Duration(s)/time.Duration(steps)), f.users[s%len(f.users)]
		batches = append(batches, batch{user, at, 89_000})
		for i := range 1010 {
			n := 1
			if i%101 == 0 {
				n = 1000
			}
			batches = append(
				batches,
				batch{user, at.Add(span / time.Duration(steps) * time.Duration(i+1) / 1011).Truncate(time.Second), n},
			)
		}
	}
	spans := map[models.Level]map[models.Span]bool{}
	for _, l := range models.Levels {
		spans[l] = map[models.Span]bool{}
	}
	g, ctx := errgroup.WithContext(b.Context())
	g.SetLimit(64)
	for i, bt := range batches {
		for _, l := range models.Levels {
			spans[l][models.SpanOf(bt.user, l, bt.at)] = true
		}
		g.Go(func() error {
			id, err := f.put(ctx, bt.user, bt.at, bt.n, i == 0)
			if i > 0 && bt.n == 89_000 || i == 0 {
				f.large = id
			}
			return err
		})
	}
	require.NoError(b, g.Wait())
	for _, l := range models.Levels {
		g, ctx := errgroup.WithContext(b.Context())
		g.SetLimit(64)
		for span := range spans[l] {
			g.Go(func() error { err := f.store.RollUp(ctx, span); return err })
		}
		require.NoError(b, g.Wait())
	}
}

// BenchmarkLists measures a page of each list and search: the median and the slowest.
func BenchmarkLists(b *testing.B) {
	store := openListsStore(b, os.Getenv("SAFEDELIVR_TEST_CASSANDRA_HOSTS"))
	b.Cleanup(func() { require.NoError(b, store.Close()) })
	f := &listsBench{store: store}
	for range 3 {
		u := models.User{ID: models.NewUserID(), Name: models.NewUserID(), Created: time.Now().UTC()}
		require.NoError(b, store.CreateUser(b.Context(), u))
		f.users = append(f.users, u.ID)
	}
	began := time.Now()
	f.fill(b, *listedLogs)
	b.Logf("%d logs stored in %s", f.count.Load(), time.Since(began).Round(time.Second))
	s := service.New(service.Deps{Store: store, Broker: inproctest.New(b, "sg", "mg"),
		Providers: []models.Provider{{Name: "sg", Weight: 1}, {Name: "mg", Weight: 1}},
		Config:    service.Config{SpoolDir: b.TempDir(), Sole: true}})
	b.Cleanup(s.Close)
	boss := service.Caller{User: f.users[0], Operator: true, Everyone: true}
	logs := func(filter mailroom.LogFilter) func(service.Page) (mailroom.PageInfo, error) {
		return func(p service.Page) (mailroom.PageInfo, error) {
			page, err := s.Mail.FindLogs(b.Context(), boss, filter, p)
			return page.PageInfo, err
		}
	}
	batches := func(filter mailroom.BatchFilter) func(service.Page) (mailroom.PageInfo, error) {
		return func(p service.Page) (mailroom.PageInfo, error) {
			page, err := s.Mail.FindBatches(b.Context(), boss, filter, p)
			return page.PageInfo, err
		}
	}
	of := func(filter mailroom.LogFilter) func(service.Page) (mailroom.PageInfo, error) {
		return func(p service.Page) (mailroom.PageInfo, error) {
			page, err := s.Mail.Logs(b.Context(), boss, f.large.String(), filter, p)
			return page.PageInfo, err
		}
	}
	for _, c := range []struct {
		name string
		read func(service.Page) (mailroom.PageInfo, error)
	}{
		{"batches", batches(mailroom.BatchFilter{})},
		{"batches with a rare reason", batches(mailroom.BatchFilter{Logs: mailroom.LogFilter{Reason: models.Virus}})},
		{"batches by subject", batches(mailroom.BatchFilter{Subject: f.begin.Format("News of 2006-01-02")})},
		{"recipients of a batch", of(mailroom.LogFilter{})},
		{"failed of a batch", of(mailroom.LogFilter{State: models.Failed})},
		{"failed and rerouted of a batch", of(mailroom.LogFilter{State: models.Failed, Rerouted: true})},
		{"all logs", logs(mailroom.LogFilter{})},
		{"failed", logs(mailroom.LogFilter{State: models.Failed})},
		{"tried at mg", logs(mailroom.LogFilter{Provider: "mg"})},
		{"a rare reason", logs(mailroom.LogFilter{Reason: models.Virus})},
		{"an address", logs(mailroom.LogFilter{Email: "needle@haystack.example"})},
		{"a domain", logs(mailroom.LogFilter{Email: "@haystack.example"})},
		{"a part of an address", logs(mailroom.LogFilter{Part: "needle"})},
	} {
		b.Run(c.name, func(b *testing.B) { measurePages(b, c.read) })
	}
}

// measurePages reads the pages of a list one after the other, again and again.
func measurePages(b *testing.B, read func(service.Page) (mailroom.PageInfo, error)) {
	b.Helper()
	var took []time.Duration
	p, pages, whole := service.Page{Limit: 50}, 0, 0
	for b.Loop() {
		began := time.Now()
		info, err := read(p)
		took = append(took, time.Since(began))
		if err != nil {
			b.Fatal(err)
		}
		pages++
		if p.Cursor = info.Next; p.Cursor == "" && whole == 0 {
			whole = pages
		}
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "median-ms")
	b.ReportMetric(float64(took[len(took)-1].Microseconds())/1000, "slowest-ms")
	if whole > 0 {
		b.ReportMetric(float64(whole), "pages")
	}
}
