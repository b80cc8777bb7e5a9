package dashboard

import (
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/api"
	"github.com/safedelivr/safedelivr/dashboard/login"
	"github.com/safedelivr/safedelivr/dashboard/providers"
	"github.com/safedelivr/safedelivr/dashboard/web"
	"github.com/safedelivr/safedelivr/inproc"
	"github.com/safedelivr/safedelivr/internal/testkit"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/store/memory"
)

func TestMain(m *testing.M) { testkit.VerifyNoLeaks(m) }

// countingStore counts the chunks that are read, and lets a test intercept PutBatch.
type countingStore struct {
	models.Store
	records  atomic.Int64
	batches  atomic.Int64 // reads of a batch
	lives    sync.Map     // for how long a transient value was stored last, by its kind
	putBatch atomic.Pointer[func(put func() error) error]
}

func (s *countingStore) PutBatch(ctx context.Context, b models.Batch, first models.Chunk, es ...models.AgendaEntry) error {
	put := func() error { return s.Store.PutBatch(ctx, b, first, es...) }
	if f := s.putBatch.Load(); f != nil {
		return (*f)(put)
	}
	return put()
}

func (s *countingStore) PutTransient(ctx context.Context, kind, name string, value []byte, ttl time.Duration) error {
	s.lives.Store(kind, ttl)
	return s.Store.PutTransient(ctx, kind, name, value, ttl)
}

func (s *countingStore) Batch(ctx context.Context, id models.ID) (models.Batch, error) {
	s.batches.Add(1)
	return s.Store.Batch(ctx, id)
}

func (s *countingStore) Record(ctx context.Context, id models.ID) ([]models.Entry, []models.Fact, error) {
	s.records.Add(1)
	return s.Store.Record(ctx, id)
}

// subjectComposer composes requests that have only the subject, without placeholders.
type subjectComposer struct{}

func (subjectComposer) Compose(c *models.Call) (models.Request, []models.Part) {
	body, err := json.Marshal(
		map[string]string{"subject": models.Rewrite(c.Content.Subject, func(string) string { return "" })},
	)
	return models.Request{Method: "POST", URL: "https://provider.test/send", ContentType: "application/json", Body: body},
		map[bool][]models.Part{true: {{Text: "error"}}}[err != nil]
}

// rig is a dashboard on real stores, with a simulated GitHub if wanted.
type rig struct {
	testing.TB
	store   *countingStore
	service *service.Service
	board   *Dashboard
	deps    Deps // of board
	url     string
	net     *testkit.Network // nil: that of the machine
	github  *gitHub

	seen  []telemetry.ProviderState
	lists *fakeLists // of sg

	inspect func(ctx context.Context, provider string) []providers.Finding
}

// providers changes what a worker reports about every provider.
func (f *rig) providers(change func(*telemetry.ProviderState)) {
	for i := range f.seen {
		change(&f.seen[i])
	}
	f.put(telemetry.WorkerReport, "w", telemetry.WorkerState{Started: time.Now().UTC(), Share: 1, Providers: f.seen})
}

// put stores a transient value.
func (f *rig) put(kind, name string, v any) {
	raw, err := json.Marshal(v)
	require.NoError(f, err)
	require.NoError(f, f.store.PutTransient(f.Context(), kind, name, raw, time.Hour))
}

// routes returns the routes for users and those for operators.
func (f *rig) routes() (users, operators map[string]web.Handler) {
	users, operators = map[string]web.Handler{}, map[string]web.Handler{}
	for _, room := range f.board.rooms {
		maps.Copy(users, room.Users)
		maps.Copy(operators, room.Operators)
	}
	return users, operators
}

// reopen opens the dashboard again with other dependencies, as after a restart.
func (f *rig) reopen(change func(*Deps)) {
	f.board.Close()
	change(&f.deps)
	board, err := New(f.deps)
	require.NoError(f, err)
	f.board = board
}

func newRig(t testing.TB, gh *login.GitHub, users ...gitHubUser) *rig {
	t.Helper()
	return newRigOf(t, service.Config{CountTime: time.Hour}, gh, users...)
}

// newBubbleRig returns a rig that may be used in a bubble of testing/synctest.
func newBubbleRig(t testing.TB, gh *login.GitHub, users ...gitHubUser) *rig {
	t.Helper()
	return newRigOn(t, testkit.NewNetwork(t), service.Config{}, gh, users...)
}

func newRigOf(t testing.TB, cfg service.Config, gh *login.GitHub, users ...gitHubUser) *rig {
	t.Helper()
	return newRigOn(t, nil, cfg, gh, users...)
}

// serverOn returns a server that is not started.
func serverOn(net *testkit.Network, h http.Handler) *httptest.Server {
	if net == nil {
		return httptest.NewUnstartedServer(h)
	}
	return &httptest.Server{Listener: net.Listen(), Config: &http.Server{Handler: h, ReadHeaderTimeout: time.Hour}}
}

