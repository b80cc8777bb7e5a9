package client

import (
	"crypto/ed25519"
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
type Webhook struct {
	secret []byte
	public ed25519.PublicKey // of SignatureEd25519, in place of the secret
}

const (
	secretPrefix = "whsec_"
	publicPrefix = "whpk_"
)

// NewWebhook returns a Webhook for the secret of an endpoint, or for its public key if its posts have signatures of
// SignatureEd25519.
func NewWebhook(key string) (*Webhook, error) {
	if text, ok := strings.CutPrefix(key, publicPrefix); ok {
		public, err := base64.StdEncoding.DecodeString(text)
		if err != nil || len(public) != ed25519.PublicKeySize {
			return nil, errors.New("the public key of an endpoint is whpk_, followed by 32 bytes in base64")
		}
		return &Webhook{public: public}, nil
	}
	secret, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(key, secretPrefix))
	if err != nil || len(secret) == 0 {
		return nil, errors.New("the secret of an endpoint begins with whsec_, followed by base64")
	}
	return &Webhook{secret: secret}, nil
}

// Event is an update in a post. A post may have many. A repeated update has the same Log, Event and
// Number.
type Event struct {
	Type      string    `json:"type" schema:"UpdateType"` // Of a test post it is `test`, and `data` has only a `message`.
	Timestamp time.Time `json:"timestamp"`                // `at` of the update.
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
	content := append([]byte(id+"."+stamp+"."), body...)
	for signature := range strings.FieldsSeq(h.Get("Webhook-Signature")) {
		if w.signed(content, signature) {
			return nil
		}
	}
	return fmt.Errorf("%w: no signature fits", ErrNotVerified)
}

// signed reports whether a signature of a content fits the key.
func (w *Webhook) signed(content []byte, signature string) bool {
	name, text, _ := strings.Cut(signature, ",")
	got, err := base64.StdEncoding.DecodeString(text)
	switch {
	case err != nil:
		return false
	case w.public != nil:
		return name == SignatureEd25519 && ed25519.Verify(w.public, content, got)
	}
	mac := hmac.New(sha256.New, w.secret)
	_, _ = mac.Write(content) // a hash never fails
	return name == SignatureHMAC && hmac.Equal(mac.Sum(nil), got)
}
