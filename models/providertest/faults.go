package providertest

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// bulky returns a call that is larger than all socket buffers (Linux: at most 4 + 6 MB).
func bulky(s Suite) *models.Call {
	const least = 16 << 20
	size := min(least, s.ManyContent)
	c := call((least + size - 1) / size)
	c.Content.Text, c.Content.HTML = "", strings.Repeat("0123456789abcdef", size/16)
	return c
}

// soon is how long a call may continue after its context ended, on a busy machine: 16 MB are composed to their end. One
// that does not end with its context waits for ever.
const soon = time.Minute

// timed sends with a context that ends after d and checks that the call does too.
func timed(t *testing.T, p models.Adapter, c *models.Call, d time.Duration) []models.Part {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	began := time.Now()
	parts := p.Send(ctx, c)
	if took := time.Since(began); took > d+soon {
		t.Errorf("the call went on for %v after its context ended", took-d)
	}
	return parts
}

// testStartByPassed makes calls whose start-by passes before their requests are ready: at once, and while a large one
// is composed. Nothing of them may leave, and the result must say so, and nothing about the provider. A call in time
// leaves.
func testStartByPassed(t *testing.T, s Suite) {
	arrived := make(chan bool, 3) // of each connection: whether it brought a request
	p := adapter(t, s, raw(t, func(c *net.TCPConn) { arrived <- readRequest(c) }))
	for _, late := range []struct {
		c    *models.Call
		left time.Duration
	}{
		{call(3), -time.Millisecond},
		{bulky(s), time.Millisecond}, // composing 16 MB takes longer
	} {
		late.c.StartBy = time.Now().Add(late.left)
		parts := timed(t, p, late.c, 10*time.Second)
		only(t, late.c, parts, models.Unavailable)
		if parts[0].Reason != models.NotComposed || parts[0].ProviderFailed() {
			t.Errorf("want %s, got %s", models.NotComposed, show(parts))
		}
	}
	c := call(3)
	c.StartBy = time.Now().Add(time.Hour)
	only(t, c, timed(t, p, c, 10*time.Second), models.Unknown)
	if !<-arrived {
		t.Error("a call was connected although its request was not ready")
	}
}

// testUnavailable makes requests that cannot arrive completely.
func testUnavailable(t *testing.T, s Suite) {
	plain := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(plain.Close)
	secure := httptest.NewUnstartedServer(http.NotFoundHandler())
	secure.Config.ErrorLog = nil
	secure.StartTLS()
	t.Cleanup(secure.Close)
	for _, test := range []struct {
		name, url string
		c         *models.Call
		within    time.Duration
	}{
		{"refused", "http://127.0.0.1:1", call(3), 10 * time.Second},
		{"DNS", "http://no-such-host.invalid", call(3), 5 * time.Second},
		{"no TLS there", strings.Replace(plain.URL, "http:", "https:", 1), call(3), 10 * time.Second},
		{"unknown certificate", secure.URL, call(3), 10 * time.Second},
		{"reset at once, half written", raw(t, func(c *net.TCPConn) { reset(c) }), bulky(s), 10 * time.Second},
		{"reset after the header", raw(t, func(c *net.TCPConn) {
			_, _ = c.Read(make([]byte, 512))
			reset(c)
		}), bulky(s), 10 * time.Second},
		{"time-out, half written", raw(t, func(c *net.TCPConn) {
			buf := make([]byte, 4096)
			for range 8 {
				_, _ = c.Read(buf)
			}
			<-t.Context().Done() // never reads on
		}), bulky(s), 300 * time.Millisecond},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := adapter(t, s, test.url)
			ended, cancel := context.WithCancel(t.Context())
			cancel()
			only(t, test.c, p.Send(ended, test.c), models.Unavailable)
			parts := timed(t, p, test.c, test.within)
			only(t, test.c, parts, models.Unavailable)
			if parts[0].Text == "" {
				t.Error("it comes without words")
			}
			if strings.Contains(parts[0].Text, "http://") {
				t.Errorf("the text %q holds a URL", parts[0].Text)
			}
		})
	}
}

