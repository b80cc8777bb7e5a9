package webhooks

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/internal/testkit"

	"github.com/safedelivr/safedelivr/inproc"
	"github.com/safedelivr/safedelivr/inproc/inproctest"
	"github.com/safedelivr/safedelivr/internal/priority"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/store/memory"
)

func TestMain(m *testing.M) { testkit.VerifyNoLeaks(m) }

// testDoor is where providers reach the server.
const testDoor = "https://mail.example.com/webhooks/"

// fakeProvider returns preset results from Verify.
type fakeProvider struct {
	models.Adapter
	verify  func(w *models.Webhook) (models.Verified, error)
	header  error
	methods []string
	repeats int
}

func (f *fakeProvider) MaxWebhook() int64 { return testLimit }

func (f *fakeProvider) WebhookMethods() []string { return f.methods }
func (f *fakeProvider) RepeatStatus() int        { return f.repeats }

func (f *fakeProvider) VerifyHeader(*models.Webhook) error { return f.header }

func (f *fakeProvider) Verify(_ context.Context, w *models.Webhook) (models.Verified, error) {
	return f.verify(w)
}

// refusing returns a provider that refuses all posts.
func refusing(status int, code string) *fakeProvider {
	return &fakeProvider{verify: func(*models.Webhook) (models.Verified, error) {
		return models.Verified{}, &models.WebhookError{Status: status, Code: code, Detail: "a reason"}
	}}
}

// spyInbox is a real store. before runs first and may fail or block.
type spyInbox struct {
	*memory.Store
	before func() error
	ids    []models.ID
	mu     sync.Mutex
}

func (s *spyInbox) PutInbox(ctx context.Context, in models.Inbox) error {
	if s.before != nil {
		if err := s.before(); err != nil {
			return err
		}
	}
	err := s.Store.PutInbox(ctx, in)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		s.ids = append(s.ids, in.ID)
	}
	return err
}

// stored returns the stored entries in the order of their writes.
func (s *spyInbox) stored(t *testing.T) []models.Inbox {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	all, err := s.Inbox(t.Context(), s.ids...)
	require.NoError(t, err)
	require.Len(t, all, len(s.ids))
	return all
}

type fixture struct {
	inbox  *spyInbox
	broker *inproc.Broker
	server *Server
	url    string
	client *http.Client
}

func newFixture(t *testing.T, providers ...Provider) *fixture {
	t.Helper()
	store, broker := memory.Open(t), inproctest.New(t, "sg", "mg")
	f := &fixture{inbox: &spyInbox{Store: store}, broker: broker}
	f.server = New(testDoor, f.inbox, broker, providers, priority.New(), nil)
	t.Cleanup(f.server.Close)
	ts := httptest.NewServer(f.server)
	t.Cleanup(ts.Close)
	f.url, f.client = ts.URL, ts.Client()
	return f
}

func (f *fixture) post(t *testing.T, provider string, h http.Header, body io.Reader) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, f.url+"/webhooks/"+provider, body)
	require.NoError(t, err)
	if h != nil {
		req.Header = h
	}
	res, err := f.client.Do(req)
	require.NoError(t, err)
	defer func() { _ = res.Body.Close() }()
	raw, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	if strings.Contains(string(raw), "store_unavailable") {
		require.NotEmpty(t, res.Header.Get("Retry-After"))
	}
	return res.StatusCode, string(raw)
}

// accepting returns a provider that accepts all posts with a replay token.
func accepting(replay string) *fakeProvider {
	return &fakeProvider{
		verify: func(*models.Webhook) (models.Verified, error) { return models.Verified{Replay: replay}, nil },
	}
}

// TestStoredThenAnswered checks that a post is answered after its write, and that a
// message wakes the consumer of events.
func TestStoredThenAnswered(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Provider{"sg", accepting("once")})
	reached, release := make(chan struct{}), make(chan struct{})
	f.inbox.before = func() error { close(reached); <-release; return nil }
	answered := make(chan int, 1)
	body := "\x00 any {bytes \xff"
	go func() {
		status, _ := f.post(t, "sg", nil, strings.NewReader(body))
		answered <- status
	}()
	<-reached
	select {
	case status := <-answered:
		t.Fatalf("answered %d before it was stored", status)
	default:
	}
	close(release)
	require.Equal(t, http.StatusOK, <-answered)
	stored := f.inbox.stored(t)
	require.Len(t, stored, 1)
	require.Equal(
		t,
		models.Inbox{ID: stored[0].ID, Provider: "sg", Posts: []models.Post{{Body: []byte(body), Replay: "once"}}},
		stored[0],
	)
	require.WithinDuration(t, time.Now(), stored[0].Received(), time.Minute)
	require.Equal(t, []models.Message{{Kind: models.EventMessage, Provider: "sg", ID: stored[0].ID}}, f.announced(t, 1))
	accepted, refused := f.server.Counts()
	require.Equal(t, int64(1), accepted)
	require.Empty(t, refused)
}

