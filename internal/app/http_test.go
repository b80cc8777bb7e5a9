package app

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/config"
	"github.com/safedelivr/safedelivr/internal/testkit"
	"github.com/safedelivr/safedelivr/lab/simulated"
	"github.com/safedelivr/safedelivr/models"
)

// serveHandler serves a handler with limited bodies on a loopback address.
func serveHandler(t *testing.T, l net.Listener, h http.HandlerFunc) {
	t.Helper()
	server := &http.Server{Handler: limitBodies(h), ConnContext: placed, ReadHeaderTimeout: time.Minute}
	t.Cleanup(func() { _ = server.Close() })
	go server.Serve(l) //nolint:errcheck // it ends with the test
}

func listenLocal(t *testing.T) net.Listener {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func dial(t *testing.T, l net.Listener) net.Conn {
	t.Helper()
	c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", l.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// A request that is answered before its body was read does not hold the connection: the client gets the answer, and
// the connection closes although the body never comes.
func TestUnreadBodyClosesConnection(t *testing.T) {
	t.Parallel()
	l := listenLocal(t)
	serveHandler(t, l, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) })
	c := dial(t, l)
	fmt.Fprint(c, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\nabc")
	in := bufio.NewReader(c)
	resp, err := http.ReadResponse(in, nil)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, http.StatusUnauthorized, resp.StatusCode)
	_, err = in.ReadByte()
	require.ErrorIs(t, err, io.EOF)
}

// A refusal does not wait for a body that never comes, also if it is longer than the buffer of an answer.
func TestRefusalDoesNotWaitForBody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, served := net.Pipe()
		defer func() { _ = c.Close() }()
		l := pipeListener{make(chan net.Conn, 1), make(chan struct{})}
		l.conn <- served
		page := strings.Repeat("x", 100_000)
		serveHandler(t, l, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = io.WriteString(w, page)
		})
		began := time.Now()
		fmt.Fprint(c, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\nabc")
		in := bufio.NewReader(c)
		resp, err := http.ReadResponse(in, nil)
		require.NoError(t, err)
		text, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.Len(t, text, len(page))
		require.Zero(t, time.Since(began))
		require.True(t, resp.Close)
		_, err = in.ReadByte()
		require.ErrorIs(t, err, io.EOF)
		require.LessOrEqual(t, time.Since(began), lingerPause+time.Second)
	})
}

// A client that sends all of its body before it reads gets the answer of a request that was refused at its beginning.
func TestRefusedBodyIsAnswered(t *testing.T) {
	t.Parallel()
	l := listenLocal(t)
	serveHandler(t, l, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) })
	c := dial(t, l)
	body := strings.Repeat("x", 8<<20)
	_, err := fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	require.NoError(t, err)
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, http.StatusUnauthorized, resp.StatusCode)
}

// So does a provider whose post was refused at its beginning, although webhooks bound the bodies of posts themselves.
func TestRefusedPostIsAnswered(t *testing.T) {
	t.Parallel()
	a := serveApp(t, slog.New(slog.DiscardHandler), simulated.Usual.Settings("http://127.0.0.1:8025")...)
	body := strings.Repeat("x", 8<<20)
	for path, status := range map[string]int{
		"/webhooks/sg":   http.StatusUnauthorized,
		"/webhooks/mg":   http.StatusRequestEntityTooLarge,
		"/webhooks/none": http.StatusTooManyRequests,
	} {
		c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", a.Addr())
		require.NoError(t, err)
		_, err = fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s", path, len(body), body)
		require.NoError(t, err, path)
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		require.NoError(t, err, path)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, status, resp.StatusCode, path)
		require.NoError(t, c.Close())
	}
}

// A client that closes its side of the connection after the request gets the answer.
func TestHalfClosedClientIsAnswered(t *testing.T) {
	t.Parallel()
	for _, request := range []string{
		"GET / HTTP/1.1\r\nHost: a\r\n\r\n", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc",
	} {
		l := limitConnections(listenLocal(t), 100, 10, nil, func() {})
		reads := make(chan struct{})
		serveHandler(t, l, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			<-reads
			select {
			case <-r.Context().Done():
				w.WriteHeader(http.StatusInternalServerError)
			case <-time.After(100 * time.Millisecond):
			}
		})
		c := dial(t, l)
		fmt.Fprint(c, request)
		half, ok := c.(*net.TCPConn)
		require.True(t, ok)
		require.NoError(t, half.CloseWrite())
		close(reads)
		in := bufio.NewReader(c)
		resp, err := http.ReadResponse(in, nil)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, http.StatusOK, resp.StatusCode)
		_, err = in.ReadByte()
		require.ErrorIs(t, err, io.EOF, "the connection ends")
	}
}

