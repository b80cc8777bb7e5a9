package endpoints

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/endpoint"
)

// listen returns the URL of a receiver that reads a request and answers with what answer and then write.
func listen(f *fixture, answer, then func(c net.Conn)) string {
	l := f.net.Listen()
	var open sync.WaitGroup
	f.t.Cleanup(func() {
		_ = l.Close()
		open.Wait()
	})
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			open.Go(func() {
				defer func() { _ = c.Close() }()
				if req, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
					_, _ = io.Copy(io.Discard, req.Body) // what it is does not matter
					if answer(c); then != nil {
						then(c)
					}
				}
			})
		}
	}()
	return "http://" + l.Addr().String()
}

// forever returns an answer that repeats a text until the other side has had enough.
func forever(text string, pause time.Duration) func(c net.Conn) {
	return func(c net.Conn) {
		for {
			if _, err := io.WriteString(c, text); err != nil {
				return
			}
			time.Sleep(pause)
		}
	}
}

// hang reads until the other side has had enough.
func hang(c net.Conn) { _, _ = io.Copy(io.Discard, c) }

// TestReceiversThatLie: the header of the answer decides. A post with a status from 200 to 299 is accepted, also if the
// body is bad. One without a whole header in time is not. No answer is read for longer than that, or in full if it is
// large.
func TestReceiversThatLie(t *testing.T) {
	t.Parallel()
	const ok = "HTTP/1.1 200 OK\r\n"
	say := func(text string) func(c net.Conn) { return func(c net.Conn) { _, _ = io.WriteString(c, text) } }
	for name, c := range map[string]struct {
		want         Class
		answer, then func(c net.Conn)
	}{
		"closes after the status":    {Accepted, say(ok + "\r\n"), nil},
		"body is shorter than said":  {Accepted, say(ok + "Content-Length: 100\r\n\r\nshort"), nil},
		"body is longer than said":   {Accepted, say(ok + "Content-Length: 2\r\n\r\n" + ok), nil},
		"body is no chunk":           {Accepted, say(ok + "Transfer-Encoding: chunked\r\n\r\nxyz"), nil},
		"body never ends":            {Accepted, say(ok + "\r\n"), forever(strings.Repeat("x", 1000), 0)},
		"body never comes":           {Accepted, say(ok + "Content-Length: 9\r\n\r\n"), hang},
		"two lengths":                {NoAnswer, say(ok + "Content-Length: 1\r\nContent-Length: 2\r\n\r\nxy"), nil},
		"is no HTTP":                 {NoAnswer, say("220 mail.example.com ESMTP\r\n"), nil},
		"never answers":              {NoAnswer, hang, nil},
		"header comes byte by byte":  {NoAnswer, say(ok), forever("X", time.Millisecond)},
		"header never ends":          {NoAnswer, say(ok), forever("X-A: b\r\n", 0)},
		"is always about to answer":  {NoAnswer, forever("HTTP/1.1 102 Processing\r\n\r\n", 0), nil},
		"closes in the middle of it": {NoAnswer, say(ok + "Content-"), nil},
		"comes back in a century": {
			ServerError, say("HTTP/1.1 503 Busy\r\nRetry-After: Fri, 31 Dec 9999 23:59:59 GMT\r\n\r\n"), nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t)
				if f.timeout = 15 * time.Second; c.want == NoAnswer {
					f.timeout = time.Second / 2
				}
				e := f.endpoint(&receiver{url: listen(f, c.answer, c.then)}, nil)
				f.publish(f.batch(1, nil), 1, models.Success, 1)
				f.run("w", time.Hour)
				f.eventually(func() bool { return len(f.state(e).Attempts) == 1 })
				s := f.state(e)
				require.EqualValues(t, 1, f.count(c.want), "%+v", s.Attempts[0])
				if c.want == Accepted {
					require.Empty(t, s.Retries)
					return
				}
				require.Len(t, s.Retries, 1)
				wait := s.Retries[0].At.Sub(s.Attempts[0].At)
				require.GreaterOrEqual(t, wait, time.Hour)
				require.Less(t, wait, 27*time.Hour)
			})
		})
	}
}

// TestHangingEndpointDelaysNoOther: while posts to an endpoint hang, another one of the same user gets all of its
// updates, as they come.
func TestHangingEndpointDelaysNoOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		came, release := make(chan struct{}, 100), make(chan struct{})
		slow := newReceiver(f, func(http.ResponseWriter, int) {
			came <- struct{}{}
			<-release
		})
		free := sync.OnceFunc(func() { close(release) })
		t.Cleanup(free) // before the receiver is closed, which waits for its posts
		up := newReceiver(f, nil)
		e := f.endpoint(slow, nil)
		f.endpoint(up, nil)
		b := f.batch(50, nil)
		f.publish(b, 1, models.Success, slices.Collect(models.SetOf(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12).All())...)
		f.run("w")
		for range endpoint.DefaultAtOnce {
			<-came
		}
		for i := 13; i <= 50; i++ {
			f.publish(b, 1, models.Success, i)
		}
		f.eventually(func() bool { return len(up.accepted()) == 50 })
		require.Empty(t, f.state(e).Attempts)
		free()
		f.eventually(func() bool { return len(slow.accepted()) == 50 })
	})
}
