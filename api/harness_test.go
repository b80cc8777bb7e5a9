package api

import (
	"context"
	"encoding/json"
	"io"
	"iter"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/safedelivr/safedelivr/inproc/inproctest"
	"github.com/safedelivr/safedelivr/internal/priority"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/sqlite/sqlitetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// spyStore is a real store that records calls and can fail them.
type spyStore struct {
	models.Store

	mu     sync.Mutex
	calls  []string
	fail   map[string]func(n int) error // called before the n-th call, from 1; an error replaces the call
	counts map[string]int
	down   bool        // all calls fail
	tried  []models.ID // batches of agenda entries

	damaged bool // all batches are
}

// enter records a call and returns the error that it fails with.
func (s *spyStore) enter(name string) error {
	s.mu.Lock()
	s.calls = append(s.calls, name)
	s.counts[name]++
	n, f, down := s.counts[name], s.fail[name], s.down
	s.mu.Unlock()
	if f != nil {
		if err := f(n); err != nil {
			return err
		}
	}
	if down {
		return models.ErrUnavailable
	}
	return nil
}

func (s *spyStore) setDown(down bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = down
}

// setDamaged damages all batches, or repairs them.
func (s *spyStore) setDamaged(damaged bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.damaged = damaged
}

func (s *spyStore) isDamaged() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.damaged
}

// failing makes f decide whether calls of a name fail.
func (s *spyStore) failing(name string, f func(n int) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail[name] = f
}

// before makes f run before each call of a name.
func (s *spyStore) before(name string, f func()) {
	s.failing(name, func(int) error { f(); return nil })
}

// writes returns the names of the calls that store batches.
func (s *spyStore) writes() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(s.calls), func(c string) bool {
		return c != "Schedule" && c != "PutChunk" && c != "PutPiece" && c != "PutBatch"
	})
}

func (s *spyStore) Schedule(ctx context.Context, es ...models.AgendaEntry) error {
	if err := s.enter("Schedule"); err != nil {
		return err
	}
	s.mu.Lock()
	for _, e := range es {
		s.tried = append(s.tried, e.ID)
	}
	s.mu.Unlock()
	return s.Store.Schedule(ctx, es...)
}

func (s *spyStore) PutChunk(ctx context.Context, c models.Chunk) error {
	if err := s.enter("PutChunk"); err != nil {
		return err
	}
	return s.Store.PutChunk(ctx, c)
}

func (s *spyStore) PutPiece(ctx context.Context, batch models.ID, sha256 string, number int, piece []byte) error {
	if err := s.enter("PutPiece"); err != nil {
		return err
	}
	return s.Store.PutPiece(ctx, batch, sha256, number, piece)
}

// count returns how many calls of a name there were.
func (s *spyStore) count(name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counts[name]
}

func (s *spyStore) PutBatch(ctx context.Context, b models.Batch, first models.Chunk) error {
	if err := s.enter("PutBatch"); err != nil {
		return err
	}
	return s.Store.PutBatch(ctx, b, first)
}

func (s *spyStore) Transients(ctx context.Context, kind string) (map[string][]byte, error) {
	if err := s.enter("Transients"); err != nil {
		return nil, err
	}
	return s.Store.Transients(ctx, kind)
}

func (s *spyStore) PutAnswer(ctx context.Context, key string, id models.ID, answer []byte, ttl time.Duration) error {
	if err := s.enter("PutAnswer"); err != nil {
		return err
	}
	return s.Store.PutAnswer(ctx, key, id, answer, ttl)
}

func (s *spyStore) KeyByHash(ctx context.Context, hash string) (models.Key, error) {
	if err := s.enter("KeyByHash"); err != nil {
		return models.Key{}, err
	}
	return s.Store.KeyByHash(ctx, hash)
}

func (s *spyStore) Batch(ctx context.Context, id models.ID) (models.Batch, error) {
	if err := s.enter("Batch"); err != nil {
		return models.Batch{}, err
	}
	b, err := s.Store.Batch(ctx, id)
	if err == nil && s.isDamaged() {
		return models.Batch{}, models.ErrDamaged
	}
	return b, err
}

func (s *spyStore) Batches(ctx context.Context, user string, before models.ID, limit int) ([]models.Batch, error) {
	bs, err := s.Store.Batches(ctx, user, before, limit)
	for i := range bs {
		if s.isDamaged() {
			bs[i] = models.Batch{ID: bs[i].ID, User: user, Damaged: true}
		}
	}
	return bs, err
}

func (s *spyStore) BatchIDs(ctx context.Context, user string, before models.ID, limit int) ([]models.ID, error) {
	if err := s.enter("BatchIDs"); err != nil {
		return nil, err
	}
	return s.Store.BatchIDs(ctx, user, before, limit)
}

