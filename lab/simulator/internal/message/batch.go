// Package message holds what the simulator and the providers it imitates know of
// mail: stored batches and their copies, outcomes, and the events of a copy.
package message

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"iter"
	"slices"
	"strings"
	"time"
)

// A Batch is one stored call. It never changes after it was stored, so it is read
// without a lock.
type Batch struct {
	From, Subject string
	Tags          []string
	Stream        string // of the account, at providers that have several
	Time          int64  // when it was accepted, Unix nanoseconds
	Serial        uint64 // number of the call at its account; all its ids follow from it
	Test          bool   // Mailgun test mode: events, but no copies
	Shared        []Pair // metadata of every copy
	Copies        []Copy
	Attachments   []Attachment // of every copy
}

// A Pair is a key of the metadata with its value.
type Pair struct{ Key, Value string }

// Content is what a recipient would read, after substitution.
type Content struct {
	Name    string            `json:"name,omitempty"` // of the recipient
	Subject string            `json:"subject,omitempty"`
	Text    string            `json:"text,omitempty"`
	HTML    string            `json:"html,omitempty"`
	Headers map[string]string `json:"headers,omitempty"` // those that the call sets, and Reply-To
}

// Attachment is a file of a mail.
type Attachment struct {
	Filename  string `json:"filename"`
	Type      string `json:"type"`
	ContentID string `json:"content_id,omitempty"` // of an inline file
	Size      int    `json:"size"`                 // bytes
	SHA256    string `json:"sha256"`               // of the bytes, in hex
}

// NewAttachment returns the attachment with some bytes.
func NewAttachment(filename, kind, contentID string, data []byte) Attachment {
	sum := sha256.Sum256(data)
	return Attachment{filename, kind, contentID, len(data), hex.EncodeToString(sum[:])}
}

// Flags of a copy.
const (
	CC    = 1 << iota
	BCC   // not visible to other recipients
	Joint // part of the same message as the copy before
)

// A Copy is one copy of a batch.
type Copy struct {
	Index    uint32 // within the batch
	Outcome  Outcome
	Group    uint8
	Flags    uint8
	Address  string
	ID       string   // see Batch.Identify
	Metadata []Pair   // its own, which replaces the shared one
	Content  *Content // nil unless content is kept
}

// Identify numbers the copies and sets the ID of each: its metadata of the key, or its
// address in lower case. All copies of a message have the same metadata, so that
// behind the first one the address follows, after a slash.
func (b *Batch) Identify(key string) {
	for i := range b.Copies {
		c := &b.Copies[i]
		address, value := strings.ToLower(c.Address), ""
		for _, list := range [...][]Pair{b.Shared, c.Metadata} {
			for _, p := range list {
				if p.Key == key {
					value = p.Value
				}
			}
		}
		c.Index, c.ID = uint32(i), cmp.Or(value, address)
		if value != "" && c.Flags&Joint != 0 {
			c.ID += "/" + address
		}
	}
}

// Metadata yields the metadata of a copy. A value of the copy replaces a shared one.
func (b *Batch) Metadata(c *Copy) iter.Seq2[string, string] {
	return func(yield func(key, value string) bool) {
		for _, p := range b.Shared {
			own := slices.ContainsFunc(c.Metadata, func(o Pair) bool { return o.Key == p.Key })
			if !own && !yield(p.Key, p.Value) {
				return
			}
		}
		for _, p := range c.Metadata {
			if !yield(p.Key, p.Value) {
				return
			}
		}
	}
}

// Addresses returns the addresses of the copies with these flags of role.
func (b *Batch) Addresses(flags uint8) []string {
	list := []string{}
	for i := range b.Copies {
		if c := &b.Copies[i]; c.Flags&(CC|BCC) == flags {
			list = append(list, c.Address)
		}
	}
	return list
}

// Accepted returns when the provider took the batch.
func (b *Batch) Accepted() time.Time { return time.Unix(0, b.Time) }
