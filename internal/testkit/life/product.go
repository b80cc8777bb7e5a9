package life

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/api"
	"github.com/safedelivr/safedelivr/consumers"
	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/inproc"
	"github.com/safedelivr/safedelivr/inproc/inproctest"
	"github.com/safedelivr/safedelivr/internal/priority"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
	"github.com/safedelivr/safedelivr/models/settings"
	"github.com/safedelivr/safedelivr/models/suppression"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/store"
	"github.com/safedelivr/safedelivr/store/memory"
	"github.com/safedelivr/safedelivr/store/shapes"
	"github.com/safedelivr/safedelivr/webhooks"
)

// product is a product of one process in the memory of a test.
type product struct {
	*testing.T
	recorded   *recorder
	api, hooks http.Handler
	key        string
}

// newProduct returns a product that runs until the test ends. It has a provider that accepts each mail. Sums are not
// checked: how much is checked depends on what is stored, up to a bound.
func newProduct(t *testing.T, single bool) *product {
	t.Helper()
	p := &product{T: t, recorded: &recorder{}}
	e := &engine{memory.New(store.Options{}).Engine(), p.recorded}
	st := store.New(e, store.Options{})
	if single {
		st = store.New(singleEngine{e}, store.Options{})
	}
	t.Cleanup(func() { require.NoError(t, st.Close()) })
	const name = "sg"
	var (
		b        = &broker{inproctest.New(t, name), p.recorded}
		follower = control.NewFollower(st)
		lists    = suppression.New(st, suppression.DefaultMemory)
		sched    = priority.New()
		sg       = provider.Spec{Adapter: adapter{}, Provider: models.Provider{Name: name, Kind: "sendgrid", Weight: 1,
			Concurrency: 4, ChunkLimit: 1000, Timeout: 10 * time.Second, Events: models.EventsWebhook}}
	)
	worker, err := consumers.New(st, b, []provider.Spec{sg}, consumers.Config{Sole: single, Follower: follower,
		Suppressions: lists, Priority: sched, Pace: settings.Pace{SumsPoll: 24 * time.Hour}})
	require.NoError(t, err)
	svc := service.New(service.Deps{Store: st, Broker: b, Providers: []models.Provider{sg.Provider}, CommandLog: follower,
		Suppressions: lists, Accepted: worker.Accepted,
		Config: service.Config{SpoolDir: t.TempDir(), Sole: single, Priority: sched}})
	t.Cleanup(svc.Close)
	receiver := webhooks.New("", st, b, []webhooks.Provider{{Name: name, Adapter: sg.Adapter}}, sched, nil)
	t.Cleanup(receiver.Close)
	p.api, p.hooks = api.New(svc, api.Config{}), receiver
	u := models.User{ID: models.NewUserID(), Name: "ann", Created: time.Now()}
	require.NoError(t, st.CreateUser(t.Context(), u))
	k, secret := models.NewKey(u.ID, "test", time.Now())
	require.NoError(t, st.CreateKey(t.Context(), k))
	p.key = secret
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- worker.Run(ctx, 5*time.Second) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	return p
}

// adapter accepts each mail, and parses a list of events.
type adapter struct{ models.Adapter }

func (adapter) Send(_ context.Context, c *models.Call) []models.Part {
	return []models.Part{{Class: models.Accepted, Recipients: c.Numbers()}}
}

func (adapter) MaxRecipients() int                 { return 1000 }
func (adapter) MaxWebhook() int64                  { return 1 << 20 }
func (adapter) WebhookMethods() []string           { return nil }
func (adapter) RepeatStatus() int                  { return 0 }
func (adapter) VerifyHeader(*models.Webhook) error { return nil }
func (adapter) Close()                             {}

func (adapter) Verify(context.Context, *models.Webhook) (models.Verified, error) {
	return models.Verified{}, nil
}

func (adapter) Parse(body []byte) (out models.Parsed) {
	if err := json.Unmarshal(body, &out.Events); err != nil {
		out.Skipped = append(out.Skipped, "not JSON")
	}
	return out
}

// recorder keeps the calls of a store and a broker.
type recorder struct {
	mu    sync.Mutex
	calls []call
}

func (r *recorder) add(do func(ctx context.Context, e shapes.Engine) error, whats ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = append(r.calls, call{whats: whats, do: do})
}

// take returns the calls since the last take, as those of a step.
func (r *recorder) take(step int) []call {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := r.calls
	r.calls = nil
	for i := range out {
		out[i].step = step
	}
	return out
}

// broker records the messages that are published.
type broker struct {
	models.Broker
	recorded *recorder
}

