package consumers

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/models"
)

func TestReroutedToTheOtherProvider(t *testing.T) {
	t.Parallel()
	sg, mg := newScripted("sg", always(models.Unavailable)), newScripted("mg", always(models.Accepted))
	r := newRig(t, fast(), nil, sg, mg)
	b := r.batch(100, true, func(b *models.Batch, _ []models.Recipient) { b.Providers = []string{"sg", "mg"} })
	v := r.done(b)
	for i := 1; i <= 100; i++ {
		require.Equal(t, models.Success, v.Status(i).State)
		require.Equal(t, 1, mg.copiesOf(b.ID.Log(i)))
	}
	require.Equal(t, 1, mg.count(), "in one call: %+v", v.Entries)
	require.Contains(t, v.Entries[1].Because, "sg")
	require.Equal(t, 1, v.Entries[1].Retry)
}

func TestHardRefusalIsNotRoutedAround(t *testing.T) {
	t.Parallel()
	sg, mg := newScripted("sg", always(models.RejectedRequest)), newScripted("mg", always(models.Accepted))
	r := newRig(t, fast(), nil, sg, mg)
	v := r.done(r.batch(5, true, func(b *models.Batch, _ []models.Recipient) { b.Providers = []string{"sg", "mg"} }))
	require.Equal(t, models.InvalidRequest, v.Status(1).Reason)
	require.Zero(t, mg.count())
}

func TestThreeEndsOfRetrying(t *testing.T) {
	t.Parallel()
	t.Run("no provider left", func(t *testing.T) {
		t.Parallel()
		r := newRig(
			t,
			fast(),
			nil,
			newScripted("sg", always(models.RejectedHereClass)),
			newScripted("mg", always(models.RejectedHereClass)),
		)
		v := r.done(r.batch(3, true, nil))
		require.Equal(t, models.NoProviderLeft, v.Status(3).Reason)
		require.Equal(t, 2, v.Status(3).Attempts)
	})
	t.Run("retries used up", func(t *testing.T) {
		t.Parallel()
		cfg := fast()
		cfg.MaxRetries = 3
		sg, mg := newScripted("sg", always(models.RejectedHereClass)), newScripted("mg", always(models.Unavailable))
		r := newRig(t, cfg, nil, sg, mg)
		v := r.done(r.batch(3, true, func(b *models.Batch, _ []models.Recipient) { b.Providers = []string{"sg", "mg"} }))
		require.Equal(t, models.RetriesUsedUp, v.Status(1).Reason)
		require.Equal(t, 4, v.Status(1).Attempts)
		require.Equal(t, 3, mg.count())
	})
	t.Run("none while all providers are away", func(t *testing.T) {
		t.Parallel()
		cfg := fast()
		cfg.MaxRetries = 3
		var back atomic.Bool
		away := func(class models.Class) *scripted {
			return newScripted(string(class), func(_ context.Context, c *models.Call) []models.Part {
				if back.Load() {
					return part(models.Accepted, c)
				}
				return part(class, c)
			})
		}
		one, two := away(models.Unavailable), away(models.Throttled)
		r := newRig(t, cfg, nil, one, two)
		b := r.batch(3, true, nil)
		require.Eventually(
			t,
			func() bool { return r.view(b).Status(1).Attempts > 2*cfg.MaxRetries },
			patience,
			time.Millisecond,
		)
		require.EqualValues(t, 3, r.view(b).Summary().Queued)
		back.Store(true)
		require.EqualValues(t, 3, r.done(b).Summary().Success)
	})
	t.Run("none are wanted", func(t *testing.T) {
		t.Parallel()
		cfg := fast()
		cfg.MaxRetries = 0
		r := newRig(t, cfg, nil, newScripted("sg", always(models.Unavailable)))
		require.Equal(t, models.RetriesUsedUp, r.done(r.batch(3, true, nil)).Status(1).Reason)
	})
	t.Run("success", func(t *testing.T) {
		t.Parallel()
		var n atomic.Int64
		sg := newScripted("sg", func(_ context.Context, c *models.Call) []models.Part {
			if n.Add(1) < 4 {
				return part(models.Throttled, c)
			}
			return part(models.Accepted, c)
		})
		r := newRig(t, fast(), nil, sg)
		require.Equal(t, models.Success, r.done(r.batch(3, true, nil)).Status(1).State)
		require.Equal(t, 4, sg.count())
	})
}

