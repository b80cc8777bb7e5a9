package app

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	http2lib "golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/safedelivr/safedelivr/internal/testkit"
)

// TestUnreadAnswersEnd: an answer that the client does not read ends, and one that is read slowly arrives whole.
func TestUnreadAnswersEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const size = 1 << 20
		failed := make(chan error, 1)
		handler := limitAnswers(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", fmt.Sprint(size))
			_, err := w.Write(make([]byte, size))
			failed <- err
		}))
		serve := func() net.Conn {
			client, server := net.Pipe()
			l := &oneConn{conn: server, closed: make(chan struct{})}
			s := &http.Server{Handler: handler, ReadHeaderTimeout: time.Second}
			go func() { _ = s.Serve(l) }()
			t.Cleanup(func() { _ = s.Close(); _ = client.Close() })
			_, err := io.WriteString(client, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
			require.NoError(t, err)
			return client
		}
		began := time.Now()
		serve()
		require.Error(t, <-failed)
		require.LessOrEqual(t, time.Since(began), 2*answerTime)

		began = time.Now()
		client := serve()
		buffer, n := make([]byte, 16<<10), 0
		for n < size {
			time.Sleep(2 * time.Second)
			k, err := client.Read(buffer)
			require.NoError(t, err)
			n += k
		}
		require.NoError(t, <-failed)
		require.Greater(t, time.Since(began), 3*answerTime, "it took much longer than one piece may")
	})
}

// oneConn is a listener with one connection.
type oneConn struct {
	conn   net.Conn
	closed chan struct{}
}

func (l *oneConn) Accept() (net.Conn, error) {
	if c := l.conn; c != nil {
		l.conn = nil
		return c, nil
	}
	<-l.closed
	return nil, net.ErrClosed
}

func (l *oneConn) Close() error   { close(l.closed); return nil }
func (l *oneConn) Addr() net.Addr { return &net.TCPAddr{} }

// TestStreamsAreLimited: a client of HTTP/2 has few requests at a time on one connection, and as many as its address
// may have on all.
func TestStreamsAreLimited(t *testing.T) {
	t.Parallel()
	free, begun := make(chan struct{}), make(chan struct{}, 200)
	var most, now atomic.Int64
	handler := trustProxies(nil, 40, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		most.Store(max(most.Load(), now.Add(1)))
		begun <- struct{}{}
		<-free
		now.Add(-1)
	}))
	s := httptest.NewUnstartedServer(limitAnswers(handler))
	s.EnableHTTP2, s.Config.HTTP2 = true, http2()
	s.StartTLS()
	defer s.Close()
	statuses := make(chan int, 200)
	for range 3 { // connections
		client := &http.Client{Transport: &http.Transport{
			TLSClientConfig:   &tls.Config{RootCAs: s.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs}, //nolint:gosec,forcetypeassert // a test
			ForceAttemptHTTP2: true, HTTP2: &http.HTTP2Config{StrictMaxConcurrentRequests: true},
		}}
		for range 30 {
			go func() {
				r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL, http.NoBody)
				if err != nil {
					statuses <- 0
					return
				}
				resp, err := client.Do(r)
				if err != nil {
					statuses <- 0
					return
				}
				_ = resp.Body.Close()
				statuses <- resp.StatusCode
			}()
		}
	}
	refused := 0
	for range 60 { // of 90 requests 30 may run: a quarter of the places is kept for keys and webhooks
		if <-statuses == http.StatusTooManyRequests {
			refused++
		}
	}
	require.Equal(t, 60, refused)
	for range 30 {
		<-begun
	}
	close(free)
	for range 30 {
		require.Equal(t, http.StatusOK, <-statuses)
	}
	require.EqualValues(t, 30, most.Load())
}

// TestStreamsOfOurTLS: a process with TLS of its own speaks HTTP/2 with few streams a connection, and ends a connection
// whose client reads nothing.
func TestStreamsOfOurTLS(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ca, dir := testkit.NewAuthority(t), t.TempDir()
		cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
		ca.Certificate(t, cert, key, "127.0.0.1", time.Hour)
		network, l := bubbleApp(t, "SAFEDELIVR_TLS_CERT="+cert, "SAFEDELIVR_TLS_KEY="+key)
		pipe, err := network.Dial(t.Context(), "tcp", l.Addr().String())
		require.NoError(t, err)
		c := tls.Client(pipe, &tls.Config{
			RootCAs: ca.Pool, ServerName: "127.0.0.1", NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS12,
		})
		require.NoError(t, c.HandshakeContext(t.Context()))
		require.Equal(t, "h2", c.ConnectionState().NegotiatedProtocol)
		sent := make(chan error, 1)
		go func() { // the server writes, too, and a pipe has no buffer
			_, err := io.WriteString(c, http2lib.ClientPreface)
			sent <- err
		}()
		f := http2lib.NewFramer(c, c)
		first, err := f.ReadFrame()
		require.NoError(t, err)
		require.NoError(t, <-sent)
		settings, ok := first.(*http2lib.SettingsFrame)
		require.True(t, ok, "%s", first)
		most, ok := settings.Value(http2lib.SettingMaxConcurrentStreams)
		require.True(t, ok)
		require.EqualValues(t, 32, most)

		go func() { // the request of a long answer
			var head bytes.Buffer
			e := hpack.NewEncoder(&head)
			for _, h := range []hpack.HeaderField{
				{Name: ":method", Value: "GET"}, {Name: ":scheme", Value: "https"}, {Name: ":authority", Value: "127.0.0.1"},
				{Name: ":path", Value: "/v1/openapi.yaml"},
			} {
				_ = e.WriteField(h) // a buffer takes all
			}
			_ = f.WriteSettings(http2lib.Setting{ID: http2lib.SettingInitialWindowSize, Val: 1 << 30})
			_ = f.WriteWindowUpdate(0, 1<<30)
			sent <- f.WriteHeaders(http2lib.HeadersFrameParam{
				StreamID: 1, BlockFragment: head.Bytes(), EndStream: true, EndHeaders: true,
			})
		}()
		data := 0
		for data == 0 { // it has begun
			frame, err := f.ReadFrame()
			require.NoError(t, err)
			if d, ok := frame.(*http2lib.DataFrame); ok {
				data += len(d.Data())
			}
		}
		require.NoError(t, <-sent)
		time.Sleep(answerTime + 6*time.Second) // the end of TLS may take five more
		n, err := pipe.Read(make([]byte, 1))
		require.Zero(t, n, "the server still writes")
		require.ErrorIs(t, err, io.EOF)
	})
}

// TestQuarter: no address may have more than a quarter of all connections.
func TestQuarter(t *testing.T) {
	t.Parallel()
	require.Equal(t, 25, quarter(100, 1024))
	require.Equal(t, 10, quarter(100, 10))
	require.Equal(t, 1, quarter(2, 10))
}
