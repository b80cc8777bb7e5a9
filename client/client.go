// Package client calls the HTTP API of Safedelivr, a self-hosted email gateway.
//
// A [Client] holds the address of a server and an API key. Every method is one request, or one request for each page
// of a list, and may be called from several goroutines. Answers that are not a success are returned as an [*Error].
//
// A request that changes something can be repeated safely: name it with [IdempotencyKey] and send it again, unchanged
// and with the same key, while [Repeatable] reports true for its error. Only the first one is carried out. The client
// itself never repeats a request.
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// Client calls one server with one API key.
type Client struct {
	base string
	key  string
	http *http.Client
}

// Option sets up a Client.
type Option func(*Client)

// HTTPClient has requests sent by h instead of [http.DefaultClient]. Set timeouts and proxies there.
func HTTPClient(h *http.Client) Option { return func(c *Client) { c.http = h } }

// New returns a client of the server at baseURL, such as https://mail.example.com. The key is an API key as
// "safedelivr key add" prints it; methods that need none work with an empty one.
func New(baseURL, key string, options ...Option) *Client {
	c := &Client{
		base: strings.TrimSuffix(baseURL, "/"),
		key:  key,
		http: http.DefaultClient,
	}
	for _, o := range options {
		o(c)
	}
	return c
}

// URL returns the address of a path of the server.
func (c *Client) URL(path string) string { return c.base + path }

// CallOption sets up one request.
type CallOption func(*call)

// IdempotencyKey names a request, so that it can be repeated without being carried out twice. A key is 1 to 256 visible
// ASCII characters, for example a UUID. Keys belong to a user and a path and are kept for 24 hours by default.
func IdempotencyKey(key string) CallOption {
	return func(c *call) { c.header.Set("Idempotency-Key", key) }
}

// DryRun asks what a command about a batch or a log, a Release, or PutMessages would do. Nothing is changed. A dry run
// of anything else is refused (invalid_query).
func DryRun() CallOption { return func(c *call) { c.set("dry_run", "true") } }

// OfInstallation makes a request about endpoints one about those of the installation, which get what operators want to
// hear of. It needs the scope operate.
func OfInstallation() CallOption { return func(c *call) { c.set("installation", "true") } }

// RequestID names a request in errors and in the server's log. An id is at most 64 letters, digits, dashes,
// underscores and dots. The server chooses one by default.
func RequestID(id string) CallOption {
	return func(c *call) { c.header.Set("X-Request-Id", id) }
}

// Into stores what the answer says about itself in r, whether or not the request succeeds. It leaves r as it is if no
// answer arrives.
func Into(r *Response) CallOption { return func(c *call) { c.response = r } }

// Raw stores the body of the answer, as it is, in to.
func Raw(to *[]byte) CallOption { return func(c *call) { c.raw = to } }

// Response is what an answer says about itself.
type Response struct {
	Status    int
	RequestID string
	// Replayed reports whether this is the answer to an earlier request with the same idempotency key.
	Replayed bool
	Header   http.Header
}

// call is one request.
type call struct {
	method   string
	path     string
	query    url.Values
	body     io.Reader
	header   http.Header
	response *Response
	accept   int     // a status that is an answer besides the successes
	raw      *[]byte // where the body of the answer is stored, too
}

func newCall(method, path string, options []CallOption) *call {
	c := &call{method: method, path: path, header: http.Header{}}
	for _, o := range options {
		o(c)
	}
	return c
}

// set sets a parameter of the query.
func (c *call) set(name, value string) {
	if c.query == nil {
		c.query = url.Values{}
	}
	c.query.Set(name, value)
}

// with adds the parameters of a query that are not empty to the options of a request.
func with(options []CallOption, query map[string]string) []CallOption {
	return append(slices.Clone(options), func(c *call) {
		for name, value := range query {
			if value != "" {
				c.set(name, value)
			}
		}
	})
}