// announced waits for n messages for the consumer of events.
func (f *fixture) announced(t *testing.T, n int) []models.Message {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var mu sync.Mutex
	var got []models.Message
	handle := func(_ context.Context, m models.Message) models.Disposition {
		mu.Lock()
		defer mu.Unlock()
		m.At = time.Time{}
		if got = append(got, m); len(got) == n {
			cancel()
		}
		return models.Done()
	}
	require.NoError(t, f.broker.Subscribe(ctx, models.Queue{Kind: models.EventMessage}, 1, handle))
	return got
}

// TestRefusedPosts checks the status and the code of posts that are refused.
func TestRefusedPosts(t *testing.T) {
	t.Parallel()
	f := newFixture(
		t,
		Provider{"off", refusing(503, "not_configured")},
		Provider{"never", refusing(406, "bad_signature")},
		Provider{"again", refusing(401, "bad_signature")},
		Provider{"old", refusing(403, "stale")},
		Provider{
			"odd",
			&fakeProvider{
				verify: func(*models.Webhook) (models.Verified, error) { return models.Verified{}, errors.New("secret words") },
			},
		},
		Provider{"bug", &fakeProvider{verify: func(*models.Webhook) (models.Verified, error) { panic("secret words") }}},
	)
	for provider, want := range map[string]struct {
		status int
		code   string
	}{
		"off":     {503, "not_configured"},
		"never":   {406, "bad_signature"},
		"again":   {401, "bad_signature"},
		"old":     {403, "stale"},
		"odd":     {503, "not_verified"},
		"bug":     {503, "internal"},
		"unknown": {429, "no_such_provider"},
		"%0a":     {429, "no_such_provider"},
	} {
		status, body := f.post(t, provider, nil, strings.NewReader("[]"))
		require.Equal(t, want.status, status, provider)
		require.JSONEq(t, `{"code": "`+want.code+`"}`, body, provider)
	}
	require.Empty(t, f.inbox.stored(t))
	accepted, refused := f.server.Counts()
	require.Zero(t, accepted)
	require.Equal(
		t,
		map[string]int64{
			"not_configured":   1,
			"bad_signature":    2,
			"stale":            1,
			"not_verified":     1,
			"internal":         1,
			"no_such_provider": 2,
		},
		refused,
	)

	res, err := f.client.Get(f.url + "/webhooks/off") //nolint:noctx // a test
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	require.Equal(t, http.StatusMethodNotAllowed, res.StatusCode)
}

// TestOnlyOneStatusRepeats: a provider that repeats posts only after one status gets that status for every refusal.
// After another one it would discard the events.
func TestOnlyOneStatusRepeats(t *testing.T) {
	t.Parallel()
	const again = http.StatusTooManyRequests
	only := func(p *fakeProvider) *fakeProvider { p.repeats = again; return p }
	early := accepting("")
	early.header = &models.WebhookError{Status: 401, Code: "bad_signature", Detail: "a reason"}
	f := newFixture(t,
		Provider{"good", only(accepting(""))},
		Provider{"off", only(refusing(503, "not_configured"))},
		Provider{"bad", only(refusing(401, "bad_signature"))},
		Provider{"early", only(early)},
		Provider{"odd", only(refusing(400, "malformed"))},
		Provider{"bug", only(&fakeProvider{
			verify: func(*models.Webhook) (models.Verified, error) { panic("secret words") },
		})},
	)
	for _, provider := range []string{"off", "bad", "early", "odd", "bug", "unknown"} {
		status, body := f.post(t, provider, nil, strings.NewReader("[]"))
		require.Equal(t, again, status, "%s: %s", provider, body)
	}
	large := unsized{bytes.NewReader(make([]byte, testLimit+1))}
	status, _ := f.post(t, "good", nil, large)
	require.Equal(t, again, status, "too large")
	f.inbox.before = func() error { return models.ErrUnavailable }
	status, body := f.post(t, "good", nil, strings.NewReader("[]"))
	require.Equal(t, again, status)
	require.JSONEq(t, `{"code": "store_unavailable"}`, body)
	f.inbox.before = nil
	status, _ = f.post(t, "good", nil, strings.NewReader("[]"))
	require.Equal(t, http.StatusOK, status)
}

