package reports

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/consumers/jobs"
	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/settings"
)

// box is an adapter with a mailbox of reports. Each is removed after it was stored.
type box struct {
	models.Adapter
	mu     sync.Mutex
	has    bool
	mails  []string
	others int
	hangs  bool
	rounds int
}

func (b *box) MaxRecipients() int { return 1 }

func (b *box) HasMailbox() bool { return b.has }

func (b *box) ReadReports(ctx context.Context, store func([]models.Post) error) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rounds++
	if b.hangs {
		<-ctx.Done()
		return 0, ctx.Err()
	}
	var posts []models.Post
	for _, m := range b.mails {
		posts = append(posts, models.Post{Body: []byte(m)})
	}
	if err := store(posts); err != nil {
		return 0, err
	}
	others := b.others
	b.mails, b.others = nil, 0
	return others, nil
}

// state is what readers have stored, announced and refused.
type state struct {
	mu        sync.Mutex
	inbox     []models.Inbox
	announced []models.ID
	refused   []string
	fails     error
	holder    map[string]string
	until     map[string]time.Time
}

func (s *state) Lease(_ context.Context, name, holder string, ttl time.Duration) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.holder[name] != holder && time.Now().Before(s.until[name]) {
		return false, nil
	}
	s.holder[name], s.until[name] = holder, time.Now().Add(ttl)
	return true, nil
}

func (s *state) PutInbox(_ context.Context, in models.Inbox) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fails != nil {
		return s.fails
	}
	s.inbox = append(s.inbox, in)
	return nil
}

func (s *state) Publish(_ context.Context, ms ...models.Message) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range ms {
		s.announced = append(s.announced, m.ID)
	}
	return errors.New("the broker is down") // the agenda finds what was not announced
}

// reader returns the reader of a worker for providers, by their names.
func (s *state) reader(t *testing.T, worker string, boxes map[string]*box) *Reader {
	t.Helper()
	var specs []provider.Spec
	for name, b := range boxes {
		specs = append(specs, provider.Spec{Adapter: b, Provider: models.Provider{Name: name}})
	}
	log := slog.New(slog.DiscardHandler)
	cfg := &provider.Config{Pace: settings.Pace{Heartbeat: time.Second}, Logger: log}
	providers, err := provider.NewSet(specs, cfg, nil)
	require.NoError(t, err)
	return &Reader{Runner: jobs.Runner{Store: s, Worker: worker, Log: log}, Inbox: s, Broker: s, Providers: providers,
		Refused: func(provider, why string) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.refused = append(s.refused, provider+" "+why)
		}}
}

func newState() *state { return &state{holder: map[string]string{}, until: map[string]time.Time{}} }

// run runs readers for a time.
func run(t *testing.T, d time.Duration, readers ...*Reader) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for _, r := range readers {
		all.Go(func() { r.Run(ctx) })
	}
	time.Sleep(d) // in the bubble of a test
	cancel()
	all.Wait()
}

// TestReportsReachTheInbox: all reports of a mailbox are stored and announced once, in entries that are not too large. A
// mailbox that hangs keeps no other waiting. A provider without one is not asked.
func TestReportsReachTheInbox(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newState()
		large := strings.Repeat("x", 100<<10)
		boxes := map[string]*box{
			"relay": {has: true, mails: []string{large + "1", large + "2", "3"}, others: 2},
			"slow":  {has: true, hangs: true},
			"plain": {mails: []string{"x"}},
		}
		run(t, time.Minute, s.reader(t, "a", boxes))
		var got []string
		for i := range s.inbox {
			require.Equal(t, "relay", s.inbox[i].Provider)
			require.Equal(t, s.announced[i], s.inbox[i].ID)
			for _, p := range s.inbox[i].Posts {
				got = append(got, string(p.Body[max(0, len(p.Body)-1):]))
			}
		}
		require.Len(t, s.inbox, 2, "two large reports are two entries")
		require.Equal(t, []string{"1", "2", "3"}, got)
		require.Equal(t, []string{"relay no_report", "relay no_report"}, s.refused)
		require.Zero(t, boxes["plain"].rounds)
		require.LessOrEqual(t, boxes["slow"].rounds, 2, "a round lasts 45 s at most")
		require.GreaterOrEqual(t, boxes["relay"].rounds, 6)
	})
}

// TestOneWorkerReads: a mailbox is read by one worker at a time, and by the next one when that ends.
func TestOneWorkerReads(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, a, b := newState(), &box{has: true}, &box{has: true}
		run(t, time.Minute, s.reader(t, "a", map[string]*box{"relay": a}), s.reader(t, "b", map[string]*box{"relay": b}))
		counts := []int{a.rounds, b.rounds}
		slices.Sort(counts)
		require.Zero(t, counts[0])
		require.Positive(t, counts[1])
		c := &box{has: true}
		run(t, time.Minute, s.reader(t, "c", map[string]*box{"relay": c}))
		require.Positive(t, c.rounds)
	})
}

// TestStoreIsDown: a report that cannot be stored stays in the mailbox, and is stored later.
func TestStoreIsDown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, b := newState(), &box{has: true, mails: []string{"1"}}
		s.fails = errors.New("the store is down")
		run(t, time.Minute, s.reader(t, "a", map[string]*box{"relay": b}))
		require.Empty(t, s.announced)
		require.Len(t, b.mails, 1)
		s.fails = nil
		run(t, time.Minute, s.reader(t, "a", map[string]*box{"relay": b}))
		require.Len(t, s.inbox, 1)
		require.Empty(t, b.mails)
	})
}
