package models

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

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

	Attachments []Attachment `json:"attachments,omitempty"`
}

// Size returns the bytes of subject, bodies and attachments, each as it is.
func (c *Content) Size() int64 {
	return int64(len(c.Subject)+len(c.Text)+len(c.HTML)) + c.AttachmentSize()
}

// HeadersOf returns the header fields of the mail to a recipient. First come those of the content; the recipient's own
// fields replace equal names. Then come its other own fields.
func (c *Content) HeadersOf(r *Recipient) []Header {
	if len(r.Headers) == 0 {
		return c.Headers
	}
	out := slices.Clone(c.Headers)
	for _, own := range r.Headers {
		if at := FindHeader(c.Headers, own.Name); at < 0 {
			out = append(out, own)
		} else {
			out[at].Value = own.Value
		}
	}
	return out
}

// Slugs returns the first tags as every provider takes them: - stands for all but letters, digits and some marks.
func (c *Content) Slugs(most int) (out []string) {
	for _, tag := range c.Tags {
		slug := strings.Map(func(r rune) rune {
			if !tagRune(r) {
				return '-'
			}
			return r
		}, tag)
		if slug = slug[:min(len(slug), maxSlug)]; len(out) < most && !slices.Contains(out, slug) {
			out = append(out, slug)
		}
	}
	return out
}

// maxSlug is the length of the longest tag that every provider takes.
const maxSlug = 64

// tagRune reports whether every provider takes a character of a tag.
func tagRune(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("_-.:", r)
}

// FindHeader returns the index of the field with a name, in any case, or -1.
func FindHeader(headers []Header, name string) int {
	return slices.IndexFunc(headers, func(h Header) bool { return strings.EqualFold(h.Name, name) })
}

// AttachmentSize returns the bytes of all attachments.
func (c *Content) AttachmentSize() (n int64) {
	for i := range c.Attachments {
		n += c.Attachments[i].Size
	}
	return n
}

// Attachment describes a file of a message. Its bytes are stored beside the batch, in pieces.
type Attachment struct {
	Filename  string `json:"filename"`
	Type      string `json:"content_type"`         // media type without parameters
	ContentID string `json:"content_id,omitempty"` // of an inline image, as HTML refers to it (cid:); empty: not inline
	Size      int64  `json:"size"`                 // bytes
	SHA256    string `json:"sha256"`               // of the bytes, in hex
}

// PieceSize is the size in bytes of all pieces of an attachment but the last, which may be smaller.
const PieceSize = 256 << 10

// OpenAttachment returns a reader of an attachment. It holds one piece at a time. Its errors
// are those of Piece, and ErrDamaged if the bytes are not those that were stored.
func OpenAttachment(ctx context.Context, s AttachmentStore, batch ID, a *Attachment) io.Reader {
	return &attachmentReader{ctx: ctx, store: s, batch: batch, attachment: a, hash: sha256.New()}
}

type attachmentReader struct {
	ctx        context.Context //nolint:containedctx // a reader belongs to one call
	store      AttachmentStore
	batch      ID
	attachment *Attachment
	hash       hash.Hash
	next       int // piece
	read       int64
	left       []byte // of the piece that was read last
}

// Read implements io.Reader.
func (r *attachmentReader) Read(p []byte) (int, error) {
	if len(r.left) == 0 {
		if r.read >= r.attachment.Size {
			if hex.EncodeToString(r.hash.Sum(nil)) != r.attachment.SHA256 {
				return 0, fmt.Errorf("attachment of %s: %w", r.batch, ErrDamaged)
			}
			return 0, io.EOF
		}
		piece, err := r.store.Piece(r.ctx, r.batch, r.attachment.SHA256, r.next)
		if err == nil && len(piece) == 0 {
			err = ErrDamaged
		}
		if err != nil {
			return 0, fmt.Errorf("attachment of %s: %w", r.batch, err)
		}
		_, _ = r.hash.Write(piece) // a hash never fails
		r.next++
		r.read += int64(len(piece))
		r.left = piece
	}
	n := copy(p, r.left)
	r.left = r.left[n:]
	return n, nil
}

