package webhooks

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/internal/priority"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// memoryReports keeps transient values in memory. It returns errors while fail is set.
type memoryReports struct {
	mu   sync.Mutex
	rows map[string]map[string][]byte
	fail bool
}

func newMemoryReports() *memoryReports { return &memoryReports{rows: map[string]map[string][]byte{}} }

func (b *memoryReports) PutTransient(_ context.Context, kind, name string, value []byte, _ time.Duration) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fail {
		return errors.New("unavailable")
	}
	if b.rows[kind] == nil {
		b.rows[kind] = map[string][]byte{}
	}
	b.rows[kind][name] = value
	return nil
}

func (b *memoryReports) Transients(_ context.Context, kind string) (map[string][]byte, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fail {
		return nil, errors.New("unavailable")
	}
	return maps.Clone(b.rows[kind]), nil
}

func (b *memoryReports) failing(v bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fail = v
}

func (b *memoryReports) outages(t *testing.T) (out []telemetry.Outage) {
	t.Helper()
	rows, err := b.Transients(context.Background(), telemetry.OutageRecord)
	require.NoError(t, err)
	for _, raw := range rows {
		var g telemetry.Outage
		require.NoError(t, json.Unmarshal(raw, &g))
		out = append(out, g)
	}
	slices.SortFunc(out, func(a, b telemetry.Outage) int { return a.From.Compare(b.From) })
	return out
}

// TestLastReceivedIsStored checks that the time of a provider's last post is stored:
// at once for the first post, after a failure of the store, and at shutdown.
func TestLastReceivedIsStored(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newMemoryReports()
		s := New(testDoor, nil, nil, []Provider{{"sg", nil}}, priority.New(), nil)
		defer s.Close()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { s.Watch(ctx, b, "a"); close(done) }()
		last := func() (at time.Time) {
			rows, err := b.Transients(t.Context(), telemetry.LastReceived)
			require.NoError(t, err)
			if raw := rows["sg"]; raw != nil {
				require.NoError(t, json.Unmarshal(raw, &at))
			}
			return at
		}
		synctest.Wait()
		require.True(t, last().IsZero())
		first := time.Now().UTC()
		s.received.note("sg", first)
		synctest.Wait()
		require.Equal(t, first, last(), "the first post is stored at once")
		b.failing(true)
		second := first.Add(time.Second)
		s.received.note("sg", second)
		time.Sleep(time.Minute)
		b.failing(false)
		time.Sleep(time.Minute)
		require.Equal(t, second, last())
		third := second.Add(time.Hour)
		s.received.note("sg", third)
		cancel()
		<-done
		require.Equal(t, third, last(), "stored at shutdown")
	})
}

// TestRefusedPostsAreAnOutage checks that many refused posts in a row are recorded as an outage of
// their provider, and that few, or many with verified ones between them, are not.
func TestRefusedPostsAreAnOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newMemoryReports()
		wrongKey := false
		p := &fakeProvider{verify: func(*models.Webhook) (models.Verified, error) {
			if wrongKey {
				return models.Verified{}, &models.WebhookError{Status: 401, Code: "bad_signature", Detail: "a reason"}
			}
			return models.Verified{}, nil
		}}
		s := New(testDoor, nullInbox{}, &hangingBroker{}, []Provider{{"mg", p}, {"sg", accepting("")}}, priority.New(), nil)
		defer s.Close()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { s.Watch(ctx, b, "a"); close(done) }()
		post := func(n int, wrong bool) {
			wrongKey = wrong
			for range n {
				s.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/webhooks/mg",
					strings.NewReader("{}")))
				time.Sleep(time.Second)
			}
		}
		for range 10 {
			post(refusedInARow-1, true)
			post(1, false)
		}
		time.Sleep(time.Hour)
		require.Empty(t, b.outages(t))

		began := time.Now().UTC()
		post(2*refusedInARow, true)
		ended := time.Now().UTC()
		post(1, false)
		time.Sleep(2 * refusedPostsSpan)
		require.Len(t, b.outages(t), 1)
		g := b.outages(t)[0]
		require.Equal(t, "mg", g.Provider)
		require.False(t, g.From.After(began))
		require.False(t, g.To.Before(ended.Add(-time.Second)))
		require.Less(t, g.To.Sub(g.From), ended.Sub(began)+time.Minute)

		b.failing(true)
		post(refusedInARow, true)
		time.Sleep(2 * refusedPostsSpan)
		b.failing(false)
		cancel()
		<-done
		require.Len(t, b.outages(t), 2, "it is kept while the store fails, and stored at shutdown")
	})
}