func TestDeadlineEnds(t *testing.T) {
	t.Parallel()
	r := newRig(t, fast(), nil, newScripted("sg", always(models.AccountClass)))
	v := r.done(
		r.batch(2, true, func(b *models.Batch, _ []models.Recipient) { b.Deadline = time.Now().Add(400 * time.Millisecond) }),
	)
	require.Equal(t, models.Expired, v.Status(1).Reason)
}

// TestDeadlineWhileItWaits: what waited for a provider until its deadline had passed
// is not handed over any more.
func TestDeadlineWhileItWaits(t *testing.T) {
	t.Parallel()
	hold := make(chan struct{})
	sg := newScripted("sg", func(ctx context.Context, c *models.Call) []models.Part {
		select {
		case <-hold:
		case <-ctx.Done():
		}
		return part(models.Accepted, c)
	})
	r := emptyRig(t, nil, "sg")
	r.engine = r.start(
		fast(),
		[]provider.Spec{
			{
				Adapter: sg,
				Provider: models.Provider{
					Name:        "sg",
					Weight:      1,
					Concurrency: 1,
					ChunkLimit:  1000,
					Timeout:     patience,
					Events:      models.EventsNone,
				},
			},
		},
	)
	first := r.batch(1, true, nil)
	require.Eventually(t, func() bool { return sg.count() == 1 }, patience, time.Millisecond)
	// On a machine that is held up the deadline may pass before the mail is in line: then
	// that mail has shown nothing, and other mail gets more time.
	var late *models.Batch
	for soon := 500 * time.Millisecond; ; soon *= 2 {
		late = r.batch(2, false, func(b *models.Batch, _ []models.Recipient) { b.Deadline = time.Now().Add(soon) })
		require.Equal(t, models.Bulk, late.Lane)
		require.NoError(
			t,
			r.broker.Publish(
				t.Context(),
				models.Message{Kind: models.ProviderMessage, Provider: "sg", ID: late.ID, Lane: late.Lane},
			),
		)
		waits := false
		require.Eventually(t, func() bool {
			waits = waits || r.inLine("sg", models.Bulk)
			return waits || r.view(late).Summary().Failed > 0
		}, patience, time.Millisecond)
		if waits {
			break
		}
	}
	require.Eventually(t, func() bool { return time.Now().After(late.Deadline) }, patience, time.Millisecond)
	close(hold)
	require.Equal(t, models.Success, r.done(first).Status(1).State)
	require.Equal(t, models.Expired, r.done(late).Status(2).Reason)
	require.Equal(t, 1, sg.count())
}

func TestOneBadAmongAThousand(t *testing.T) {
	t.Parallel()
	sg := newScripted("sg", func(_ context.Context, c *models.Call) []models.Part {
		for i := range c.Recipients {
			if strings.HasPrefix(c.Recipients[i].Email, "bad") {
				if len(c.Recipients) == 1 {
					return part(models.RejectedRecipient, c)
				}
				return part(models.Split, c)
			}
		}
		return part(models.Accepted, c)
	})
	mg := newScripted("mg", always(models.Accepted))
	r := newRig(t, fast(), nil, sg, mg)
	bad := map[int]bool{17: true, 500: true, 1000: true}
	b := r.batch(1000, true, func(b *models.Batch, rs []models.Recipient) {
		b.Providers = []string{"sg", "mg"}
		for n := range bad {
			rs[n-1].Email = fmt.Sprintf("bad%d@x.test", n)
		}
	})
	v := r.done(b)
	for i := 1; i <= 1000; i++ {
		s := v.Status(i)
		if bad[i] {
			require.Equal(t, models.MailboxInvalid, s.Reason)
			require.Zero(t, sg.copiesOf(b.ID.Log(i)))
			continue
		}
		require.Equal(t, models.Success, s.State, i)
		require.Equal(t, 1, sg.copiesOf(b.ID.Log(i)))
		require.Zero(t, s.Retries, "looking for somebody else uses up no retry")
	}
	require.LessOrEqual(t, sg.count(), 1+2*10*len(bad))
	require.Zero(t, mg.count(), "the rest went where it was")
}