// TemplateUse says which template the content of a batch was made from.
type TemplateUse struct {
	Name     string `json:"name"`
	Version  int    `json:"version"`
	Language string `json:"language,omitempty"` // empty: the default
}

// Header is a header field of a message. Its value is one line and may have placeholders.
type Header struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Batch is one request, without its recipients. It never changes.
type Batch struct {
	ID        ID                `json:"id"`
	User      string            `json:"user"`
	Content   Content           `json:"content"`
	Providers []string          `json:"providers,omitempty"` // allowed, in this order; empty: all, weighted round robin
	Template  *TemplateUse      `json:"template,omitempty"`
	Category  string            `json:"category,omitempty"` // kind of mail, which a recipient may unsubscribe from
	Metadata  map[string]string `json:"metadata,omitempty"` // the sender's own, shown with each log
	// PassUnsubscribes lets the mail reach recipients who unsubscribed from its category.
	PassUnsubscribes bool            `json:"pass_unsubscribes,omitempty"`
	Unsubscribe      *Unsubscription `json:"unsubscribe,omitempty"` // nil: recipients have no link to unsubscribe
	Groups           []Group         `json:"groups,omitempty"`      // in which the sums count it
	Envelope         *Envelope       `json:"envelope,omitempty"`    // nil: each recipient has a mail of its own
	Lane             Lane            `json:"lane"`
	Via              string          `json:"via,omitempty"`        // the dialect or protocol of the request; empty: our API
	PartOf           ID              `json:"part_of,omitzero"`     // first batch of the request; zero: itself
	LaneLimit        Limit           `json:"lane_limit,omitempty"` // that made it bulk; empty: it is as requested
	OnUnknown        UnknownPolicy   `json:"on_unknown"`
	Recipients       int             `json:"recipients"`
	Duplicates       int             `json:"duplicates,omitempty"` // removed repeats
	Suppressed       int             `json:"suppressed,omitempty"` // recipients that were suppressed at acceptance
	Rejected         int             `json:"rejected,omitempty"`   // recipients of the request that were left out
	Chunks           int             `json:"chunks"`
	Sizes            []int           `json:"sizes,omitempty"`       // of the chunks; empty: 1,000 but in the last
	DeliverAt        time.Time       `json:"deliver_at,omitzero"`   // nothing is handed over earlier
	Window           *SendWindow     `json:"send_window,omitempty"` // nil: mail may leave at any time
	ExpiresAt        time.Time       `json:"expires_at"`            // nothing is handed over later
	Own              []OwnTimes      `json:"own,omitempty"`         // of the recipients in its last chunks, by From
	OwnHeaders       OwnHeaders      `json:"own_headers,omitempty"` // of its recipients
	ClientIDs        bool            `json:"client_ids,omitempty"`  // its recipients have a ClientID
	Redacted         bool            `json:"redacted,omitempty"`    // content and recipients were removed by retention
	Damaged          bool            `json:"-"`                     // the batch cannot be read; only ID and User are set

	fixed bool // its times are the own ones of some recipients: see OfChunk
}

// OwnHeaders says whether the recipients of a batch have header fields of their own. It is empty if none has.
type OwnHeaders string

// The kinds of header fields of recipients.
const (
	SameNames      OwnHeaders = "same"      // the mails to all recipients have fields of the same names
	DifferentNames OwnHeaders = "different" // they may have not
)

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
	BatchScheduled BatchState = "scheduled" // the time of no recipient has come
	BatchQueued    BatchState = "queued"    // nothing was handed over yet
	BatchSending   BatchState = "sending"   // some recipients are queued
	BatchSent      BatchState = "sent"      // none is queued; reports on some are missing
	BatchDone      BatchState = "done"      // every recipient has a final state
	BatchDamaged   BatchState = "damaged"   // the stored batch cannot be read
)

// StateOf derives the state of a batch at a time from its totals.
func (b *Batch) StateOf(total Summary, now time.Time) BatchState {
	switch {
	case b.Damaged:
		return BatchDamaged
	case total.Open() == 0:
		return BatchDone
	case total.Queued == 0:
		return BatchSent
	case b.Begins().After(now):
		return BatchScheduled
	case total.Touched() == 0:
		return BatchQueued
	}
	return BatchSending
}

