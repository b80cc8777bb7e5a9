package api

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/internal/testkit"

	"github.com/safedelivr/safedelivr/inproc/inproctest"
	"github.com/safedelivr/safedelivr/internal/priority"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/mail"
	"github.com/safedelivr/safedelivr/store/memory"
)

func TestMain(m *testing.M) { testkit.VerifyNoLeaks(m) }

// fixture is an API with a real store, a real broker and two users.
type fixture struct {
	testing.TB
	store  *spyStore
	broker models.Broker
	server *Server
	deps   service.Deps
	url    string
	client *http.Client
	net    *testkit.Network // nil: that of the machine

	user, secret   string
	other, foreign string // another user and its key
}

type setup struct {
	cfg     Config
	service service.Config
	broker  func(models.Broker) models.Broker
	store   models.Store // nil: one in memory
	names   []string     // of the providers; worker w reports on the first of them
	pipes   bool         // requests come over a testkit.Network
}

// inBubble makes a fixture that may be used in a bubble of testing/synctest.
func inBubble(s *setup) { s.pipes = true }

func newFixture(t testing.TB, change ...func(*setup)) *fixture {
	t.Helper()
	st := setup{
		names:   []string{"sg", "mg"},
		service: service.Config{SpoolDir: t.TempDir(), RetryTime: time.Minute, Sole: true},
	}
	for _, c := range change {
		c(&st)
	}
	if st.store == nil {
		st.store = memory.Open(t)
	}
	eb := inproctest.New(t, "sg", "mg")
	f := &fixture{
		TB:     t,
		store:  &spyStore{Store: st.store, fail: map[string]func(int) error{}, counts: map[string]int{}},
		broker: eb,
	}
	if st.broker != nil {
		f.broker = st.broker(eb)
	}
	st.service.Priority, st.service.CountTime = priority.New(), time.Hour // however slow the machine is
	f.deps = service.Deps{Store: f.store, Broker: f.broker, Config: st.service,
		Lists:    map[string]models.ProviderLists{"sg": &fakeLists{}},
		Adapters: map[string]models.Adapter{"sg": unnamedAdapter{}}}
	for _, name := range st.names {
		f.deps.Providers = append(f.deps.Providers, models.Provider{
			Name:        name,
			Kind:        "sendgrid",
			Weight:      1,
			Concurrency: 4,
			ChunkLimit:  1000,
			Events:      models.EventsWebhook,
			Carries:     models.Capabilities{Names: true, Variables: true, Metadata: true, Headers: true, HeaderNames: true},
		})
	}
	if st.pipes {
		f.net = testkit.NewNetwork(t)
	}
	f.putReports()
	f.serve(st.cfg)
	f.user, f.secret = f.newUser("ann")
	f.other, f.foreign = f.newUser("bob")
	return f
}

// unnamedAdapter parses a models.UnnamedEvent as JSON.
type unnamedAdapter struct{ models.Adapter }

func (unnamedAdapter) Parse(body []byte) models.Parsed {
	var u models.UnnamedEvent
	if json.Unmarshal(body, &u) != nil {
		return models.Parsed{}
	}
	return models.Parsed{Unnamed: []models.UnnamedEvent{u}}
}

// unmatched stores bounces that were not matched, each of another address, and returns their IDs, newest first.
func (f *fixture) unmatched(logs []models.ID, addresses ...string) (ids []models.ID) {
	f.Helper()
	var r telemetry.Unmatched
	for i, address := range addresses {
		at := time.Now().Add(time.Duration(i-len(addresses)) * time.Minute).UTC()
		u := models.UnnamedEvent{Address: address, Event: models.Event{ID: address, Kind: models.Bounced, At: at}}
		body, err := json.Marshal(u)
		require.NoError(f, err)
		in := models.Inbox{ID: models.NewInboxID(at), Provider: "sg", Posts: []models.Post{{Body: body}}}
		require.NoError(f, f.store.PutInbox(f.Context(), in))
		e := telemetry.UnmatchedEvent{ID: telemetry.UnmatchedID(in.ID, &u), Post: in.ID, Provider: "sg", Logs: logs}
		r.Events, ids = append(r.Events, e), append([]models.ID{e.ID}, ids...)
	}
	raw, err := json.Marshal(r)
	require.NoError(f, err)
	require.NoError(f, f.store.PutTransient(f.Context(), telemetry.UnmatchedReport, "w", raw, time.Hour))
	return ids
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
	if f.net == nil {
		ts := httptest.NewServer(f.server)
		f.Cleanup(ts.Close)
		f.url, f.client = ts.URL, ts.Client()
		return svc
	}
	ts := &httptest.Server{
		Listener: f.net.Listen(), Config: &http.Server{Handler: f.server, ReadHeaderTimeout: time.Hour},
	}
	ts.Start()
	f.Cleanup(ts.Close)
	f.url, f.client = ts.URL, ts.Client()
	f.client.Transport.(*http.Transport).DialContext = f.net.Dial
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
func (r *reply) problem(t testing.TB) problemDetails {
	t.Helper()
	var p problemDetails
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
func (p *problemDetails) pointers() []string {
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
	LaneLimit  models.Limit      `json:"lane_limit"`
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
	batchList = mail.BatchPage
	logList   = mail.LogPage
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

// after returns the parameter of the page after a cursor; empty: of the first.
func after(cursor string) string {
	if cursor == "" {
		return ""
	}
	return "&cursor=" + cursor
}