// TestOutageIsRecorded checks that each time in which posts may be lost is recorded:
// while no receiver ran, while the store failed, and while the process was frozen.
func TestOutageIsRecorded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newMemoryReports()
		open := func(name string) (s *Server, stop func()) {
			s = New(testDoor, nil, nil, []Provider{{"sg", nil}}, priority.New(), nil)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() { s.Watch(ctx, b, name); close(done) }()
			return s, func() { cancel(); <-done; s.Close() }
		}
		covers := func(g telemetry.Outage, from, to time.Time) {
			t.Helper()
			require.False(t, g.From.After(from), "%v begins after %v", g, from)
			require.False(t, g.To.Before(to), "%v ends before %v", g, to)
			require.Less(t, g.To.Sub(g.From), to.Sub(from)+2*time.Minute)
		}
		_, stop := open("a")
		time.Sleep(95 * time.Second)
		require.Empty(t, b.outages(t), "no receiver ran before the first start")
		stop()
		stopped := time.Now()
		time.Sleep(3 * time.Second) // shorter than a heartbeat

		s, stop := open("a2")
		time.Sleep(time.Second)
		require.Len(t, b.outages(t), 1)
		covers(b.outages(t)[0], stopped, stopped.Add(3*time.Second))

		time.Sleep(time.Hour)
		require.Len(t, b.outages(t), 1, "no outage while the receiver is up")

		lost := time.Now()
		s.outage.note(lost) // a post that could not be stored
		b.failing(true)
		time.Sleep(5 * time.Minute)
		again := time.Now()
		s.outage.note(again)
		b.failing(false)
		time.Sleep(time.Minute)
		found := b.outages(t)[1:]
		require.NotEmpty(t, found)
		covers(telemetry.Outage{From: found[0].From, To: found[len(found)-1].To}, lost, again)
		stop()

		// A killed receiver leaves only its last heartbeat.
		b2 := newMemoryReports()
		require.NoError(
			t,
			b2.PutTransient(t.Context(), telemetry.ReceiverLiveness, "old", []byte(`"1999-02-03T04:05:06Z"`), 0),
		)
		b = b2
		_, stop = open("new")
		time.Sleep(time.Second)
		require.Len(t, b.outages(t), 1)
		require.Equal(t, 1999, b.outages(t)[0].From.Year(), "the clock of this test begins in 2000")
		stop()
	})
}

// TestNoOutageWithoutWebhooks: where no provider posts events, no outage loses any, and none is recorded.
func TestNoOutageWithoutWebhooks(t *testing.T) {
	t.Parallel()
	b := newMemoryReports()
	require.NoError(t, b.PutTransient(t.Context(), telemetry.ReceiverLiveness, "old", []byte(`"1999-02-03T04:05:06Z"`), 0))
	s := New(testDoor, nil, nil, nil, priority.New(), nil)
	defer s.Close()
	s.Watch(t.Context(), b, "new")
	require.Empty(t, b.outages(t))
}