// Call makes a request by its method and path, for callers that know the operations of the API only when they run.
// The body in may be nil, an [io.Reader] of JSON, or what is encoded as JSON. The answer is decoded into out, which
// may be nil.
func (c *Client) Call(
	ctx context.Context, method, path string, query url.Values, in, out any, options ...CallOption,
) error {
	options = append(slices.Clone(options), func(c *call) {
		for name := range query {
			c.set(name, query.Get(name))
		}
	})
	if body, ok := in.(io.Reader); ok {
		call := newCall(method, path, options)
		call.body = body
		return c.do(ctx, call, out)
	}
	return c.send(ctx, method, path, in, out, options)
}

// ContentType says what the body of a request is, in place of application/json.
func ContentType(kind string) CallOption { return func(c *call) { c.header.Set("Content-Type", kind) } }

// Path returns the path of the parts of a resource, each escaped.
func Path(parts ...string) string { return route(parts...) }

// get reads path into out.
func (c *Client) get(ctx context.Context, path string, query url.Values, out any, options []CallOption) error {
	call := newCall(http.MethodGet, path, options)
	for name, values := range query {
		call.set(name, values[0])
	}
	return c.do(ctx, call, out)
}

// post sends in to path as JSON and reads the answer into out, which may be nil.
func (c *Client) post(ctx context.Context, path string, in, out any, options []CallOption) error {
	return c.send(ctx, http.MethodPost, path, in, out, options)
}

// put replaces path by in and reads the answer into out.
func (c *Client) put(ctx context.Context, path string, in, out any, options []CallOption) error {
	return c.send(ctx, http.MethodPut, path, in, out, options)
}

// send sends in as JSON, or no body if it is nil, and reads the answer into out, which may be nil.
func (c *Client) send(ctx context.Context, method, path string, in, out any, options []CallOption) error {
	call := newCall(method, path, options)
	if in != nil {
		body, err := json.Marshal(in)
		if err != nil {
			return fmt.Errorf("%s %s: %w", method, path, err)
		}
		call.body = bytes.NewReader(body)
	}
	return c.do(ctx, call, out)
}

// do sends the request and reads the answer into out, which may be nil.
func (c *Client) do(ctx context.Context, call *call, out any) error {
	target := c.base + call.path
	if len(call.query) > 0 {
		target += "?" + call.query.Encode()
	}
	r, err := http.NewRequestWithContext(ctx, call.method, target, call.body)
	if err != nil {
		return err
	}
	r.Header = call.header
	if c.key != "" {
		r.Header.Set("Authorization", "Bearer "+c.key)
	}
	if call.body != nil && r.Header.Get("Content-Type") == "" {
		r.Header.Set("Content-Type", "application/json")
	}
	resp, err := c.http.Do(r)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }() // it was only read
	if call.response != nil {
		*call.response = Response{
			Status:    resp.StatusCode,
			RequestID: resp.Header.Get("X-Request-Id"),
			Replayed:  resp.Header.Get("Idempotency-Replayed") == "true",
			Header:    resp.Header,
		}
	}
	if resp.StatusCode >= http.StatusMultipleChoices && resp.StatusCode != call.accept {
		return readError(call, resp)
	}
	if raw, ok := out.(*[]byte); ok {
		*raw, err = io.ReadAll(resp.Body)
		return err
	}
	if w, ok := out.(io.Writer); ok {
		_, err = io.Copy(w, resp.Body)
		return err
	}
	if lines, ok := out.(func(*json.Decoder) error); ok {
		return lines(json.NewDecoder(resp.Body))
	}
	if out == nil {
		return nil
	}
	body := io.Reader(resp.Body)
	if call.raw != nil {
		if *call.raw, err = io.ReadAll(body); err != nil {
			return err
		}
		body = bytes.NewReader(*call.raw)
	}
	if err := json.NewDecoder(body).Decode(out); err != nil {
		return fmt.Errorf("%s %s: the answer cannot be read: %w", call.method, call.path, err)
	}
	return nil
}

// route joins the parts of a path, each escaped.
func route(parts ...string) string {
	var out strings.Builder
	out.WriteString("/v1")
	for _, p := range parts {
		out.WriteString("/" + url.PathEscape(p))
	}
	return out.String()
}