// testLimit is the size of the largest post of a fakeProvider.
const testLimit = 4 << 20

// TestBodies checks that the largest post of a provider is accepted, that a larger or truncated
// body is not stored, and that the content type is ignored.
func TestBodies(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Provider{"sg", accepting("")})
	large := bytes.Repeat([]byte("0123456789abcde\n"), testLimit/16)
	status, _ := f.post(t, "sg", nil, bytes.NewReader(large))
	require.Equal(t, http.StatusOK, status)
	stored := f.inbox.stored(t)
	require.True(t, bytes.Equal(large, stored[0].Posts[0].Body), "stored byte for byte")

	status, _ = f.post(t, "sg", nil, unsized{bytes.NewReader(large)})
	require.Equal(t, http.StatusOK, status)

	status, body := f.post(t, "sg", nil, unsized{bytes.NewReader(make([]byte, testLimit+1))})
	require.Equal(t, http.StatusRequestEntityTooLarge, status)
	require.JSONEq(t, `{"code": "too_large"}`, body)

	for _, kind := range []string{"", "text/plain", "application/json; charset=\xff", "multipart/form-data"} {
		status, _ = f.post(t, "sg", http.Header{"Content-Type": {kind}}, strings.NewReader("{half a JS"))
		require.Equal(t, http.StatusOK, status, kind)
	}
	status, _ = f.post(t, "sg", nil, http.NoBody)
	require.Equal(t, http.StatusOK, status, "the adapter decides about an empty post")

	c, err := net.Dial("tcp", strings.TrimPrefix(f.url, "http://"))
	require.NoError(t, err)
	_, err = io.WriteString(c, "POST /webhooks/sg HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n[half")
	require.NoError(t, err)
	require.NoError(t, c.(*net.TCPConn).CloseWrite())
	answer, err := io.ReadAll(c)
	require.NoError(t, err)
	require.NoError(t, c.Close())
	require.Contains(t, string(answer), "400 Bad Request")
	require.Contains(t, string(answer), `"cut_off"`)

	require.Len(t, f.inbox.stored(t), 7)
	accepted, refused := f.server.Counts()
	require.Equal(t, int64(7), accepted)
	require.Equal(t, map[string]int64{"too_large": 1, "cut_off": 1}, refused)
}

// unsized hides the size of a body.
type unsized struct{ io.Reader }

// TestTrailingSlash checks that a webhook's URL may end with a slash. SendGrid follows no
// redirect.
func TestTrailingSlash(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Provider{"sg", accepting("")})
	f.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	status, _ := f.post(t, "sg/", nil, strings.NewReader("[]"))
	require.Equal(t, http.StatusOK, status)
	require.Len(t, f.inbox.stored(t), 1)
}

// TestUnansweredPostsShareABudget checks that unverified posts hold no more memory than the budgets. Large posts do not
// keep out small ones, and the provider repeats a post that is kept out.
func TestUnansweredPostsShareABudget(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Provider{"sg", accepting("")})
	var clients atomic.Int64 // each post is of an address of its own
	post := func(body io.Reader) *httptest.ResponseRecorder {
		rec := httptest.NewRecorder()
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/webhooks/sg", body)
		n := clients.Add(1)
		r.RemoteAddr = fmt.Sprintf("198.51.%d.%d:1", n/256, n%256)
		f.server.ServeHTTP(rec, r)
		return rec
	}
	var all sync.WaitGroup
	end := make(chan struct{})
	hold := func(n int, begin []byte) {
		var arrived sync.WaitGroup
		for range n {
			arrived.Add(1)
			all.Go(func() {
				rec := post(io.MultiReader(bytes.NewReader(begin), readerFunc(func([]byte) (int, error) {
					arrived.Done()
					<-end
					return 0, io.EOF
				})))
				assert.Equal(t, http.StatusOK, rec.Code)
			})
		}
		arrived.Wait()
	}
	large := bytes.Repeat([]byte("x"), testLimit-1)
	refused := func(body io.Reader) {
		t.Helper()
		rec := post(body)
		require.Equal(t, http.StatusServiceUnavailable, rec.Code)
		require.JSONEq(t, `{"code": "busy"}`, rec.Body.String())
		require.NotEmpty(t, rec.Header().Get("Retry-After"))
	}
	hold(otherBudget/(testLimit-firstBytes), large)
	refused(bytes.NewReader(large))
	require.False(t, f.server.providers["sg"].lost.begin().IsZero(), "its events will be looked up")
	require.Equal(t, http.StatusOK, post(strings.NewReader("[]")).Code)
	hold(firstBudget/firstBytes-otherBudget/(testLimit-firstBytes), []byte("["+strings.Repeat(" ", firstBytes-2)))
	refused(strings.NewReader(strings.Repeat(" ", firstBytes)))
	close(end)
	all.Wait()
	require.Equal(t, http.StatusOK, post(bytes.NewReader(large)).Code)
	require.True(t, f.server.budget.first.TryAcquire(firstBudget), "answered posts hold nothing")
	require.True(t, f.server.budget.other.TryAcquire(otherBudget), "answered posts hold nothing")
}