// Total completes the sum of the stored chunk summaries: it counts recipients of
// chunks without a summary as queued. So the sums add up at any time.
func (b *Batch) Total(stored Summary) Summary {
	stored.Batches = 1
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
	Metadata map[string]string `json:"metadata,omitempty"`  // the sender's own, shown with the log
	Headers  []Header          `json:"headers,omitempty"`   // in place of those of the content with the same names
	ClientID string            `json:"client_id,omitempty"` // of the message, if its sender gave it one
}

// Chunk is up to 1,000 recipients (or MaxChunkBytes) of a batch that are stored,
// claimed and announced together. It never changes.
type Chunk struct {
	ID         ID
	Recipients []Recipient
}

// Role says where the mail of an envelope names a recipient. The words are part of the API.
type Role string

// The roles.
const (
	To  Role = "to"
	CC  Role = "cc"
	BCC Role = "bcc"
)

// Envelope makes the recipients of a batch those of one mail. The first are in To, the next ones
// are in Cc, and the last ones in Bcc. All are in chunk 0.
type Envelope struct {
	To  int `json:"to,omitempty"` // number of recipients; 0: one
	CC  int `json:"cc,omitempty"`
	BCC int `json:"bcc,omitempty"`
}

// InTo returns the numbers of the recipients in To.
func (e *Envelope) InTo() Set { return SetTo(max(e.To, 1)) }

// RoleOf returns the role of recipient n. It is empty if the batch is no envelope.
func (b *Batch) RoleOf(n int) Role {
	switch {
	case b.Envelope == nil:
		return ""
	case n <= max(b.Envelope.To, 1):
		return To
	case n <= max(b.Envelope.To, 1)+b.Envelope.CC:
		return CC
	}
	return BCC
}

// Values returns the recipient whose values the mail to recipient n of a chunk has: in an envelope
// the first, else recipient n.
func (b *Batch) Values(n int, rs []Recipient) *Recipient {
	if b.Envelope != nil {
		n = 1
	}
	return &rs[n-1]
}

// Shared returns the addresses of an envelope as recipient n knows them.
func (b *Batch) Shared(n int, rs []Recipient) (to, cc, bcc []Address) {
	for i := range rs {
		a := Address{Email: rs[i].Email, Name: rs[i].Name}
		switch role := b.RoleOf(i + 1); {
		case role == To && !rs[i].Erased():
			to = append(to, a)
		case role == CC && !rs[i].Erased():
			cc = append(cc, a)
		case role == BCC && i == n-1:
			bcc = append(bcc, a)
		}
	}
	return to, cc, bcc
}

// CallRecipients returns recipients of a chunk as they are handed to a provider: together in one
// mail, or each with a mail of its own.
func (b *Batch) CallRecipients(chunk ID, who Set, rs []Recipient, together bool) []CallRecipient {
	out := make([]CallRecipient, 0, who.Len())
	var shared map[string]string
	if b.Envelope != nil {
		shared = map[string]string{"email": rs[0].Email, "name": rs[0].Name}
		maps.Copy(shared, rs[0].Vars)
	}
	for n := range who.All() {
		r := rs[n-1]
		if shared != nil {
			r.Vars, r.Headers = shared, rs[0].Headers
		}
		one := b.ForCall(chunk.Log(n), r)
		if together {
			one.Role = b.RoleOf(n)
		}
		out = append(out, one)
	}
	return out
}

// MaxChunkBytes is the maximum size of a chunk's recipients before compression. A
// single recipient may be larger.
const MaxChunkBytes = 1 << 20

// Size estimates the bytes of r in a chunk.
func (r *Recipient) Size() int {
	n := len(r.Email) + len(r.Name) + len(r.ClientID) + 8
	for _, values := range []map[string]string{r.Vars, r.Metadata} {
		for k, v := range values {
			n += len(k) + len(v) + 4
		}
	}
	for _, h := range r.Headers {
		n += len(h.Name) + len(h.Value) + 4
	}
	return n
}
