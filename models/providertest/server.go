package providertest

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/safedelivr/safedelivr/models"
)

// A recorder is a provider that accepts everything.
type recorder struct {
	t      testing.TB
	s      Suite
	url    string
	mu     sync.Mutex
	calls  int
	copies []Copy
	keys   []string // of idempotency
}

// serve starts a provider that accepts everything, and returns an adapter for it.
func serve(t testing.TB, s Suite) (models.Adapter, *recorder) {
	t.Helper()
	rec := &recorder{t: t, s: s}
	server := httptest.NewServer(rec)
	t.Cleanup(server.Close)
	rec.url = server.URL
	return adapter(t, s, server.URL), rec
}

func adapter(t testing.TB, s Suite, url string) models.Adapter {
	t.Helper()
	p := s.New(t, url)
	t.Cleanup(p.Close)
	return p
}

func (rec *recorder) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		rec.t.Errorf("reading a request: %v", err)
		return
	}
	copies, err := rec.s.Read(r, body)
	if err != nil {
		rec.t.Errorf("the provider would refuse the request: %v", err)
	}
	rec.mu.Lock()
	rec.calls++
	rec.copies = append(rec.copies, copies...)
	key := r.Header.Get("Idempotency-Key")
	if rec.s.Idempotency != nil && key == "" {
		key = rec.s.Idempotency(body)
	}
	rec.keys = append(rec.keys, key)
	rec.mu.Unlock()
	mails := map[string]bool{}
	for i := range copies {
		mails[copies[i].Log] = true
	}
	n := len(mails)
	if rec.s.Recipients {
		n = len(copies)
	}
	rec.s.Accept(w, n)
}

// answering starts a provider that always gives the same answer.
func answering(t testing.TB, s Suite, answer http.HandlerFunc) models.Adapter {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		answer(w, r)
	}))
	t.Cleanup(server.Close)
	return adapter(t, s, server.URL)
}

// raw starts a TCP server and returns its base URL. It calls handle for every connection
// and closes the connection when handle returns.
func raw(t testing.TB, handle func(*net.TCPConn)) string {
	t.Helper()
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.AcceptTCP()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				handle(c)
			})
		}
	})
	t.Cleanup(func() { l.Close(); wg.Wait() })
	return "http://" + l.Addr().String()
}

// readRequest reads a whole request and reports whether it succeeded.
func readRequest(c net.Conn) bool {
	r, err := http.ReadRequest(bufio.NewReader(c))
	if err != nil {
		return false
	}
	_, err = io.Copy(io.Discard, r.Body)
	return err == nil
}

// untilClosed waits until the peer closes c.
func untilClosed(c net.Conn) { _, _ = io.Copy(io.Discard, c) }

// reset makes closing c an abort (RST).
func reset(c *net.TCPConn) { _ = c.SetLinger(0) }
