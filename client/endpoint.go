package client

import (
	"context"
	"time"
)

// The formats of posts that are not signed.
const (
	FormatSlack = "slack" // of an incoming webhook of Slack
	FormatMail  = "mail"  // mail to the addresses of a URL like mailto:ops@example.com
)

// The signatures of posts, as Standard Webhooks describes them.
const (
	SignatureHMAC    = "v1"  // HMAC-SHA256 with the secret
	SignatureEd25519 = "v1a" // with a private key that the server keeps
)

// EndpointSettings are what an endpoint may be told to do.
type EndpointSettings struct {
	// URL is the address to which updates are posted.
	URL         string `json:"url"`
	Description string `json:"description,omitempty"`
	// Events are types of updates; the default is all changes of the state.
	Events []string `json:"events,omitempty"`
	// Tags and Categories select mail that has one of them; the default is all mail.
	Tags       []string `json:"tags,omitempty"`
	Categories []string `json:"categories,omitempty"`
	// Batch puts up to 1,000 updates into a post.
	Batch bool `json:"batch,omitempty"`
	// Ordered makes a post wait until the one before it was accepted.
	Ordered bool `json:"ordered,omitempty"`
	// Rate is how many posts per second there are at most; 0: any number. AtOnce is how many posts are made at once; 0:
	// 10.
	Rate   int `json:"rate,omitempty"`
	AtOnce int `json:"at_once,omitempty"`
	// Format is FormatSlack, FormatMail or empty. Only endpoints of the installation have one.
	Format string `json:"format,omitempty"`
	// User and Sender say whose mail FormatMail sends, and from which address.
	User   string `json:"user,omitempty"`
	Sender string `json:"sender,omitempty"`
	// Signature is how posts are signed. The default is SignatureHMAC, and when an endpoint is changed what it was.
	Signature string `json:"signature,omitempty"`
	// Everyone asks for the updates of all users, in place of notices. Only endpoints of the installation have it, and it
	// is never changed.
	Everyone bool `json:"everyone,omitempty"`
	// Headers are header fields of the posts. Their values are never told again.
	Headers map[string]string `json:"headers,omitempty"`
}

// Endpoint is an address of an application to which updates of the mail of its user are posted.
type Endpoint struct {
	ID string `json:"id"`
	EndpointSettings
	HeaderNames []string `json:"header_names,omitempty"`
	// Secret is the key of the signatures. It is told only when it is new. PublicKey is that of SignatureEd25519, which
	// has no secret to tell.
	Secret    string `json:"secret,omitempty"`
	PublicKey string `json:"public_key,omitempty"`
	// State is active, failing or disabled; Why says why it is failing or disabled.
	State        string    `json:"state"`
	Why          string    `json:"why,omitempty"`
	FailingSince time.Time `json:"failing_since,omitzero"`
	// Posted counts accepted posts, GivenUp posts whose retries are used up, and Retrying those that wait for a retry.
	Posted   int64 `json:"posted"`
	GivenUp  int64 `json:"given_up"`
	Retrying int   `json:"retrying"`
	// FailureRate is the part of the newest hundred attempts that was not accepted, from 0 to 1.
	FailureRate float64   `json:"failure_rate"`
	Created     time.Time `json:"created_at"`
}

// EndpointAttempt is an attempt to post.
type EndpointAttempt struct {
	At      time.Time `json:"at"`
	Post    string    `json:"post"` // the same at each repeat
	Updates int       `json:"updates"`
	Type    string    `json:"type,omitempty"` // of a single update
	Log     string    `json:"log,omitempty"`
	Tried   int       `json:"tried"`                 // how often before
	Status  int       `json:"http_status,omitempty"` // 0: there was no answer
	Answer  string    `json:"answer,omitempty"`      // its beginning, or why there is none
	Why     string    `json:"why,omitempty"`         // it was not accepted, in words
	TookMS  int64     `json:"took_ms"`
}

// EndpointTest is what became of a test post.
type EndpointTest struct {
	Status int    `json:"http_status,omitempty"` // 0: there was no answer
	Answer string `json:"answer,omitempty"`      // its beginning, or why there is none
	TookMS int64  `json:"took_ms"`
}