// TestClockAheadHidesNoOutage checks that a heartbeat from a clock that is ahead does
// not hide the outage after it.
func TestClockAheadHidesNoOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newMemoryReports()
		raw, err := json.Marshal(time.Now().UTC().Add(10 * time.Minute))
		require.NoError(t, err)
		require.NoError(t, b.PutTransient(t.Context(), telemetry.ReceiverLiveness, "ahead", raw, 0))
		stopped := time.Now()
		time.Sleep(3 * time.Second)
		s := New(testDoor, nil, nil, []Provider{{"sg", nil}}, priority.New(), nil)
		defer s.Close()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { s.Watch(ctx, b, "right"); close(done) }()
		synctest.Wait()
		found := b.outages(t)
		cancel()
		<-done
		require.Len(t, found, 1)
		require.False(t, found[0].From.After(stopped))
		require.False(t, found[0].To.Before(stopped.Add(3*time.Second)))
	})
}

// TestPeerCrashIsRecordedOnce checks that the crash of a peer is recorded as one
// outage. A clean shutdown and a peer that was down before are no outage.
func TestPeerCrashIsRecordedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newMemoryReports()
		down, err := json.Marshal(time.Now().UTC())
		require.NoError(t, err)
		require.NoError(t, b.PutTransient(t.Context(), telemetry.ReceiverLiveness, "down before", down, 0))
		open := func(name string) (stop func()) {
			s := New(testDoor, nil, nil, []Provider{{"sg", nil}}, priority.New(), nil)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() { s.Watch(ctx, b, name); close(done) }()
			synctest.Wait()
			return func() { cancel(); <-done; s.Close() }
		}
		first, second, clean := open("first"), open("second"), open("clean")
		started := len(b.outages(t)) // without the peer that was down before
		heartbeat := func(name string) {
			raw, err := json.Marshal(time.Now().UTC())
			require.NoError(t, err)
			require.NoError(t, b.PutTransient(t.Context(), telemetry.ReceiverLiveness, name, raw, 0))
		}
		for range 3 {
			heartbeat("crashes")
			time.Sleep(heartbeatEvery)
		}
		crashed := time.Now().Add(-heartbeatEvery)
		clean()
		time.Sleep(time.Minute)
		found := b.outages(t)
		require.Len(t, found, started+1)
		g := found[len(found)-1]
		require.False(t, g.From.After(crashed), "%v", g)
		require.True(t, g.To.After(crashed.Add(crashOutage)), "%v", g)
		time.Sleep(time.Hour)
		require.Len(t, b.outages(t), started+1)
		first()
		second()
	})
}

// TestRefusedPostsAreReported: posts that are refused one after the other are reported while that lasts, with their
// number and the first of them. A post that is verified ends the report at once.
func TestRefusedPostsAreReported(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newMemoryReports()
		s := New(testDoor, nil, nil, []Provider{{"sg", nil}}, priority.New(), nil)
		defer s.Close()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { s.Watch(ctx, b, "a"); close(done) }()
		reported := func() (r telemetry.Refused) {
			synctest.Wait()
			rows, err := b.Transients(t.Context(), telemetry.RefusedReport)
			require.NoError(t, err)
			if raw := rows["a/sg"]; raw != nil {
				require.NoError(t, json.Unmarshal(raw, &r))
			}
			return r
		}
		first := time.Now().UTC()
		for range refusedReported {
			require.Zero(t, reported(), "a stranger's post or two change nothing")
			s.refusedOne("sg", "bad_signature")
		}
		want := telemetry.Refused{Provider: "sg", Code: "bad_signature", Posts: refusedReported, Since: first, Last: first}
		require.Equal(t, want, reported(), "at once")
		time.Sleep(time.Minute)
		s.refusedOne("sg", "stale")
		time.Sleep(s.interval)
		want.Posts, want.Code, want.Last = want.Posts+1, "stale", first.Add(time.Minute)
		require.Equal(t, want, reported())
		s.verifiedOne("sg")
		require.Zero(t, reported().Posts, "at once")
		cancel()
		<-done
	})
}
