package transport

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

// haltingConn is a connection that blocks its writer after the whole body was sent.
type haltingConn struct {
	net.Conn
	begun bool // the header has left
	left  int
	held  <-chan struct{}
}

func (c *haltingConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if !c.begun {
		i := bytes.Index(p, []byte("\r\n\r\n"))
		c.begun, c.left = i >= 0, c.left+i+len("\r\n\r\n")
	}
	if c.left -= n; c.begun && c.left <= 0 {
		<-c.held
	}
	return n, err
}

// A worker is stopped between the last byte of a request and the read of its end, until the
// call times out. The provider has all of it, so the outcome must be unknown.
func TestTimeOutAfterLastByteIsUnknown(t *testing.T) {
	t.Parallel()
	for _, size := range []int{1, 1 << 10, 100 << 10, 1 << 20} {
		arrived := make(chan int64, 1)
		server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			n, _ := io.Copy(io.Discard, r.Body)
			arrived <- n
			<-r.Context().Done()
		}))
		held, wrote := make(chan struct{}), make(chan error, 1)
		c := NewClient(1)
		c.transport.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, addr)
			return &haltingConn{Conn: conn, left: size, held: held}, err
		}
		ctx, cancel := context.WithTimeout(httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
			WroteRequest: func(i httptrace.WroteRequestInfo) { wrote <- i.Err },
		}), time.Minute)
		ctx, x := Record(ctx, time.Time{})
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL, bytes.NewReader(make([]byte, size)))
		require.NoError(t, err)
		done := make(chan error, 1)
		go func() {
			_, err := c.HTTP.Do(req) //nolint:bodyclose // there is no answer
			done <- err
		}()
		require.EqualValues(t, size, <-arrived)
		x.gate.mu.Lock()
		x.gate.end = time.Now().Add(-time.Second)
		x.gate.mu.Unlock()
		cancel()
		close(held)
		<-wrote
		err = <-done
		require.Error(t, err)
		class, _, text := x.NoAnswer(err)
		require.Equal(t, models.Unknown, class, "%d bytes: %s", size, text)
		c.Close()
		server.Close()
	}
}

// A call that ended before its request was ready says nothing about the provider.
func TestTimeOutBeforeRequestIsNoCall(t *testing.T) {
	t.Parallel()
	_, x := Record(t.Context(), time.Time{})
	class, reason, _ := x.NoAnswer(context.DeadlineExceeded)
	require.Equal(t, models.Unavailable, class)
	require.Equal(t, models.NotComposed, reason)
}

// No body leaves after the start-by: no connection is made if the request was not ready before, and no byte of its body
// is sent if the connection was not. Neither is a failure of the provider.
func TestNothingLeavesAfterStartBy(t *testing.T) {
	t.Parallel()
	const moment = time.Nanosecond
	for want, left := range map[models.Reason]time.Duration{
		models.NotComposed: -moment, models.StartByPassed: time.Minute,
	} {
		bodies := make(chan string, 1)
		server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if body, err := io.ReadAll(r.Body); err == nil || len(body) > 0 {
				bodies <- fmt.Sprintf("%d bytes, %v", len(body), err)
			}
		}))
		c := NewClient(1)
		ctx, x := Record(t.Context(), time.Now().Add(left))
		dials := 0
		c.transport.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			dials++
			x.gate.mu.Lock()
			x.gate.startBy = time.Now().Add(-moment)
			x.gate.mu.Unlock()
			return new(net.Dialer).DialContext(ctx, network, addr)
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL, bytes.NewReader(make([]byte, 1<<10)))
		require.NoError(t, err)
		_, err = c.HTTP.Do(req) //nolint:bodyclose // there is no answer
		require.Error(t, err)
		class, reason, _ := x.NoAnswer(err)
		require.Equal(t, models.Unavailable, class)
		require.Equal(t, want, reason)
		require.Equal(t, want == models.StartByPassed, dials == 1)
		c.Close()
		server.Close()
		require.Empty(t, bodies)
	}
}