func newRigOn(t testing.TB, net *testkit.Network, cfg service.Config, gh *login.GitHub, users ...gitHubUser) *rig {
	t.Helper()
	cfg.SpoolDir, cfg.Sole = t.TempDir(), true
	store := &countingStore{Store: memory.Open(t)}
	broker, err := inproc.New([]string{"mg", "sg"}, nil)
	require.NoError(t, err)
	now := time.Now().UTC()
	down := telemetry.Health{
		State:  telemetry.Suspended,
		Source: telemetry.CallsFailed,
		Since:  now,
		Why:    `it answered <b>503</b>`,
	}
	none := func(context.Context, string) []providers.Finding { return nil }
	f := &rig{TB: t, net: net, store: store, lists: &fakeLists{}, inspect: none, seen: []telemetry.ProviderState{
		{Name: "mg", Health: down},
		{Name: "sg", Health: telemetry.Health{State: telemetry.Healthy, Since: now}},
	}}
	f.providers(func(*telemetry.ProviderState) {})
	f.put(telemetry.RecountReport, telemetry.NewestRecount, telemetry.Recount{At: now, Differences: 1})
	composers := map[string]models.Composer{"mg": subjectComposer{}, "sg": subjectComposer{}}
	carries := models.Capabilities{
		Attachments: true,
		Inline:      true,
		Copies:      true,
		Names:       true,
		Variables:   true,
		Headers:     true,
	}
	f.service = service.New(service.Deps{Store: store, Broker: broker, Config: cfg, Composers: composers,
		Lists:    map[string]models.ProviderLists{"sg": f.lists},
		Adapters: map[string]models.Adapter{"sg": unnamedAdapter{}},
		Providers: []models.Provider{
			{Name: "mg", Kind: "mailgun", Weight: 1, Carries: carries},
			{Name: "sg", Kind: "sendgrid", Weight: 1, Carries: carries},
		}})
	server := serverOn(net, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { f.board.ServeHTTP(w, r) }))
	f.url = "http://" + server.Listener.Addr().String()
	if gh != nil {
		app := gitHubApp{ClientID: "app", ClientSecret: "secret", RedirectURL: f.url + "/login/github/callback"}
		f.github = newGitHub(app, users...)
		stand := serverOn(net, f.github)
		stand.Start()
		t.Cleanup(stand.Close)
		if net != nil {
			stand.Client().Transport.(*http.Transport).DialContext = net.Dial
		}
		gh.ClientID, gh.ClientSecret, gh.BaseURL, gh.Client = "app", "secret", stand.URL, stand.Client()
	}
	f.deps = Deps{Store: store, Service: f.service, PublicURL: f.url, GitHub: gh,
		Refuse:  api.New(f.service, api.Config{}).Refuse,
		Inspect: func(ctx context.Context, provider string) []providers.Finding { return f.inspect(ctx, provider) },
		Providers: []web.Provider{
			{Name: "mg", Title: "Mailgun", Webhooks: true},
			{Name: "sg", Title: "SendGrid", Webhooks: true, Verified: true, Boxes: []models.EventBox{
				{Label: "Delivered", Kinds: []models.EventKind{models.Delivered}},
				{Label: "Bounced", Kinds: []models.EventKind{models.Bounced, models.Blocked}},
				{Label: "Spam Reports", Kinds: []models.EventKind{models.Complained}},
			}},
		}}
	f.board, err = New(f.deps)
	require.NoError(t, err)
	server.Start()
	t.Cleanup(func() {
		f.board.Close()
		server.Close()
		f.service.Close()
		require.NoError(t, broker.Close())
	})
	return f
}

// browser keeps cookies and follows redirects.
type browser struct {
	*rig
	client *http.Client
}

func (f *rig) browser() *browser {
	jar, err := cookiejar.New(nil)
	require.NoError(f, err)
	tr := &http.Transport{}
	if f.net != nil {
		tr.DialContext = f.net.Dial
	}
	f.Cleanup(tr.CloseIdleConnections)
	return &browser{rig: f, client: &http.Client{Jar: jar, Transport: tr}}
}

// answer is the last response after redirects.
type answer struct {
	*http.Response
	text string
}

func (b *browser) do(method, path string, form url.Values, head ...string) answer {
	b.Helper()
	if method == http.MethodPost {
		head = append([]string{"Content-Type", "application/x-www-form-urlencoded"}, head...)
	}
	return b.send(method, path, strings.NewReader(form.Encode()), head...)
}

func (b *browser) send(method, path string, body io.Reader, head ...string) answer {
	b.Helper()
	target := path
	if strings.HasPrefix(path, "/") {
		target = b.url + path
	}
	r, err := http.NewRequestWithContext(b.Context(), method, target, body)
	require.NoError(b, err)
	if method == http.MethodPost {
		r.Header.Set("Sec-Fetch-Site", "same-origin")
	}
	for i := 0; i+1 < len(head); i += 2 {
		r.Header.Set(head[i], head[i+1])
	}
	resp, err := b.client.Do(r)
	require.NoError(b, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(b, err)
	return answer{resp, string(text)}
}

func (b *browser) get(path string) answer                   { return b.do(http.MethodGet, path, nil) }
func (b *browser) post(path string, form url.Values) answer { return b.do(http.MethodPost, path, form) }

// byLink logs in as the local operator or another user.
func (f *rig) byLink(u models.User) *browser {
	link, err := f.board.LoginLink(f.Context(), u)
	require.NoError(f, err)
	b := f.browser()
	a := b.get(link)
	require.Equal(f, http.StatusOK, a.StatusCode)
	u2, err := url.Parse(link)
	require.NoError(f, err)
	a = b.post("/login/link", u2.Query())
	require.Equal(f, http.StatusOK, a.StatusCode, a.text)
	require.Equal(f, "/", a.Request.URL.Path)
	return b
}

// byGitHub logs in through the simulated GitHub.
func (b *browser) byGitHub(login string) answer {
	a := b.post("/login/github", url.Values{"to": {"/settings"}})
	require.Equal(b, http.StatusOK, a.StatusCode, a.text)
	require.Contains(b, a.text, "Simulated GitHub")
	form := a.Request.URL.Query()
	form.Set("login", login)
	return b.post(a.Request.URL.Scheme+"://"+a.Request.URL.Host+"/login/oauth/authorize", form)
}