func (b *broker) Publish(ctx context.Context, ms ...models.Message) error {
	for range ms {
		b.recorded.add(nil, "Message to the broker")
	}
	return b.Broker.Publish(ctx, ms...)
}

// Offer gives a message to a handler. A broker between processes gets nothing then.
func (b *broker) Offer(m models.Message) bool {
	near, ok := b.Broker.(*inproc.Broker)
	return ok && near.Hand(m)
}

// engine records the calls that a mail may need.
type engine struct {
	shapes.Engine
	recorded *recorder
}

// singleEngine is an engine that only one process can use, which has all leases.
type singleEngine struct{ *engine }

func (singleEngine) Lease(context.Context, string, string, time.Duration) (bool, error) {
	return true, nil
}

// each returns a name for each row.
func each[T any](verb string, rows []T, table func(*T) *shapes.Table) []string {
	out := make([]string, len(rows))
	for i := range rows {
		out[i] = verb + " " + table(&rows[i]).Name
	}
	return out
}

func (e *engine) Put(ctx context.Context, puts ...shapes.Put) error {
	e.recorded.add(func(ctx context.Context, e shapes.Engine) error { return e.Put(ctx, puts...) },
		each("write", puts, func(p *shapes.Put) *shapes.Table { return p.Table })...)
	return e.Engine.Put(ctx, puts...)
}

func (e *engine) Swap(ctx context.Context, swaps []shapes.Swap, also ...shapes.Put) ([]shapes.Refusal, error) {
	e.recorded.add(func(ctx context.Context, e shapes.Engine) error {
		_, err := e.Swap(ctx, swaps, also...)
		return err
	}, append(each("swap", swaps, func(s *shapes.Swap) *shapes.Table { return s.Table }),
		each("write", also, func(p *shapes.Put) *shapes.Table { return p.Table })...)...)
	return e.Engine.Swap(ctx, swaps, also...)
}

func (e *engine) Find(ctx context.Context, at ...shapes.Address) ([][]shapes.Row, error) {
	e.recorded.add(func(ctx context.Context, e shapes.Engine) error {
		_, err := e.Find(ctx, at...)
		return err
	}, each("find", at, func(a *shapes.Address) *shapes.Table { return a.Table })...)
	return e.Engine.Find(ctx, at...)
}

func (e *engine) Scan(ctx context.Context, t *shapes.Table, part []byte, r shapes.Range) ([]shapes.Row, error) {
	e.recorded.add(func(ctx context.Context, e shapes.Engine) error {
		_, err := e.Scan(ctx, t, part, r)
		return err
	}, "scan "+t.Name)
	return e.Engine.Scan(ctx, t, part, r)
}

func (e *engine) Append(ctx context.Context, t *shapes.Table, part []byte, n shapes.Entry) (shapes.Entry, error) {
	e.recorded.add(func(ctx context.Context, e shapes.Engine) error {
		_, err := e.Append(ctx, t, part, n)
		return err
	}, "append "+t.Name)
	return e.Engine.Append(ctx, t, part, n)
}

func (e *engine) Read(ctx context.Context, t *shapes.Table, part []byte, after, limit int) ([]shapes.Entry, error) {
	e.recorded.add(func(ctx context.Context, e shapes.Engine) error {
		_, err := e.Read(ctx, t, part, after, limit)
		return err
	}, "read "+t.Name)
	return e.Engine.Read(ctx, t, part, after, limit)
}

func (e *engine) ReadWith(
	ctx context.Context, log, rows *shapes.Table, part []byte, r shapes.Range,
) ([]shapes.Entry, []shapes.Row, error) {
	e.recorded.add(func(ctx context.Context, e shapes.Engine) error {
		_, _, err := e.ReadWith(ctx, log, rows, part, r)
		return err
	}, "read "+log.Name+" with "+rows.Name)
	return e.Engine.ReadWith(ctx, log, rows, part, r)
}

func (e *engine) Last(ctx context.Context, t *shapes.Table, part []byte) (shapes.Entry, error) {
	e.recorded.add(func(ctx context.Context, e shapes.Engine) error {
		_, err := e.Last(ctx, t, part)
		return err
	}, "last of "+t.Name)
	return e.Engine.Last(ctx, t, part)
}

func (e *engine) RemoveRows(ctx context.Context, at ...shapes.Address) error {
	e.recorded.add(func(ctx context.Context, e shapes.Engine) error { return e.RemoveRows(ctx, at...) },
		each("remove", at, func(a *shapes.Address) *shapes.Table { return a.Table })...)
	return e.Engine.RemoveRows(ctx, at...)
}