// The deadline of a body moves as far as the bytes that arrived deserve.
func TestBodyDeadlineMoves(t *testing.T) {
	t.Parallel()
	l := listenLocal(t)
	deadlines := make(chan time.Duration, 2)
	serveHandler(t, l, func(_ http.ResponseWriter, r *http.Request) {
		b, ok := r.Body.(*timedBody)
		if !ok {
			deadlines <- 0
			return
		}
		begun := b.deadline
		_, err := io.ReadFull(b, make([]byte, 10*bodyRate))
		if err == nil {
			deadlines <- b.deadline.Sub(begun)
		}
		_, _ = io.Copy(io.Discard, b)
		if b.ended {
			deadlines <- -1
		}
	})
	c := dial(t, l)
	body := strings.Repeat("x", 20*bodyRate)
	fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	require.InDelta(t, 10*time.Second, <-deadlines, float64(2*time.Second))
	require.EqualValues(t, -1, <-deadlines)
}

// pipeListener has one connection, and then none until it is closed.
type pipeListener struct {
	conn   chan net.Conn
	closed chan struct{}
}

// Accept implements net.Listener.
func (l pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conn:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l pipeListener) Close() error {
	close(l.closed)
	return nil
}

// Addr implements net.Listener.
func (pipeListener) Addr() net.Addr { return &net.TCPAddr{} }

// A handler that runs on after it has read its body is not cut off by the body's deadline.
func TestDeadlineEndsWithBody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, served := net.Pipe()
		defer func() { _ = c.Close() }()
		l := pipeListener{make(chan net.Conn, 1), make(chan struct{})}
		l.conn <- served
		serveHandler(t, l, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			select {
			case <-r.Context().Done():
				w.WriteHeader(http.StatusInternalServerError)
			case <-time.After(4 * bodyGrace):
			}
		})
		fmt.Fprint(c, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc")
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, http.StatusOK, resp.StatusCode)
	})
}

// A connection of another protocol than HTTP ends when its client ends it.
func TestOtherConnectionsEndAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		network := testkit.NewNetwork(t)
		l := &addressLimiter{Listener: network.Listen(), most: 1, counts: new(addressCounts)}
		go func() {
			c, err := network.Dial(t.Context(), "tcp", l.Addr().String())
			if err == nil {
				_ = c.Close()
			}
		}()
		c, err := l.Accept()
		require.NoError(t, err)
		began := time.Now()
		_, err = c.Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF)
		require.Equal(t, began, time.Now())
		require.NoError(t, c.Close())
	})
}

// One address cannot take all connections, and gets new ones when it closes some.
func TestConnectionsOfOneAddress(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		network := testkit.NewNetwork(t)
		l := limitConnections(network.Listen(), 100, 2, nil, func() {})
		serveHandler(t, l, func(http.ResponseWriter, *http.Request) {})
		connect := func() net.Conn {
			c, err := network.Dial(t.Context(), "tcp", l.Addr().String())
			require.NoError(t, err)
			return c
		}
		ask := func(c net.Conn) error {
			fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
			resp, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err == nil {
				err = resp.Body.Close()
			}
			return err
		}
		a, b := connect(), connect()
		require.NoError(t, ask(a))
		require.NoError(t, ask(b))
		require.Error(t, ask(connect()))
		require.NoError(t, ask(a), "open ones stay open")
		require.NoError(t, b.Close())
		synctest.Wait()
		require.NoError(t, ask(connect()))
	})
}

// The limits of the configuration hold in a process that serves.
func TestServedLimits(t *testing.T) {
	t.Parallel()
	a := serveApp(t, slog.New(slog.DiscardHandler), append(simulated.Usual.Settings("http://127.0.0.1:8025"),
		"SAFEDELIVR_QUOTAS_BATCHES_PER_DAY=7", "SAFEDELIVR_LIMITS_ADDRESS_CONNECTIONS=2")...)
	key := newKey(t, a, models.KeyOptions{})
	ask := func(c net.Conn, request, more string) (*http.Response, error) {
		fmt.Fprintf(c, "%s HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer %s\r\n%s\r\n", request, key, more)
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err == nil {
			err = resp.Body.Close()
		}
		return resp, err
	}
	one, two := dial(t, a.listener), dial(t, a.listener)
	resp, err := ask(two, "GET /v1/usage", "")
	require.NoError(t, err)
	require.Contains(t, resp.Header.Get("RateLimit-Policy"), `"batches_per_day";q=7;`)
	_, err = ask(dial(t, a.listener), "GET /healthz", "")
	require.Error(t, err, "a third connection")
	resp, err = ask(one, "POST /v1/batches", "Content-Type: none\r\nContent-Length: 1000000\r\n")
	require.NoError(t, err)
	require.Equal(t, http.StatusUnsupportedMediaType, resp.StatusCode)
	require.True(t, resp.Close, "a body that is not read ends the connection")
}

