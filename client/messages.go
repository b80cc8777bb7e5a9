package client

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
)

// MessageResult tells what became of a message.
type MessageResult struct {
	// Index is that of the message, from 0. Status is accepted or rejected.
	Index  int    `json:"index"`
	Status string `json:"status"`
	// Batch is the batch that the message became a part of. Log is set if the message has one recipient.
	Batch string `json:"batch,omitempty"`
	Log   string `json:"log,omitempty"`
	// Pointer is a JSON pointer to the first mistake of a rejected message. Code is stable; Detail is for people.
	Pointer string `json:"pointer,omitempty"`
	Code    string `json:"code,omitempty"`
	Detail  string `json:"detail,omitempty"`
}

// MessageResults tells what became of messages.
type MessageResults struct {
	Accepted int             `json:"accepted"`
	Rejected int             `json:"rejected"`
	Results  []MessageResult `json:"results"`
}

// CreateMessages sends up to 1,000 messages with contents, options and recipients of their own. Messages with the same
// content and options become one batch. A mistake refuses all messages, or with [Permissive] rejects its own. The
// options must have an [IdempotencyKey]: after an error a part of the messages may be sent, and a repeat with the
// same key sends the others.
func (c *Client) CreateMessages(ctx context.Context, ms []NewBatch, options ...CallOption) (MessageResults, error) {
	var out MessageResults
	return out, c.post(ctx, route("batches"), messages{ms}, &out, options)
}

type messages struct {
	Messages []NewBatch `json:"messages"`
}

// MessagesPlan is what would happen to messages if they were sent now.
type MessagesPlan struct {
	DryRun bool `json:"dry_run"` // it is true
	MessageResults
	Batches []MessageBatch `json:"batches"`
}

// MessageBatch is a batch that messages would become.
type MessageBatch struct {
	// Messages are the indexes of the messages.
	Messages []int `json:"messages"`
	Plan     Plan  `json:"plan"`
}

// PlanMessages checks messages and says what would happen to them. Nothing is stored or sent.
func (c *Client) PlanMessages(ctx context.Context, ms []NewBatch, options ...CallOption) (MessagesPlan, error) {
	call := newCall(http.MethodPost, route("batches"), options)
	call.set("dry_run", "true")
	var out MessagesPlan
	raw, err := json.Marshal(messages{ms})
	if err != nil {
		return out, err
	}
	call.body = bytes.NewReader(raw)
	return out, c.do(ctx, call, &out)
}
