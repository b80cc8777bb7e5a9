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

// Action says what is to become of a message.
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

// MessageChange says what is to become of a message that has an id of yours.
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
	// Status is accepted, unchanged, updated, cancelled or rejected.
	Status string `json:"status"`
	// Code is stable and says why it was rejected. Pointer is a JSON pointer to the cause in it; Detail is for people.
	Code    string `json:"code,omitempty"`
	Pointer string `json:"pointer,omitempty"`
	Detail  string `json:"detail,omitempty"`
	// Log is that of the message as it is now.
	Log string `json:"log,omitempty"`
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
	ID string `json:"id"`
	// Log is that of the message as it is now.
	Log Log `json:"log"`
	// History has the versions of the message, oldest first. The last is the present one.
	History []MessageVersion `json:"history"`
}

// MessageVersion is a version of a message.
type MessageVersion struct {
	Log    string    `json:"log"`
	Batch  string    `json:"batch"`
	At     time.Time `json:"at"` // when it was accepted
	State  State     `json:"state"`
	Reason string    `json:"reason,omitempty"`
	Detail string    `json:"detail,omitempty"`
}

// Message returns the message with an id of yours.
func (c *Client) Message(ctx context.Context, id string, options ...CallOption) (Message, error) {
	var out Message
	return out, c.get(ctx, route("messages", id), nil, &out, options)
}
