package transport

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"time"
)

// TestKeyIsNoLeaveToRepeat: net/http repeats a request by itself if it has an idempotency key and its body can be read
// again. Ours are sent at most once, wherever the connection closes: before, while and after the body is read.
func TestKeyIsNoLeaveToRepeat(t *testing.T) {
	body := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	for name, read := range map[string]func(in *bufio.Reader){
		"before": func(*bufio.Reader) {},
		"while":  func(in *bufio.Reader) { _, _ = io.CopyN(io.Discard, in, 1<<17) },
		"after": func(in *bufio.Reader) {
			if r, err := http.ReadRequest(in); err == nil {
				_, _ = io.Copy(io.Discard, r.Body)
			}
		},
	} {
		l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // a test
		if err != nil {
			t.Fatal(err)
		}
		var connections atomic.Int32
		served := make(chan struct{})
		go func() {
			defer close(served)
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				connections.Add(1)
				in := bufio.NewReader(c)
				// The first request of a connection is answered, so that the second one uses it again.
				if r, err := http.ReadRequest(in); err == nil {
					_, _ = io.Copy(io.Discard, r.Body)
					_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
					if name != "before" {
						_, _ = in.Peek(1) // the second request begins
					}
					read(in)
				}
				_ = c.Close()
			}
		}()
		client := NewClient(1)
		send := func() (int, error) {
			ctx, x := Record(t.Context(), time.Time{})
			r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+l.Addr().String(), bytes.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Idempotency-Key", "k")
			resp, err := client.HTTP.Do(r)
			if err == nil {
				_ = resp.Body.Close()
			}
			return x.Status, err
		}
		if status, err := send(); status != http.StatusOK {
			t.Fatalf("%s: %d, %v", name, status, err)
		}
		before := connections.Load()
		status, err := send()
		// A connection that is known to be closed is not used, and the request is the first one of another. One that
		// has begun on a connection is on no other.
		again := connections.Load() - before
		if (again == 1) != (err == nil) || again > 1 || again == 1 && name != "before" {
			t.Errorf("%s: %d more connections, status %d, %v", name, again, status, err)
		}
		client.Close()
		_ = l.Close()
		<-served
	}
}