func (s *spyStore) Recipients(ctx context.Context, id models.ID) ([]models.Recipient, error) {
	if err := s.enter("Recipients"); err != nil {
		return nil, err
	}
	return s.Store.Recipients(ctx, id)
}

func (s *spyStore) Summaries(
	ctx context.Context,
	user string,
	batch models.ID,
	from int,
) iter.Seq2[models.ChunkSummary, error] {
	if err := s.enter("Summaries"); err != nil {
		return func(yield func(models.ChunkSummary, error) bool) { yield(models.ChunkSummary{}, err) }
	}
	return s.Store.Summaries(ctx, user, batch, from)
}

func (s *spyStore) Nodes(ctx context.Context, user string, l models.Level, from, to time.Time) ([]models.Node, error) {
	if err := s.enter("Nodes"); err != nil {
		return nil, err
	}
	return s.Store.Nodes(ctx, user, l, from, to)
}

func (s *spyStore) Ping(ctx context.Context) error {
	if err := s.enter("Ping"); err != nil {
		return err
	}
	return s.Store.Ping(ctx)
}

// fixture is an API with a real store, a real broker and two users.
type fixture struct {
	*testing.T
	store  *spyStore
	broker models.Broker
	server *Server
	deps   service.Deps
	url    string
	client *http.Client

	user, secret   string
	other, foreign string // another user and its key
}

type setup struct {
	cfg     Config
	service service.Config
	broker  func(models.Broker) models.Broker
	names   []string // of the providers; worker w reports on the first of them
}

func newFixture(t *testing.T, change ...func(*setup)) *fixture {
	t.Helper()
	st := setup{
		names:   []string{"sg", "mg"},
		service: service.Config{SpoolDir: t.TempDir(), RetryTime: time.Minute, Sole: true},
	}
	for _, c := range change {
		c(&st)
	}
	real, eb := sqlitetest.Open(t), inproctest.New(t, "sg", "mg")
	f := &fixture{
		T:      t,
		store:  &spyStore{Store: real, fail: map[string]func(int) error{}, counts: map[string]int{}},
		broker: eb,
	}
	if st.broker != nil {
		f.broker = st.broker(eb)
	}
	st.service.Priority = priority.New()
	f.deps = service.Deps{Store: f.store, Broker: f.broker, Config: st.service}
	for _, name := range st.names {
		f.deps.Providers = append(f.deps.Providers, models.Provider{
			Name:        name,
			Kind:        "sendgrid",
			Weight:      1,
			Concurrency: 4,
			ChunkLimit:  1000,
			Events:      models.EventsWebhook,
		})
	}
	f.putReports()
	f.serve(st.cfg)
	f.user, f.secret = f.newUser("ann")
	f.other, f.foreign = f.newUser("bob")
	return f
}

// putReports stores the reports of a worker, a recount and a webhook receiver.
func (f *fixture) putReports() {
	now := time.Now().UTC()
	put := func(kind, name string, v any) {
		raw, err := json.Marshal(v)
		require.NoError(f, err)
		require.NoError(f, f.store.PutTransient(f.Context(), kind, name, raw, time.Hour))
	}
	put(telemetry.RecountReport, telemetry.NewestRecount, telemetry.Recount{At: now, Batches: 2, Recipients: 8})
	put(telemetry.LastReceived, "sg", now)
	put(telemetry.WorkerReport, "w", telemetry.WorkerState{
		Started: now,
		Share:   1,
		Providers: []telemetry.ProviderState{{
			Name:     "sg",
			Health:   telemetry.Health{State: telemetry.Suspended, Since: now, Why: "five calls failed", Until: now},
			Counters: telemetry.Counters{Calls: 7},
			Rate:     1.5,
			Answers:  80 * time.Millisecond,
			Reported: 2048 * time.Millisecond,
		}},
	})
}

// serve starts another API with the fixture's store and broker, as another process would, and
// sends all further requests to it. It returns its service.
func (f *fixture) serve(cfg Config) *service.Service {
	f.Helper()
	svc := service.New(f.deps)
	f.Cleanup(svc.Close)
	f.server = New(svc, cfg)
	ts := httptest.NewServer(f.server)
	f.Cleanup(ts.Close)
	f.url, f.client = ts.URL, ts.Client()
	return svc
}

// giveUpSoon shortens the time for which writes with an unknown outcome are retried.
func (f *fixture) giveUpSoon() {
	f.deps.Config.RetryTime = 100 * time.Millisecond
	f.serve(Config{})
}

