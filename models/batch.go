package models

import "time"

// Lane separates urgent from bulk mail. Each lane has its own queues and slots.
type Lane string

// The lanes.
const (
	Urgent Lane = "urgent"
	Bulk   Lane = "bulk"
)

// Valid reports whether l is a lane.
func (l Lane) Valid() bool { return l == Urgent || l == Bulk }

// UnknownPolicy says what happens to a recipient if the outcome of its call is still
// unknown at the end of the evidence window.
type UnknownPolicy string

// The policies.
const (
	Hold   UnknownPolicy = "hold"   // the log fails with outcome_unknown
	Resend UnknownPolicy = "resend" // it is sent again and may arrive twice
)

// Valid reports whether p is a policy.
func (p UnknownPolicy) Valid() bool { return p == Hold || p == Resend }

// Address is a mailbox: an addr-spec with an ASCII (punycode) domain and an
// optional display name.
type Address struct {
	Email string `json:"email"`
	Name  string `json:"name,omitempty"`
}

// Content is the message of a batch, before placeholders are filled in. Text, HTML or
// both are set.
type Content struct {
	From        Address   `json:"from"`
	ReplyTo     []Address `json:"reply_to,omitempty"`
	Subject     string    `json:"subject"`
	Text        string    `json:"text,omitempty"`
	HTML        string    `json:"html,omitempty"`
	Headers     []Header  `json:"headers,omitempty"` // others than those that have a field of their own
	Tags        []string  `json:"tags,omitempty"`
	TrackOpens  bool      `json:"track_opens,omitempty"`
	TrackClicks bool      `json:"track_clicks,omitempty"`
}

// Header is a header field of a message. Its value is one line and may have placeholders.
type Header struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Batch is one request, without its recipients. It never changes.
type Batch struct {
	ID         ID                `json:"id"`
	User       string            `json:"user"`
	Content    Content           `json:"content"`
	Providers  []string          `json:"providers,omitempty"` // allowed, tried in this order; empty: all, weighted round robin
	Category   string            `json:"category,omitempty"`  // kind of mail, which a recipient may unsubscribe from
	Metadata   map[string]string `json:"metadata,omitempty"`  // the sender's own, told with each log
	Lane       Lane              `json:"lane"`
	OnUnknown  UnknownPolicy     `json:"on_unknown"`
	Recipients int               `json:"recipients"`
	Duplicates int               `json:"duplicates,omitempty"` // removed repeats
	Chunks     int               `json:"chunks"`
	Sizes      []int             `json:"sizes,omitempty"`    // recipients per chunk; empty: 1,000 in all but the last
	Deadline   time.Time         `json:"deadline"`           // nothing is handed over later
	Redacted   bool              `json:"redacted,omitempty"` // content and recipients were removed by retention
	Damaged    bool              `json:"-"`                  // the batch cannot be read; only ID and User are set
}

// Redact removes the content and the metadata.
func (b *Batch) Redact() { b.Content, b.Metadata, b.Redacted = Content{}, nil, true }

// Created is the time the batch was accepted.
func (b *Batch) Created() time.Time { return b.ID.Time() }

// ChunkSize returns the number of recipients of chunk n.
func (b *Batch) ChunkSize(n int) int {
	switch {
	case n < 0 || n >= b.Chunks:
		return 0
	case n < len(b.Sizes):
		return b.Sizes[n]
	case n < b.Chunks-1:
		return MaxChunkRecipients
	}
	return b.Recipients - n*MaxChunkRecipients
}

// BatchState is the state of a batch as a whole.
type BatchState string

// The states of a batch.
const (
	BatchQueued  BatchState = "queued"  // nothing was handed over yet
	BatchSending BatchState = "sending" // some recipients are not finished
	BatchDone    BatchState = "done"    // every recipient has a final state
	BatchDamaged BatchState = "damaged" // the stored batch cannot be read
)

// StateOf derives the state of a batch from its totals.
func (b *Batch) StateOf(total Summary) BatchState {
	switch {
	case b.Damaged:
		return BatchDamaged
	case total.Queued == 0:
		return BatchDone
	case total.Touched() == 0:
		return BatchQueued
	}
	return BatchSending
}

// Total completes the sum of the stored chunk summaries: it counts recipients of
// chunks without a summary as queued. So the sums add up at any time.
func (b *Batch) Total(stored Summary) Summary {
	missing := int64(b.Recipients) - stored.Accepted
	if missing > 0 {
		stored.Accepted += missing
		stored.Queued += missing
		stored.Untried += missing
	}
	return stored
}

// Recipient is one mailbox of a chunk and the values of its placeholders.
type Recipient struct {
	Email    string            `json:"email"`
	Name     string            `json:"name,omitempty"`
	Vars     map[string]string `json:"vars,omitempty"`
	Metadata map[string]string `json:"metadata,omitempty"` // the sender's own, told with the log
}

// Chunk is up to 1,000 recipients (or MaxChunkBytes) of a batch that are stored,
// claimed and announced together. It never changes.
type Chunk struct {
	ID         ID
	Recipients []Recipient
}

// MaxChunkBytes is the maximum size of a chunk's recipients before compression. A
// single recipient may be larger.
const MaxChunkBytes = 1 << 20

// Size estimates the bytes of r in a chunk.
func (r *Recipient) Size() int {
	n := len(r.Email) + len(r.Name) + 8
	for _, values := range []map[string]string{r.Vars, r.Metadata} {
		for k, v := range values {
			n += len(k) + len(v) + 4
		}
	}
	return n
}
