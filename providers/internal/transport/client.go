// Package transport makes the HTTP calls of the adapters and records what became of
// them: the answer, or how far the request got without one.
package transport

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"time"
)

// maxAnswer bounds what is read of an answer. Providers answer a send with a
// few hundred bytes; whatever sends more is not one.
const maxAnswer = 1 << 20

// A Client is the HTTP client of one provider.
type Client struct {
	HTTP      *http.Client
	transport *http.Transport
}

// NewClient returns a client with connections of its own, conns of which are
// kept open while idle.
//
// It speaks HTTP/1.1 only: with HTTP/2 all calls of a provider share one
// connection, and when that breaks the outcome of every one of them is unknown.
//
// Idle connections are closed after 20 seconds, well before the load balancers
// of the providers do (60 to 75 seconds). A request that is written while the
// other side closes has an unknown outcome, which costs hours; a new connection
// costs milliseconds.
func NewClient(conns int) *Client {
	dialer := &net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}
	t := &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		DialContext:            dialer.DialContext,
		TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout:    10 * time.Second,
		TLSNextProto:           map[string]func(string, *tls.Conn) http.RoundTripper{},
		MaxIdleConnsPerHost:    conns,
		IdleConnTimeout:        20 * time.Second,
		DisableCompression:     true,
		MaxResponseHeaderBytes: 64 << 10,
		WriteBufferSize:        64 << 10,
	}
	return &Client{
		transport: t,
		HTTP: &http.Client{
			Transport: &recorder{t},
			// A redirect is an answer, and never a reason to send the mail elsewhere.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

// Close closes idle connections.
func (c *Client) Close() { c.transport.CloseIdleConnections() }

// Record returns a context for exactly one request through a Client, and what
// will be known of it. Nothing of its body leaves at or after startBy, if that is
// not zero, unless some of it left before; nor after the context's deadline.
func Record(ctx context.Context, startBy time.Time) (context.Context, *Exchange) {
	x := &Exchange{startBy: startBy}
	return context.WithValue(ctx, exchangeKey{}, x), x
}

type exchangeKey struct{}

// A recorder is the RoundTripper that fills in the Exchange of the request's
// context. It makes sure that a request goes out once at most:
//
//   - The body passes through a gate and cannot be rewound, so that Transport
//     never repeats a request of which anything may have left.
//   - A second request with the same Exchange is refused, so that no SDK can
//     retry on its own.
type recorder struct{ next http.RoundTripper }

var (
	errUnrecorded = errors.New("transport: request without an exchange")
	errTwice      = errors.New("transport: second request in one exchange")
	errTooLong    = errors.New("the answer is too long")
)

// RoundTrip implements http.RoundTripper.
func (t *recorder) RoundTrip(req *http.Request) (*http.Response, error) {
	x, _ := req.Context().Value(exchangeKey{}).(*Exchange)
	if x == nil || x.used.Swap(true) {
		if req.Body != nil {
			_ = req.Body.Close()
		}
		if x == nil {
			return nil, errUnrecorded
		}
		return nil, errTwice
	}
	ctx := httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{
		WroteRequest: func(i httptrace.WroteRequestInfo) {
			if i.Err != nil {
				x.broken.Store(true)
			}
		},
	})
	r := req.WithContext(ctx)
	if req.Body != nil {
		x.gate = &gate{body: req.Body, left: req.ContentLength, startBy: x.startBy}
		if x.gate.left == 0 {
			x.gate.left = -1 // so says Transport of a body of unknown length
		}
		x.gate.end, _ = req.Context().Deadline()
		r.Body = x.gate
	}
	r.GetBody = nil

	res, err := t.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	x.Status, x.Header = res.StatusCode, res.Header
	x.Body, err = io.ReadAll(io.LimitReader(res.Body, maxAnswer+1))
	if err == nil && len(x.Body) > maxAnswer {
		x.Body, err = x.Body[:maxAnswer], errTooLong
	}
	_ = res.Body.Close()
	x.Cut = err != nil
	res.Body = io.NopCloser(bytes.NewReader(x.Body))
	if err != nil {
		res.Body = io.NopCloser(io.MultiReader(bytes.NewReader(x.Body), failing{err}))
	}
	return res, nil
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }
