// Package outbound posts to addresses that users name. It connects to no address of a private, local or otherwise
// special network, also if a name resolves to one. It follows no redirects.
package outbound

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"syscall"
	"time"

	"code.dny.dev/ssrf"
)

// Limits of a post.
const (
	timeout   = 15 * time.Second
	maxAnswer = 4 << 10  // bytes of an answer that are kept
	maxHeader = 64 << 10 // bytes of the header of an answer

	// MaxRetryAfter is how long a receiver may ask not to be posted to.
	MaxRetryAfter = 24 * time.Hour
	maxURL        = 2000
)

// ErrForbidden says that an address is in a network that is not allowed.
var ErrForbidden = errors.New("the address is in a network that posts may not reach")

// Client posts. It may be used by many goroutines at once.
type Client struct{ http *http.Client }

// New returns a Client. allowed are networks that it may reach although they are special, like 10.0.0.0/8.
func New(allowed []netip.Prefix) *Client { return newClient(allowed, nil) }

// Within returns the client with another time-out, for connection, post and answer together.
func (c *Client) Within(timeout time.Duration) *Client {
	other := *c.http
	other.Timeout = timeout
	return &Client{http: &other}
}

// Over returns the client with another way to connect, which is not limited to allowed networks. Tests use it.
func (c *Client) Over(dial func(ctx context.Context, network, address string) (net.Conn, error)) *Client {
	other := *c.http
	transport := other.Transport.(*http.Transport).Clone()
	transport.DialContext = dial
	other.Transport = transport
	return &Client{http: &other}
}

// newClient returns a Client that asks a resolver for addresses; nil: that of the system.
func newClient(allowed []netip.Prefix, names *net.Resolver) *Client {
	var v4, v6 []netip.Prefix
	for _, p := range allowed {
		if p.Addr().Is4() {
			v4 = append(v4, p)
		} else {
			v6 = append(v6, p)
		}
	}
	guard := ssrf.New(ssrf.WithAnyPort(), ssrf.WithAllowedV4Prefixes(v4...), ssrf.WithAllowedV6Prefixes(v6...))
	dialer := &net.Dialer{
		Timeout:  5 * time.Second,
		Resolver: names,
		// Control is asked for each address after the name was resolved, and right before that address is dialled.
		ControlContext: func(_ context.Context, network, address string, _ syscall.RawConn) error {
			if err := guard.Safe(network, address, nil); err != nil {
				return fmt.Errorf("%w: %w", ErrForbidden, err)
			}
			return nil
		},
	}
	return &Client{http: &http.Client{
		Timeout: timeout,
		Transport: &http.Transport{
			DialContext:            dialer.DialContext,
			TLSHandshakeTimeout:    5 * time.Second,
			MaxResponseHeaderBytes: maxHeader,
			IdleConnTimeout:        time.Minute,
			MaxIdleConnsPerHost:    16,
			ForceAttemptHTTP2:      true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// Answer is what a receiver answered.
type Answer struct {
	Status     int
	Body       string        // its beginning
	RetryAfter time.Duration // that it asks for; 0: it does not
	Took       time.Duration
}

// Post posts a body. An error means that there was no answer; its text is for users.
func (c *Client) Post(ctx context.Context, address string, header http.Header, body []byte) (Answer, error) {
	began := time.Now()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, address, bytes.NewReader(body))
	if err != nil {
		return Answer{}, err
	}
	req.Header = header.Clone()
	res, err := c.http.Do(req)
	if err != nil {
		var e *url.Error
		if errors.As(err, &e) { // it names the address, which may hold a secret
			err = e.Err
		}
		return Answer{Took: time.Since(began)}, explain(err)
	}
	defer func() { _ = res.Body.Close() }()
	text, _ := io.ReadAll(io.LimitReader(res.Body, maxAnswer)) // the status decides
	return Answer{
		Status:     res.StatusCode,
		Body:       string(text),
		RetryAfter: retryAfter(res.Header.Get("Retry-After"), began),
		Took:       time.Since(began),
	}, nil
}

// retryAfter parses the value of a Retry-After header field: seconds or a date. More than MaxRetryAfter counts as that.
func retryAfter(value string, now time.Time) (after time.Duration) {
	if n, err := strconv.ParseInt(value, 10, 32); err == nil {
		after = time.Duration(n) * time.Second
	} else if at, err := http.ParseTime(value); err == nil {
		after = at.Sub(now)
	}
	return min(max(after, 0), MaxRetryAfter)
}

// BadURL says, for people, why users may not name an address, or "". What a name resolves to is checked at each post.
func BadURL(address string) string {
	u, err := url.Parse(address)
	switch {
	case err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "":
		return "It must be a URL that begins with https:// or http://."
	case len(address) > maxURL:
		return fmt.Sprintf("It has more than %d bytes.", maxURL)
	case u.User != nil:
		return "It must not have a user name; use a header field for a password."
	case u.Fragment != "":
		return "It must not have a fragment (#)."
	}
	return ""
}
