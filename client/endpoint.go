package client

import "time"

// The formats of posts that are not signed.
const (
	FormatSlack = "slack" // of an incoming webhook of Slack
	FormatMail  = "mail"  // mail to the addresses of a URL like mailto:ops@example.com
)

// The shapes of posts. An application that reads the webhooks of one of these services reads posts in its shape.
const (
	ShapeStandard = "standard" // as Standard Webhooks describes it
	ShapeMailgun  = "mailgun"
	ShapeSendGrid = "sendgrid"
	ShapePostmark = "postmark"
	ShapeResend   = "resend"
)

// The signatures of posts, as Standard Webhooks describes them.
const (
	SignatureHMAC    = "v1"  // HMAC-SHA256 with the secret
	SignatureEd25519 = "v1a" // with a private key that the server keeps
)

// The states of an endpoint.
const (
	EndpointStateActive   = "active"
	EndpointStateFailing  = "failing" // the newest post failed
	EndpointStateDisabled = "disabled"
)

// EndpointSettings say which updates are posted where, and how.
type EndpointSettings struct {
	// An address that begins with https:// or http://. With the format `mail`: mailto: and up to 20 addresses,
	// separated by commas.
	URL string `json:"url" required:"true" max:"2000"`
	// What it is for, in one line.
	Description string `json:"description,omitempty" max:"200"`
	// Types of updates; `all`: all. Default: all changes of the state, and `endpoint.disabled`. Of an endpoint of the
	// installation without `everyone`: types of notices; default: all but `suppression.added`.
	Events []string `json:"events,omitempty" schema:"ChosenType"`
	// Only mail with one of these tags. Default: all mail.
	Tags []string `json:"tags,omitempty" max:"20" each:"255"`
	// Only mail of one of these categories. Default: all mail.
	Categories []string `json:"categories,omitempty" max:"20" each:"64"`
	// Up to 1,000 updates in a post: `type` is `batch`, and `data` a list of what single posts have. Default: false.
	Batch bool `json:"batch"`
	// A post waits until the one before it was accepted or given up. Default: false.
	Ordered bool `json:"ordered"`
	// Posts per second at most, evenly spaced. Default: any number.
	Rate int `json:"rate,omitempty" max:"1000"`
	// Posts at the same time at most. Default: 10, or 1 with `ordered`.
	AtOnce int `json:"at_once,omitempty" max:"50"`
	// How posts look. `slack`: as an incoming webhook of Slack gets them, and what is compatible with it. `mail`: a mail
	// to each of the addresses of `url`, through other providers than the one that it is about. Both are without a
	// signature and without `batch`, and only for endpoints of the installation. Default: as Standard Webhooks
	// describes.
	Format string `json:"format,omitempty" enum:"slack,mail"`
	// Whose webhooks the posts are like, so that an application that reads those needs no change. `mailgun` and `resend`
	// are signed with the `secret`, `sendgrid` with a private key whose `public_key` you get, and `postmark` is not
	// signed. An update that the service has no event for is not posted. Only `sendgrid` may have `batch`. Default:
	// `standard`.
	Shape string `json:"shape,omitempty" enum:"standard,mailgun,sendgrid,postmark,resend"`
	// Updates of the mail of all users, in place of notices; `user` of an update says whose. Only of endpoints of the
	// installation, and never changed. Default: false.
	Everyone bool `json:"everyone,omitempty"`
	// With the format `mail`: ID or name of the user whose mail the posts are.
	User string `json:"user,omitempty"`
	// With the format `mail`: the address that the posts come from. The user must be allowed to send from it.
	Sender string `json:"sender,omitempty"`
	// How posts are signed: `v1` with a `secret` that you get, or `v1a` with a private key whose `public_key` you get.
	// Default: `v1`, and when an endpoint is changed what it was. After a change posts are signed both ways for a day.
	Signature string `json:"signature,omitempty" enum:"v1,v1a"`
	// Header fields of the posts. No answer has their values.
	Headers map[string]string `json:"headers,omitempty" max:"20" each:"2000" only:"request"`
}

// Endpoint is an address of an application to which updates of the mail of its user are posted.
type Endpoint struct {
	ID string `json:"id"`
	EndpointSettings
	// Names of the header fields of the posts.
	HeaderNames []string `json:"header_names,omitempty"`
	// Key of the signatures, `whsec_…`. Only in the answer in which it is new.
	Secret string `json:"secret,omitempty"`
	// Of signatures with `v1a`: `whpk_…`. In the shape of SendGrid: base64.
	PublicKey string `json:"public_key,omitempty"`
	// `failing`: the newest post failed.
	State string `json:"state" enum:"active,failing,disabled"`
	// Why it is failing or disabled.
	Why          string    `json:"why,omitempty"`
	FailingSince time.Time `json:"failing_since,omitzero"`
	// Posts that were accepted.
	Posted int64 `json:"posted"`
	// Posts whose retries are used up.
	GivenUp int64 `json:"given_up"`
	// Posts that wait for a retry.
	Retrying int `json:"retrying"`
	// The part of the newest hundred attempts that was not accepted, from 0 to 1.
	FailureRate float64   `json:"failure_rate"`
	CreatedAt   time.Time `json:"created_at"`
}

// EndpointList has all endpoints, oldest first.
type EndpointList struct {
	Endpoints []Endpoint `json:"endpoints"`
}

// EndpointAttempt is an attempt to post.
type EndpointAttempt struct {
	At time.Time `json:"at"`
	// `webhook-id` of the post, the same at each retry.
	Post string `json:"post"`
	// How many updates the post has.
	Updates int `json:"updates"`
	// Of a single update.
	Type string `json:"type,omitempty"`
	// Of a single update.
	Log string `json:"log,omitempty"`
	// How often it was tried before.
	Tried int `json:"tried"`
	// Of the answer. Absent if there was none.
	Status int `json:"http_status,omitempty"`
	// The beginning of the answer, or why there is none.
	Answer string `json:"answer,omitempty"`
	// Why the post was not accepted, in words. Absent if it was.
	Why string `json:"why,omitempty"`
	// How long the answer took, in milliseconds.
	TookMS int64 `json:"took_ms"`
}

// EndpointAttemptList has the newest hundred attempts, newest first.
type EndpointAttemptList struct {
	Attempts []EndpointAttempt `json:"attempts"`
}

// EndpointRequest is the request of a post, as it would be made now.
type EndpointRequest struct {
	// `webhook-id` of the post.
	Post string `json:"post"`
	// When the newest attempt was made.
	At time.Time `json:"at"`
	// Without signatures, and without the values of the endpoint's own header fields.
	Header map[string]string `json:"header"`
	// Made anew, as for a retry: what was removed or erased meanwhile is not in it.
	Body string `json:"body"`
}

// EndpointTest is the answer to a test post.
type EndpointTest struct {
	// Of the answer. Absent if there was none.
	Status int `json:"http_status,omitempty"`
	// The beginning of the answer, or why there is none.
	Answer string `json:"answer,omitempty"`
	// How long the answer took, in milliseconds.
	TookMS int64 `json:"took_ms"`
}

// Reason says why a command is given. The audit trail keeps it.
type Reason struct {
	// Reason for the audit trail, in one line.
	Why string `json:"why,omitempty" max:"500"`
}

// Replay selects the updates that are posted again: those since a time, or those of one post.
type Replay struct {
	// The updates since a time, as long as they are kept.
	From time.Time `json:"from,omitzero"`
	// One of the newest hundred posts, by its ID.
	Post string `json:"post,omitempty"`
}