// All connections together are bounded: one beyond the total waits until another one closes.
func TestConnectionsInAll(t *testing.T) {
	t.Parallel()
	l := limitConnections(listenLocal(t), 2, 100, nil, func() {})
	serveHandler(t, l, func(http.ResponseWriter, *http.Request) {})
	answered := func(c net.Conn) error {
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err == nil {
			err = resp.Body.Close()
		}
		return err
	}
	var open []net.Conn
	for range 3 {
		c := dial(t, l)
		fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
		if open = append(open, c); len(open) < 3 {
			require.NoError(t, answered(c))
		}
	}
	require.NoError(t, open[2].SetReadDeadline(time.Now().Add(100*time.Millisecond)))
	require.ErrorIs(t, answered(open[2]), os.ErrDeadlineExceeded)
	require.NoError(t, open[2].SetReadDeadline(time.Now().Add(testkit.Patience)))
	require.NoError(t, open[0].Close())
	require.NoError(t, answered(open[2]))
}

// The metrics are served at their own address only, and profiles only if that is configured.
func TestMetricsHaveTheirOwnAddress(t *testing.T) {
	t.Parallel()
	for _, pprof := range []string{"", "true"} { // off by default
		cfg, err := config.Load("", []string{
			"SAFEDELIVR_DATA_DIR=" + t.TempDir(),
			"SAFEDELIVR_LISTEN=127.0.0.1:0",
			"SAFEDELIVR_METRICS_LISTEN=127.0.0.1:0",
			"SAFEDELIVR_METRICS_PPROF=" + pprof,
			"SAFEDELIVR_PROVIDERS_SG_KIND=sendgrid",
			"SAFEDELIVR_PROVIDERS_SG_API_KEY=SG.x",
			"SAFEDELIVR_PROVIDERS_SG_EVENTS=none",
		})
		require.NoError(t, err)
		a, err := New(t.Context(), &cfg, slog.New(slog.DiscardHandler))
		require.NoError(t, err)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- a.Serve(ctx) }()
		status := func(addr, path string) int {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+addr+path, nil)
			require.NoError(t, err)
			resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(r)
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			return resp.StatusCode
		}
		own := a.metricsListener.Addr().String()
		require.Equal(t, http.StatusOK, status(own, "/metrics"))
		require.NotEqual(t, http.StatusOK, status(a.Addr(), "/metrics"))
		require.Equal(t, pprof == "true", status(own, "/debug/pprof/cmdline") == http.StatusOK)
		stop()
		require.NoError(t, <-done)
	}
}

// The keys of the simulated providers are known to everyone. Without the address of a simulator they are refused.
func TestSimulatedKeysNeedSimulator(t *testing.T) {
	t.Parallel()
	settings := simulated.Usual.Settings("http://127.0.0.1:8025")
	_, err := config.Load("", settings)
	require.NoError(t, err)
	settings = slices.DeleteFunc(settings, func(s string) bool { return strings.Contains(s, "_BASE_URL=") })
	_, err = config.Load("", settings)
	for _, field := range []string{"SG_API_KEY", "SG_WEBHOOK_KEY", "MG_API_KEY", "MG_WEBHOOK_KEY"} {
		require.ErrorContains(t, err, "SAFEDELIVR_PROVIDERS_"+field+": is the published key")
	}
}

// The memory limit stays below that of the container.
func TestMemoryLimitOfContainer(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "memory.max")
	require.EqualValues(t, 100, within(100, file), "no container")
	for content, want := range map[string]int64{"max\n": 100, "50\n": 45, "1000\n": 100, "": 100} {
		require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
		require.Equal(t, want, within(100, file), content)
	}
}

// Without GOMEMLIMIT the goal is what requests and calls need. It is of the process, so nothing runs beside the test.
func TestLimitMemory(t *testing.T) { //nolint:paralleltest // see above
	before := debug.SetMemoryLimit(-1)
	defer debug.SetMemoryLimit(before)
	cfg, err := config.Load("", simulated.Usual.Settings("http://127.0.0.1:8025", "CONCURRENCY=3"))
	require.NoError(t, err)
	t.Setenv("GOMEMLIMIT", "1GiB")
	LimitMemory(&cfg)
	require.Equal(t, before, debug.SetMemoryLimit(-1), "GOMEMLIMIT takes precedence")
	t.Setenv("GOMEMLIMIT", "")
	LimitMemory(&cfg)
	require.Equal(t, within(memoryBase+6*memoryPerCall, containerLimit), debug.SetMemoryLimit(-1), "two providers")
}

// A stop that gives calls less time than they may take is a warning at start.
func TestShortStopGraceIsAWarning(t *testing.T) {
	t.Parallel()
	for grace, warned := range map[string]bool{"35s": false, "14s": true} {
		cfg, err := config.Load("", append(simulated.Usual.Settings("http://127.0.0.1:8025", "TIMEOUT=15s"),
			"SAFEDELIVR_TIMES_STOP_GRACE="+grace))
		require.NoError(t, err)
		var out strings.Builder
		a := &App{cfg: &cfg, log: slog.New(slog.NewTextHandler(&out, nil))}
		require.NoError(t, a.openProviders(t.Context()))
		CloseProviders(a.providers)
		require.Equal(t, warned, strings.Contains(out.String(), "stop_grace is shorter"), out.String())
	}
}
