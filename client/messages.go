package client

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"iter"
	"net/http"
	"time"
)

// Action says what to do with a message.
type Action string

// The actions.
const (
	// NewMessage creates a message. It changes nothing if the message exists already.
	NewMessage Action = "new"
	// UpdateMessage replaces a message that no provider has, or creates it.
	UpdateMessage Action = "update"
	// CancelMessage keeps a message that no provider has from being sent.
	CancelMessage Action = "cancel"
)

// MessageChange says what to do with a message that has an id of yours.
type MessageChange struct {
	// ID is yours: up to 255 bytes of text. Action is [NewMessage] by default.
	ID     string `json:"id"`
	Action Action `json:"action,omitempty"`
	// To is the address of the recipient. It, Name, Vars and Metadata are those of a [Recipient].
	To       string            `json:"to,omitempty"`
	Name     string            `json:"name,omitempty"`
	Vars     map[string]any    `json:"vars,omitempty"`
	Metadata map[string]string `json:"metadata,omitempty"`
	// The other fields are those of a [NewBatch]. Messages in which they are the same are sent together.
	From        string            `json:"from,omitempty"`
	ReplyTo     []string          `json:"reply_to,omitempty"`
	Template    string            `json:"template,omitempty"`
	Language    string            `json:"language,omitempty"`
	Subject     string            `json:"subject,omitempty"`
	Text        string            `json:"text,omitempty"`
	HTML        string            `json:"html,omitempty"`
	Headers     map[string]string `json:"headers,omitempty"`
	Tags        []string          `json:"tags,omitempty"`
	Category    string            `json:"category,omitempty"`
	TrackOpens  bool              `json:"track_opens,omitempty"`
	TrackClicks bool              `json:"track_clicks,omitempty"`
	Unsubscribe *bool             `json:"unsubscribe,omitempty"`
	Providers   []string          `json:"providers,omitempty"`
	Lane        Lane              `json:"lane,omitempty"`
	OnUnknown   OnUnknown         `json:"on_unknown,omitempty"`
	DeliverAt   time.Time         `json:"deliver_at,omitzero"`
	TimeZone    string            `json:"time_zone,omitempty"`
	SendWindow  *SendWindow       `json:"send_window,omitempty"`
	ExpiresAt   time.Time         `json:"expires_at,omitzero"`
}

// ChangeResult is the result of a [MessageChange].
type ChangeResult struct {
	ID string `json:"id"`
	// `accepted`: the message is stored and will be sent. `unchanged`: it was so already. `updated`: it will be sent in
	// this version, and in no other. `cancelled`: it will not be sent. `rejected`: the record has changed nothing.
	Status  string `json:"status" enum:"accepted,unchanged,updated,cancelled,rejected"`
	Code    string `json:"code,omitempty"`    // Why it was rejected. Stable; docs/errors.md lists all codes.
	Pointer string `json:"pointer,omitempty"` // JSON pointer (RFC 6901) into the record, if a field of it is the cause.
	Detail  string `json:"detail,omitempty"`  // For people. It may change.
	Log     string `json:"log,omitempty"`     // The log of the message as it is now, if there is one.
}

// Strict has PutMessages change nothing if a change is rejected.
func Strict() CallOption { return func(c *call) { c.set("mode", "strict") } }

// PutMessages creates, changes and cancels up to 100,000 messages. Each change is sent when it is produced, and the
// results are in their order. After an error a part of the changes may be carried out: repeat the call until there is
// none. The same changes again change nothing. It needs no [IdempotencyKey].
func (c *Client) PutMessages(
	ctx context.Context, changes iter.Seq[MessageChange], options ...CallOption,
) ([]ChangeResult, error) {
	r, w := io.Pipe()
	written := make(chan struct{})
	go func() {
		defer close(written)
		_ = w.CloseWithError(writeLines(w, changes)) // the reader of the pipe gets the error
	}()
	out, err := c.PutMessageLines(ctx, r, options...)
	_ = r.Close() // the writer stops if the answer came early
	<-written
	return out, err
}

// PutMessageLines is PutMessages for changes that are encoded as JSON already, one in each line.
func (c *Client) PutMessageLines(ctx context.Context, lines io.Reader, options ...CallOption) ([]ChangeResult, error) {
	call := newCall(http.MethodPut, route("messages"), options)
	call.header.Set("Content-Type", "application/x-ndjson")
	call.body = lines
	var out struct{ Results []ChangeResult }
	err := c.do(ctx, call, &out)
	return out.Results, err
}

func writeLines[T any](to io.Writer, values iter.Seq[T]) error {
	w := bufio.NewWriter(to)
	enc := json.NewEncoder(w)
	for v := range values {
		if err := enc.Encode(v); err != nil {
			return err
		}
	}
	return w.Flush()
}

// Message is a message that has an id of yours.
type Message struct {
	ID  string `json:"id"`
	Log Log    `json:"log"`
	// The versions of the message, oldest first; the last is the present one. Up to 20 are kept.
	History []MessageVersion `json:"history"`
}

// MessageVersion is a version of a message.
type MessageVersion struct {
	Log    string    `json:"log"`
	Batch  string    `json:"batch" schema:"BatchId"`
	At     time.Time `json:"at"` // When it was accepted.
	State  State     `json:"state"`
	Reason string    `json:"reason,omitempty"`
	Detail string    `json:"detail,omitempty"` // For people. It may change.
}