func TestNoAddressTwiceInACall(t *testing.T) {
	t.Parallel()
	sg := newScripted("sg", always(models.Accepted))
	r := newRig(t, fast(), nil, sg)
	b := r.batch(6, true, func(_ *models.Batch, rs []models.Recipient) {
		rs[1].Email, rs[2].Email, rs[5].Email = "SAME@x.test", "same@x.test", "Same@x.test"
	})
	r.done(b)
	require.Equal(t, 3, sg.count())
	for _, c := range sg.calls {
		seen := map[string]bool{}
		for i := range c.Recipients {
			a := strings.ToLower(c.Recipients[i].Email)
			require.False(t, seen[a])
			seen[a] = true
		}
	}
	for i := 1; i <= 6; i++ {
		require.Equal(t, 1, sg.copiesOf(b.ID.Log(i)))
	}
}

func TestUnknownOutcome(t *testing.T) {
	t.Parallel()
	setup := func(t *testing.T, policy models.UnknownPolicy) (*rig, *scripted, *scripted, *models.Batch) {
		sg, mg := newScripted("sg", always(models.Unknown)), newScripted("mg", always(models.Accepted))
		cfg := fast()
		cfg.EvidenceWindow = 300 * time.Millisecond
		r := newRig(t, cfg, nil, sg, mg)
		return r, sg, mg, r.batch(4, true, func(b *models.Batch, _ []models.Recipient) {
			b.Providers, b.OnUnknown = []string{"sg", "mg"}, policy
		})
	}
	t.Run("hold", func(t *testing.T) {
		t.Parallel()
		r, sg, mg, b := setup(t, models.Hold)
		v := r.done(b)
		require.Equal(t, models.OutcomeUnknown, v.Status(1).Reason)
		require.Equal(t, 1, sg.count())
		require.Zero(t, mg.count(), "it is never sent again on its own")
	})
	t.Run("resend", func(t *testing.T) {
		t.Parallel()
		r, sg, mg, b := setup(t, models.Resend)
		v := r.done(b)
		require.Equal(t, models.Success, v.Status(1).State)
		require.True(t, v.Status(1).MayDouble)
		require.Equal(t, 1, sg.count())
		require.Equal(t, 1, mg.count())
		first, second := v.Entries[0], v.Entries[1]
		require.True(t, second.At.After(first.CallEnds.Add(300*time.Millisecond)), "not before the window closed")
	})
	t.Run("evidence", func(t *testing.T) {
		t.Parallel()
		r, _, mg, b := setup(t, models.Hold)
		require.Eventually(t, func() bool { return len(r.view(b).Entries) == 1 }, patience, time.Millisecond)
		for i := 1; i <= 4; i++ {
			r.event("sg", b.ID.Log(i), models.Event{ID: fmt.Sprint("e", i), Attempt: 1, Kind: models.Delivered, At: time.Now()})
		}
		require.Equal(t, models.Success, r.done(b).Status(4).State)
		require.Zero(t, mg.count())
	})
}

