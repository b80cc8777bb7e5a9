package client

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// ErrNotVerified says that a post did not come from the server that has the secret, or is old.
var ErrNotVerified = errors.New("the post is not verified")

// Webhook reads the posts of an endpoint, and verifies them as Standard Webhooks describes it.
type Webhook struct{ key []byte }

// NewWebhook returns a Webhook for the secret of an endpoint.
func NewWebhook(secret string) (*Webhook, error) {
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
	if err != nil || len(key) == 0 {
		return nil, errors.New("the secret of an endpoint begins with whsec_, followed by base64")
	}
	return &Webhook{key: key}, nil
}

// Event is what a post tells. A post may have many. An update that is told again has the same Log, Event and
// Number.
type Event struct {
	// Type is that of the update, or test; a test has no Update.
	Type      string    `json:"type"`
	Timestamp time.Time `json:"timestamp"`
	Update    Update    `json:"data"`
}

const (
	maxPost = 16 << 20 // bytes; a thousand updates with metadata have less
	maxAge  = 5 * time.Minute
)

// Read reads a post and returns its events. Answer with a status from 200 to 299 when they are handled. The error is
// ErrNotVerified if the post did not come from the server.
func (w *Webhook) Read(r *http.Request) ([]Event, error) {
	body, err := io.ReadAll(io.LimitReader(r.Body, maxPost))
	if err != nil {
		return nil, err
	}
	return w.Parse(r.Header, body, time.Now())
}

// Parse is Read for a post whose header fields and body were read before.
func (w *Webhook) Parse(h http.Header, body []byte, now time.Time) ([]Event, error) {
	if err := w.verify(h, body, now); err != nil {
		return nil, err
	}
	var post struct {
		Type string          `json:"type"`
		Data json.RawMessage `json:"data"`
	}
	err := json.Unmarshal(body, &post)
	events := make([]Event, 1)
	if err == nil && post.Type == "batch" {
		err = json.Unmarshal(post.Data, &events)
	} else if err == nil {
		err = json.Unmarshal(body, &events[0])
	}
	if err != nil {
		return nil, fmt.Errorf("the post cannot be read: %w", err)
	}
	return events, nil
}

// verify returns ErrNotVerified unless a body was signed with the secret, less than five minutes before or after now.
func (w *Webhook) verify(h http.Header, body []byte, now time.Time) error {
	id, stamp := h.Get("Webhook-Id"), h.Get("Webhook-Timestamp")
	seconds, err := strconv.ParseInt(stamp, 10, 64)
	if err != nil || now.Sub(time.Unix(seconds, 0)).Abs() > maxAge {
		return fmt.Errorf("%w: its time is %q", ErrNotVerified, stamp)
	}
	mac := hmac.New(sha256.New, w.key)
	_, _ = fmt.Fprintf(mac, "%s.%s.", id, stamp) // a hash never fails
	_, _ = mac.Write(body)
	want := []byte("v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	for got := range strings.FieldsSeq(h.Get("Webhook-Signature")) {
		if hmac.Equal([]byte(got), want) {
			return nil
		}
	}
	return fmt.Errorf("%w: no signature fits", ErrNotVerified)
}