func (f *fixture) newUser(name string) (id, secret string) {
	f.Helper()
	u := models.User{ID: models.NewUserID(), Name: name, Created: time.Now()}
	require.NoError(f, f.store.CreateUser(f.Context(), u))
	k, secret := models.NewKey(u.ID, "test", time.Now())
	require.NoError(f, f.store.CreateKey(f.Context(), k))
	return u.ID, secret
}

// reply is an answer with its whole body.
type reply struct {
	Status int
	Header http.Header
	Body   []byte
}

// object decodes the answer as an object.
func (r *reply) object(t testing.TB) (out map[string]any) {
	t.Helper()
	require.NoError(t, json.Unmarshal(r.Body, &out), string(r.Body))
	return out
}

// problem decodes the answer as a problem and checks it.
func (r *reply) problem(t testing.TB) problem {
	t.Helper()
	var p problem
	require.Equal(t, "application/problem+json", r.Header.Get("Content-Type"), string(r.Body))
	require.NoError(t, json.Unmarshal(r.Body, &p))
	require.Equal(t, r.Status, p.Status)
	require.NotEmpty(t, p.Code)
	require.Equal(t, problemBase+p.Code, p.Type)
	require.NotEmpty(t, p.Title)
	require.NotEmpty(t, p.Detail)
	require.Equal(t, r.Header.Get("X-Request-Id"), p.RequestID)
	return p
}

// pointers returns the pointer and the code of each mistake.
func (p *problem) pointers() []string {
	out := make([]string, 0, len(p.Errors))
	for _, e := range p.Errors {
		out = append(out, e.Pointer+" "+e.Code)
	}
	return out
}

// do sends a request with the key of the first user. header holds pairs of names and values;
// an empty value removes a header.
func (f *fixture) do(method, path, contentType string, body io.Reader, header ...string) *reply {
	f.Helper()
	req, err := http.NewRequestWithContext(f.Context(), method, f.url+path, body)
	require.NoError(f, err)
	req.Header.Set("Authorization", "Bearer "+f.secret)
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	for i := 0; i+1 < len(header); i += 2 {
		if req.Header.Del(header[i]); header[i+1] != "" {
			req.Header.Set(header[i], header[i+1])
		}
	}
	res, err := f.client.Do(req)
	require.NoError(f, err)
	defer func() { _ = res.Body.Close() }()
	raw, err := io.ReadAll(res.Body)
	require.NoError(f, err)
	return &reply{res.StatusCode, res.Header, raw}
}

func (f *fixture) get(path string, header ...string) *reply {
	f.Helper()
	return f.do(http.MethodGet, path, "", nil, header...)
}

func (f *fixture) post(body string) *reply {
	f.Helper()
	return f.do(http.MethodPost, "/v1/batches", "application/json", strings.NewReader(body))
}

// accepted is the answer to a batch that was accepted.
type accepted struct {
	ID         models.ID         `json:"id"`
	State      models.BatchState `json:"state"`
	Recipients int               `json:"recipients"`
	Duplicates int               `json:"duplicates"`
	Lane       models.Lane       `json:"lane"`
}

// accepted checks the answer to a batch. It returns the answer and the stored batch with its
// recipients.
func (f *fixture) accepted(r *reply) (accepted, models.Batch, []models.Recipient) {
	f.Helper()
	require.Equal(f, http.StatusAccepted, r.Status, string(r.Body))
	var a accepted
	require.NoError(f, json.Unmarshal(r.Body, &a))
	require.Equal(f, batchPath(a.ID), r.Header.Get("Location"))
	b, err := f.store.Store.Batch(f.Context(), a.ID)
	require.NoError(f, err)
	require.Equal(f, b.Recipients, a.Recipients)
	var all []models.Recipient
	for n := range b.Chunks {
		rs, err := f.store.Store.Recipients(f.Context(), a.ID.Chunk(n))
		require.NoError(f, err)
		require.Len(f, rs, b.ChunkSize(n))
		all = append(all, rs...)
	}
	require.Len(f, all, b.Recipients)
	return a, b, all
}

// read decodes the answer to a GET.
func read[T any](f *fixture, path string) T {
	f.Helper()
	r := f.get(path)
	require.Equal(f, http.StatusOK, r.Status, string(r.Body))
	var v T
	require.NoError(f, json.Unmarshal(r.Body, &v))
	return v
}

// batchList and logList are pages of lists.
type (
	batchList = service.BatchPage
	logList   = service.LogPage
)

// handleOne receives one message of a queue and returns d for it.
func (f *fixture) handleOne(q models.Queue, d models.Disposition) {
	f.Helper()
	ctx, cancel := context.WithCancel(f.Context())
	defer cancel()
	require.NoError(f, f.broker.Subscribe(ctx, q, 1, func(context.Context, models.Message) models.Disposition {
		cancel()
		return d
	}))
}