// event puts a provider's post into the inbox and announces it.
func (r *rig) event(provider string, log models.ID, ev models.Event) models.ID {
	r.t.Helper()
	return r.inbox(
		models.Inbox{ID: models.NewInboxID(time.Now()), Provider: provider, Posts: []models.Post{postOf(r.t, "", log, ev)}},
	)
}

// postOf is a post that reports an event under a token.
func postOf(t *testing.T, token string, log models.ID, ev models.Event) models.Post {
	t.Helper()
	body, err := json.Marshal([]models.ParsedEvent{{Log: log, Event: ev}})
	require.NoError(t, err)
	return models.Post{Body: body, Replay: token}
}

// unsettled is a rig with a batch of n through the provider sg, of which nobody
// knows the outcome.
func unsettled(t *testing.T, n int) (*rig, *models.Batch) {
	t.Helper()
	r := newRig(t, fast(), nil, newScripted("sg", always(models.Unknown)))
	b := r.batch(n, true, nil)
	require.Eventually(t, func() bool { return len(r.view(b).Entries) == 1 }, patience, time.Millisecond)
	return r, b
}

func (r *rig) inbox(in models.Inbox) models.ID {
	r.t.Helper()
	require.NoError(r.t, r.store.PutInbox(context.Background(), in))
	require.NoError(
		r.t,
		r.broker.Publish(context.Background(), models.Message{Kind: models.EventMessage, Provider: in.Provider, ID: in.ID}),
	)
	return in.ID
}

// gate is a store whose appends the test can hold up or leave in the dark.
type gate struct {
	models.Store
	append func(ctx context.Context, next func() error) error
}

func (g *gate) Append(ctx context.Context, chunk models.ID, e models.Entry) error {
	if e.Kind != models.Attempt {
		return g.Store.Append(ctx, chunk, e)
	}
	return g.append(ctx, func() error { return g.Store.Append(ctx, chunk, e) })
}

func TestStartByPassed(t *testing.T) {
	t.Parallel()
	cfg := fast()
	cfg.StartBy = time.Second
	sg := newScripted("sg", always(models.Accepted))
	var once sync.Once
	r := newRig(t, cfg, func(s models.Store) models.Store {
		return &gate{s, func(_ context.Context, next func() error) error {
			err := next()
			once.Do(func() { time.Sleep(1200 * time.Millisecond) }) // a frozen worker: the append stands, and time has passed
			return err
		}}
	}, sg)
	b := r.batch(2, true, nil)
	v := r.done(b)
	require.Equal(t, models.Success, v.Status(1).State)
	require.GreaterOrEqual(t, v.Status(1).Attempts, 2)
	require.Equal(t, 1, sg.count(), "the first attempt made no call")
	require.Equal(t, models.StartByPassed, v.Tries(1)[0].Reason)
	require.Equal(t, 1, sg.copiesOf(b.ID.Log(1)))
}

func TestAppendLeftInTheDark(t *testing.T) {
	t.Parallel()
	for name, stands := range map[string]bool{"the entry stands": true, "the entry does not stand": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sg := newScripted("sg", always(models.Accepted))
			var n atomic.Int64
			r := newRig(t, fast(), func(s models.Store) models.Store {
				return &gate{s, func(_ context.Context, next func() error) error {
					if n.Add(1) > 1 {
						return next()
					}
					if stands {
						if err := next(); err != nil {
							return err
						}
					}
					return fmt.Errorf("%w: as the test wants", models.ErrOutcomeUnknown)
				}}
			}, sg)
			b := r.batch(2, true, nil)
			v := r.done(b)
			require.Equal(t, models.Success, v.Status(1).State)
			require.Equal(t, 1, sg.count(), "no call without a known append")
			require.Equal(t, 1, sg.copiesOf(b.ID.Log(1)))
		})
	}
}