// readerFunc is an io.Reader.
type readerFunc func(p []byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// TestSlowPost checks that a post that does not arrive in time is refused, even if another
// handler extends the deadline of its body.
func TestSlowPost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := New(testDoor, nullInbox{}, &hangingBroker{}, []Provider{{"sg", accepting("")}}, priority.New(), nil)
		defer s.Close()
		rec := httptest.NewRecorder()
		began := time.Now()
		drip := readerFunc(func(p []byte) (int, error) { time.Sleep(time.Second); p[0] = 'x'; return 1, nil })
		s.ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/webhooks/sg", drip))
		require.Equal(t, http.StatusBadRequest, rec.Code)
		require.LessOrEqual(t, time.Since(began), readTime+time.Second)
	})
}

// TestPostBegins: a post that does not begin within five seconds is refused, and one that has begun may take longer.
func TestPostBegins(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := New(testDoor, nullInbox{}, &hangingBroker{}, []Provider{{"sg", accepting("")}}, priority.New(), nil)
		defer s.Close()
		network := testkit.NewNetwork(t)
		l := network.Listen()
		server := &http.Server{Handler: s, ReadHeaderTimeout: time.Minute}
		defer func() { _ = server.Close() }()
		go server.Serve(l) //nolint:errcheck // it ends with the test
		post := func(body func(c io.Writer)) (status int, took time.Duration) {
			c, err := network.Dial(t.Context(), "tcp", l.Addr().String())
			require.NoError(t, err)
			defer func() { _ = c.Close() }()
			began := time.Now()
			go func() {
				fmt.Fprint(c, "POST /webhooks/sg HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n")
				body(c)
			}()
			resp, err := http.ReadResponse(bufio.NewReader(c), nil)
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			return resp.StatusCode, time.Since(began)
		}
		status, took := post(func(io.Writer) {})
		require.Equal(t, http.StatusBadRequest, status)
		require.Equal(t, 5*time.Second, took)
		status, took = post(func(c io.Writer) {
			for _, part := range []string{"[", " ", "]"} {
				time.Sleep(4 * time.Second)
				_, _ = io.WriteString(c, part)
			}
		})
		require.Equal(t, http.StatusOK, status)
		require.Equal(t, 12*time.Second, took)
		status, took = post(func(c io.Writer) { _, _ = io.WriteString(c, "[") })
		require.Equal(t, http.StatusBadRequest, status)
		require.Equal(t, readTime, took)
	})
}

// TestOneClientHoldsAQuarter: posts that one client does not end keep out no other client. A client may have all
// addresses of a network.
func TestOneClientHoldsAQuarter(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Provider{"sg", accepting("")})
	post := func(from string, body io.Reader) int {
		rec := httptest.NewRecorder()
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/webhooks/sg", body)
		r.RemoteAddr = from + ":1"
		f.server.ServeHTTP(rec, r)
		return rec.Code
	}
	var all sync.WaitGroup
	end := make(chan struct{})
	var arrived sync.WaitGroup
	for i := range addressPosts {
		arrived.Add(1)
		all.Go(func() {
			post(fmt.Sprintf("[2001:db8::%x]", i), io.MultiReader(strings.NewReader("["), readerFunc(func([]byte) (int, error) {
				arrived.Done()
				<-end
				return 0, io.EOF
			})))
		})
	}
	arrived.Wait()
	require.Equal(t, http.StatusServiceUnavailable, post("[2001:db8::ffff]", strings.NewReader("[]")))
	require.Equal(t, http.StatusOK, post("192.0.2.2", strings.NewReader("[]")))
	close(end)
	all.Wait()
	require.Equal(t, http.StatusOK, post("[2001:db8::ffff]", strings.NewReader("[]")))
	require.Zero(t, f.server.budget.bytes.Clients()+f.server.budget.posts.Clients(), "answered posts hold nothing")
}