// CreateEndpoint creates an endpoint. It gets the updates that follow.
func (c *Client) CreateEndpoint(
	ctx context.Context, s EndpointSettings, options ...CallOption,
) (v Endpoint, err error) {
	err = c.post(ctx, route("endpoints"), s, &v, options)
	return v, err
}

// Endpoints returns the endpoints of the caller.
func (c *Client) Endpoints(ctx context.Context, options ...CallOption) ([]Endpoint, error) {
	var v struct {
		Endpoints []Endpoint `json:"endpoints"`
	}
	err := c.get(ctx, route("endpoints"), nil, &v, options)
	return v.Endpoints, err
}

// Endpoint returns an endpoint.
func (c *Client) Endpoint(ctx context.Context, id string, options ...CallOption) (v Endpoint, err error) {
	err = c.get(ctx, route("endpoints", id), nil, &v, options)
	return v, err
}

// UpdateEndpoint replaces the settings of an endpoint.
func (c *Client) UpdateEndpoint(
	ctx context.Context, id string, s EndpointSettings, options ...CallOption,
) (v Endpoint, err error) {
	err = c.put(ctx, route("endpoints", id), s, &v, options)
	return v, err
}

// RemoveEndpoint removes an endpoint.
func (c *Client) RemoveEndpoint(ctx context.Context, id string, options ...CallOption) error {
	return c.remove(ctx, route("endpoints", id), "", options)
}

// EndpointAttempts returns the newest attempts to post to an endpoint, newest first.
func (c *Client) EndpointAttempts(
	ctx context.Context, id string, options ...CallOption,
) ([]EndpointAttempt, error) {
	var v struct {
		Attempts []EndpointAttempt `json:"attempts"`
	}
	err := c.get(ctx, route("endpoints", id, "attempts"), nil, &v, options)
	return v.Attempts, err
}

// RotateEndpoint gives an endpoint a new secret, or a new key pair. Posts are signed with the old one, too, for a day.
func (c *Client) RotateEndpoint(ctx context.Context, id string, options ...CallOption) (v Endpoint, err error) {
	err = c.post(ctx, route("endpoints", id, "rotate"), struct{}{}, &v, options)
	return v, err
}

// DisableEndpoint ends the posts to an endpoint until EnableEndpoint. It then gets what it missed.
func (c *Client) DisableEndpoint(
	ctx context.Context, id, why string, options ...CallOption,
) (v Endpoint, err error) {
	err = c.post(ctx, route("endpoints", id, "disable"), map[string]string{"why": why}, &v, options)
	return v, err
}

// EnableEndpoint lets the posts to an endpoint go on that was disabled.
func (c *Client) EnableEndpoint(ctx context.Context, id string, options ...CallOption) (v Endpoint, err error) {
	err = c.post(ctx, route("endpoints", id, "enable"), struct{}{}, &v, options)
	return v, err
}

// ReplayEndpoint posts the updates since a time again.
func (c *Client) ReplayEndpoint(
	ctx context.Context, id string, from time.Time, options ...CallOption,
) (v Endpoint, err error) {
	err = c.post(ctx, route("endpoints", id, "replay"), map[string]time.Time{"from": from}, &v, options)
	return v, err
}

// ReplayPost makes one of the newest hundred posts again, with the same ID.
func (c *Client) ReplayPost(ctx context.Context, id, post string, options ...CallOption) (v Endpoint, err error) {
	err = c.post(ctx, route("endpoints", id, "replay"), map[string]string{"post": post}, &v, options)
	return v, err
}

// EndpointRequest is what was posted, as it would be posted now.
type EndpointRequest struct {
	Post   string            `json:"post"`
	At     time.Time         `json:"at"` // of the newest attempt
	Header map[string]string `json:"header"`
	Body   string            `json:"body"`
}

// EndpointPost returns what was posted with one of the newest hundred posts. It is made anew: what was removed or
// erased meanwhile is not in it.
func (c *Client) EndpointPost(
	ctx context.Context, id, post string, options ...CallOption,
) (v EndpointRequest, err error) {
	err = c.get(ctx, route("endpoints", id, "posts", post), nil, &v, options)
	return v, err
}

// TestEndpoint makes a post of the type test and tells the answer.
func (c *Client) TestEndpoint(ctx context.Context, id string, options ...CallOption) (v EndpointTest, err error) {
	err = c.post(ctx, route("endpoints", id, "test"), struct{}{}, &v, options)
	return v, err
}
