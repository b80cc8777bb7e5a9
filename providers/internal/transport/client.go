// Package transport makes the HTTP calls of the adapters. It records the answer of a
// call or, without one, how much of the request was sent.
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

// maxAnswer bounds the bytes that are read of an answer. Providers answer a send with a few
// hundred bytes.
const maxAnswer = 1 << 20

// A Client is the HTTP client of one provider.
type Client struct {
	HTTP      *http.Client
	transport *http.Transport
}

// NewClient returns a client with its own connections. It keeps conns of them open while
// idle.
//
// It uses only HTTP/1.1: with HTTP/2 the outcomes of all calls would be unknown when the one connection breaks. Idle
// connections are closed after 20 seconds, well before the providers' load balancers do it (60 to 75 seconds). A
// request that is written while the peer closes has an unknown outcome.
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
		WriteBufferSize:        16 << 10, // of one record of TLS
	}
	return &Client{
		transport: t,
		HTTP: &http.Client{
			Transport: &recorder{t},
			// A redirect is an answer. The mail is never sent to another place.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

// Close closes idle connections.
func (c *Client) Close() { c.transport.CloseIdleConnections() }

// Record returns a context for exactly one request through a Client, and the Exchange that
// the request fills in. If startBy is not zero, the body begins to leave before it or not at all, and no connection is
// made for a request that is ready only later. Nothing leaves after the context's deadline.
func Record(ctx context.Context, startBy time.Time) (context.Context, *Exchange) {
	x := &Exchange{startBy: startBy, limit: maxAnswer}
	return context.WithValue(ctx, exchangeKey{}, x), x
}

type exchangeKey struct{}

// A recorder is the RoundTripper that fills in the Exchange of a request's context. A request is sent at most once. Its
// body passes through a gate and cannot be rewound, so http.Transport never repeats it. A second request with the same
// Exchange is refused, so no SDK can retry.
type recorder struct{ next http.RoundTripper }

var (
	errUnrecorded = errors.New("transport: request without an exchange")
	errTwice      = errors.New("transport: second request in one exchange")
	errUnready    = errors.New("transport: the request was not ready in time")
	errTooLong    = errors.New("the answer is too long")
)

// RoundTrip implements http.RoundTripper.
func (t *recorder) RoundTrip(req *http.Request) (*http.Response, error) {
	x, _ := req.Context().Value(exchangeKey{}).(*Exchange)
	if err := x.begin(); err != nil {
		if req.Body != nil {
			_ = req.Body.Close()
		}
		return nil, err
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
			x.gate.left = -1 // http.Transport says this of a body of unknown length
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
	x.Body, err = io.ReadAll(io.LimitReader(res.Body, x.limit+1))
	if err == nil && int64(len(x.Body)) > x.limit {
		x.Body, err = x.Body[:x.limit], errTooLong
	}
	_ = res.Body.Close()
	x.Cut = err != nil
	res.Body = io.NopCloser(bytes.NewReader(x.Body))
	if err != nil {
		res.Body = io.NopCloser(io.MultiReader(bytes.NewReader(x.Body), failing{err}))
	}
	return res, nil
}

// begin returns an error if no request may be made in the exchange.
func (x *Exchange) begin() error {
	switch {
	case x == nil:
		return errUnrecorded
	case x.used.Swap(true):
		return errTwice
	case past(x.startBy):
		x.unready = true
		return errUnready
	}
	return nil
}

// failing is a reader that fails.
type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }
