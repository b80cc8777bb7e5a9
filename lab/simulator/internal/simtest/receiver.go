package simtest

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sendgrid/sendgrid-go/helpers/eventwebhook"
)

// patience is how long Receiver.Wait waits.
const patience = 5 * time.Minute

// An Event is one webhook event.
type Event map[string]any

// Text returns the member key if it is a string.
func (e Event) Text(key string) string { s, _ := e[key].(string); return s }

// Recipient returns the address of the event.
func (e Event) Recipient() string { return e.Text("email") + e.Text("recipient") }

// A Receiver takes webhooks. It keeps the events of requests that it answers with
// 200 and whose signature fits.
type Receiver struct {
	Status func(r *http.Request, body []byte) int // the answer; nil = 200

	publicKey string

	mu       sync.Mutex
	events   map[string][]Event
	requests []Request
	forged   int
	changed  chan struct{}
}

// A Request is one webhook request.
type Request struct {
	Account string
	Header  http.Header
	Body    []byte
	At      time.Time
}

// ServeHTTP implements http.Handler. The path names the account.
func (h *Receiver) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	account := strings.Trim(r.URL.Path, "/")
	status := http.StatusOK
	if h.Status != nil {
		status = h.Status(r, body)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.events == nil {
		h.events = map[string][]Event{}
	}
	h.requests = append(h.requests, Request{account, r.Header.Clone(), body, time.Now()})
	if !h.verify(account, r.Header, body) {
		h.forged++
	} else if status == http.StatusOK {
		h.keep(account, body)
	}
	close(h.changed)
	h.changed = make(chan struct{})
	w.WriteHeader(status)
}

func (h *Receiver) verify(account string, header http.Header, body []byte) bool {
	if strings.HasPrefix(account, "sg") {
		key, err := eventwebhook.ConvertPublicKeyBase64ToECDSA(h.publicKey)
		if err != nil {
			return false
		}
		ok, err := eventwebhook.VerifySignature(key, body,
			header.Get(eventwebhook.VerificationHTTPHeader), header.Get(eventwebhook.TimestampHTTPHeader))
		return ok && err == nil
	}
	var p struct {
		Signature struct{ Timestamp, Token, Signature string }
	}
	if json.Unmarshal(body, &p) != nil || len(p.Signature.Timestamp) != 10 || len(p.Signature.Token) != 50 {
		return false
	}
	mac := hmac.New(sha256.New, []byte(SigningKey))
	io.WriteString(mac, p.Signature.Timestamp+p.Signature.Token)
	return hex.EncodeToString(mac.Sum(nil)) == p.Signature.Signature
}

func (h *Receiver) keep(account string, body []byte) {
	if strings.HasPrefix(account, "sg") {
		var list []Event
		if err := json.Unmarshal(body, &list); err != nil {
			panic(err)
		}
		h.events[account] = append(h.events[account], list...)
		return
	}
	var p struct {
		Data Event `json:"event-data"`
	}
	if err := json.Unmarshal(body, &p); err != nil {
		panic(err)
	}
	h.events[account] = append(h.events[account], p.Data)
}

// Events returns the events of the account so far.
func (h *Receiver) Events(account string) []Event {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.events[account])
}

// Requests returns the requests so far.
func (h *Receiver) Requests() []Request {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.requests)
}

// Forged returns how many requests had a signature that does not fit.
func (h *Receiver) Forged() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.forged
}

// Wait waits until ok is true. What names the condition in the failure.
func (h *Receiver) Wait(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(patience)
	for {
		h.mu.Lock()
		changed := h.changed
		h.mu.Unlock()
		if ok() {
			return
		}
		select {
		case <-changed:
		case <-time.After(time.Millisecond): // for conditions that change without a webhook
		case <-deadline:
			t.Fatalf("waited too long for: %s", what)
		}
	}
}

// Summaries returns "recipient event" for each event. A failure at Mailgun has its
// severity and reason.
func Summaries(list []Event) (out []string) {
	for _, e := range list {
		name := e.Text("event")
		if s := e.Text("severity"); s != "" {
			name += "/" + s + "/" + e.Text("reason")
		}
		if s := e.Text("type"); s != "" {
			name += "/" + s
		}
		out = append(out, e.Recipient()+" "+name)
	}
	return out
}