func TestManyWorkersOneLedger(t *testing.T) {
	t.Parallel()
	sg, mg := newScripted("sg", always(models.Accepted)), newScripted("mg", always(models.Accepted))
	r := newRig(t, fast(), nil, sg, mg)
	for range 3 {
		r.worker(fast(), sg, mg)
	}
	var bs []*models.Batch
	for range 60 {
		b := r.batch(20, true, nil)
		for range 4 { // everything is announced many times
			require.NoError(
				t,
				r.broker.Publish(context.Background(), models.Message{Kind: models.BatchMessage, ID: b.ID, Lane: b.Lane},
					models.Message{Kind: models.ProviderMessage, Provider: "mg", ID: b.ID, Lane: b.Lane}),
			)
		}
		bs = append(bs, b)
	}
	for _, b := range bs {
		r.done(b)
		for i := 1; i <= 20; i++ {
			require.Equal(t, 1, sg.copiesOf(b.ID.Log(i))+mg.copiesOf(b.ID.Log(i)))
		}
	}
}

func TestNothingAnnounced(t *testing.T) {
	t.Parallel()
	sg := newScripted("sg", always(models.Accepted))
	r := newRig(t, fast(), nil, sg)
	require.Equal(t, models.Success, r.done(r.batch(3, false, nil)).Status(1).State, "the agenda found it")
}

func TestIncompleteBatchIsClearedAway(t *testing.T) {
	t.Parallel()
	cfg := fast()
	var out lockedBuffer
	cfg.IntakeGrace, cfg.Logger = 300*time.Millisecond, slog.New(slog.NewTextHandler(&out, nil))
	r := newRig(t, cfg, nil, newScripted("sg", always(models.Accepted)))
	ctx := context.Background()
	now := time.Now()
	b := models.Batch{
		ID:         models.NewBatchID(now),
		User:       r.user,
		Recipients: 2000,
		Chunks:     2,
		Lane:       models.Bulk,
		OnUnknown:  models.Hold,
	}
	require.NoError(
		t,
		r.store.Schedule(
			ctx,
			models.AgendaEntry{Due: now.Add(50 * time.Millisecond), Kind: models.LookAtBatch, ID: b.ID, User: r.user, Chunks: 2},
		),
	)
	require.NoError(
		t,
		r.store.PutChunk(ctx, models.Chunk{ID: b.ID.Chunk(1), Recipients: []models.Recipient{{Email: "a@b.c"}}}),
	)
	// Until it is cleared away, the chunk would be there for a batch that comes:
	// a second one, stored and completed, shows that age alone decides.
	whole := r.batch(1, true, nil)
	require.Equal(t, models.Success, r.done(whole).Status(1).State)
	require.Eventually(
		t,
		func() bool { return strings.Contains(out.String(), "incomplete batch removed") },
		patience,
		5*time.Millisecond,
	)
	err := r.store.PutBatch(ctx, b, models.Chunk{ID: b.ID, Recipients: []models.Recipient{{Email: "a@b.c"}}})
	require.ErrorIs(t, err, models.ErrNotFound, "it can never exist any more")
}

func TestHangingProviderDelaysNobody(t *testing.T) {
	t.Parallel()
	slow := newScripted("slow", func(ctx context.Context, c *models.Call) []models.Part {
		<-ctx.Done()
		return part(models.Unknown, c)
	})
	quick := newScripted("quick", always(models.Accepted))
	r := newRig(t, fast(), nil, slow, quick)
	for range 30 {
		r.batch(1, true, func(b *models.Batch, _ []models.Recipient) { b.Providers = []string{"slow"} })
	}
	require.Eventually(t, func() bool { return slow.count() >= 3 }, patience, time.Millisecond)
	var bs []*models.Batch
	for range 50 {
		bs = append(bs, r.batch(1, true, func(b *models.Batch, _ []models.Recipient) { b.Providers = []string{"quick"} }))
	}
	before := slow.count()
	for _, b := range bs {
		r.done(b)
	}
	require.LessOrEqual(t, slow.count(), before+8, "all of them were through while slow hung")
}