// testUnknown makes requests that arrive and whose answers do not.
func testUnknown(t *testing.T, s Suite) {
	for _, test := range []struct {
		name   string
		after  func(*net.TCPConn)
		within time.Duration
	}{
		{"hang", func(c *net.TCPConn) { untilClosed(c) }, 300 * time.Millisecond},
		{"close", func(*net.TCPConn) {}, 10 * time.Second},
		{"reset", reset, 10 * time.Second},
		{"half a status line", func(c *net.TCPConn) { fmt.Fprint(c, "HTTP/1.1 20") }, 10 * time.Second},
		{"half a header", func(c *net.TCPConn) {
			fmt.Fprint(c, "HTTP/1.1 202 Accepted\r\nX-Message-Id: ")
		}, 10 * time.Second},
		{"no HTTP", func(c *net.TCPConn) { fmt.Fprint(c, "220 mail.test ESMTP\r\n\r\n") }, 10 * time.Second},
		{"endless header", func(c *net.TCPConn) {
			fmt.Fprint(c, "HTTP/1.1 200 OK\r\n")
			for range 1 << 12 {
				if _, err := fmt.Fprint(c, "X-Filler: ", strings.Repeat("x", 1000), "\r\n"); err != nil {
					return
				}
			}
		}, 10 * time.Second},
	} {
		t.Run(test.name, func(t *testing.T) {
			var requests atomic.Int32
			p := adapter(t, s, raw(t, func(c *net.TCPConn) {
				if readRequest(c) {
					requests.Add(1)
					test.after(c)
				}
			}))
			c := call(3)
			only(t, c, timed(t, p, c, test.within), models.Unknown)
			if n := requests.Load(); n != 1 {
				t.Errorf("%d requests for one call", n)
			}
		})
	}
}

// accepted returns the acceptance of two mails: the status line with the header, and the body.
func accepted(s Suite) (status, body string) {
	ok := httptest.NewRecorder()
	s.Accept(ok, 2)
	status = fmt.Sprintf("HTTP/1.1 %d OK\r\n", ok.Code)
	for k := range ok.Header() {
		status += k + ": " + ok.Header().Get(k) + "\r\n"
	}
	return status, ok.Body.String()
}

// testTruncated truncates an acceptance and refusals.
func testTruncated(t *testing.T, s Suite) {
	status, body := accepted(s)
	for cut := range len(body) + 1 {
		answer := fmt.Sprintf("%sContent-Length: %d\r\n\r\n%s", status, len(body)+10, body[:cut])
		p := adapter(t, s, raw(t, func(c *net.TCPConn) {
			if readRequest(c) {
				fmt.Fprint(c, answer)
			}
		}))
		c, want := call(2), models.Accepted
		if s.PerMail && cut < len(body) {
			want = models.Unknown
		}
		only(t, c, p.Send(t.Context(), c), want)
	}
	for _, test := range []struct {
		status int
		want   models.Class
	}{{503, models.Unavailable}, {500, models.Unknown}, {429, models.Throttled}, {401, models.AccountClass}} {
		p := adapter(t, s, raw(t, func(c *net.TCPConn) {
			if readRequest(c) {
				fmt.Fprintf(c, "HTTP/1.1 %d X\r\nContent-Length: 500\r\n\r\n{\"mess", test.status)
			}
		}))
		c := call(2)
		only(t, c, p.Send(t.Context(), c), test.want)
	}
}

// testNeverRepeats closes kept connections when requests arrive. HTTP clients tend to send
// such requests again.
func testNeverRepeats(t *testing.T, s Suite) {
	status, body := accepted(s)
	good := fmt.Sprintf("%sContent-Length: %d\r\n\r\n%s", status, len(body), body)
	for _, how := range []struct {
		name   string
		second func(c *net.TCPConn, read func() bool)
		class  []models.Class
	}{
		{"close after the second request", func(_ *net.TCPConn, read func() bool) { read() }, []models.Class{models.Unknown}},
		{"reset after the second request", func(c *net.TCPConn, read func() bool) {
			read()
			reset(c)
		}, []models.Class{models.Unknown}},
		{"close while idle", func(*net.TCPConn, func() bool) {}, []models.Class{models.Unknown, models.Unavailable}},
		{"reset while idle", func(c *net.TCPConn, _ func() bool) {
			reset(c)
		}, []models.Class{models.Unknown, models.Unavailable}},
	} {
		t.Run(how.name, func(t *testing.T) {
			var requests, answered atomic.Int32
			p := adapter(t, s, raw(t, func(c *net.TCPConn) {
				in := bufio.NewReader(c)
				read := func() bool {
					r, err := http.ReadRequest(in)
					if err != nil {
						return false
					}
					requests.Add(1)
					_, err = io.Copy(io.Discard, r.Body)
					return err == nil
				}
				if read() {
					answered.Add(1)
					fmt.Fprint(c, good)
					how.second(c, read)
				}
			}))
			const calls = 40
			var taken int32
			for k := range int32(calls) {
				c := chunk(int(k), 2)
				parts := p.Send(t.Context(), c)
				// A call that finds the connection closed may open another one.
				only(t, c, parts, append(how.class, models.Accepted)...)
				if parts[0].Class == models.Accepted {
					taken++
				}
			}
			if n := requests.Load(); n > calls {
				t.Errorf("%d requests for %d calls", n, calls)
			}
			if n := answered.Load(); n != taken {
				t.Errorf("%d calls were answered, %d accepted", n, taken)
			}
		})
	}
}
