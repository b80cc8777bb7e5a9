// Package endpoint has the addresses of users' applications to which updates are posted, and
// how posts are signed.
package endpoint

import (
	"cmp"
	"context"
	"encoding/json"
	"net/mail"
	"slices"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/documents"
	"github.com/safedelivr/safedelivr/models/feed"
	"github.com/safedelivr/safedelivr/models/shape"
)

// The types of posts that are not about one update.
const (
	Batch feed.Type = "batch" // of several updates, each with its type
	Test  feed.Type = "test"
)

// MaxBatch is how many updates a post has at most.
const MaxBatch = 1000

// DefaultAtOnce is how many posts to an endpoint are made at once if it does not say.
const DefaultAtOnce = 10

// Endpoint is an address to which updates of its user's mail are posted, or notices of the installation.
type Endpoint struct {
	ID    string `json:"id"`
	Owner string `json:"owner"` // ID of a user, or feed.Installation
	client.EndpointSettings
	Start    Start     `json:"start,omitzero"` // of Everyone
	Secrets  []Secret  `json:"secrets"`        // the newest first; it says how posts are signed
	Created  time.Time `json:"created"`
	Disabled *Disabled `json:"disabled,omitempty"`
	// Generation counts the changes that the posting worker has to apply: the endpoint was enabled again, or has a Replay.
	// Replay is the position from which updates are posted from now on; nil: where it is. Again are posts to be made
	// again.
	Generation int            `json:"generation"`
	Replay     *feed.Position `json:"replay,omitempty"`
	Again      []Part         `json:"again,omitempty"`
}

// Letter is the body of a post of the format mail.
type Letter struct {
	Subject  string `json:"subject"`
	Text     string `json:"text"`
	Provider string `json:"provider,omitempty"` // that it is about
}

// Mailer accepts the mail of a post, once for an ID of a post, and says what was accepted.
type Mailer func(ctx context.Context, e *Endpoint, post string, body []byte) (answer string, err error)

// Addresses returns the addresses of a URL that begins with mailto:, or nil if it has others.
func Addresses(url string) (out []string) {
	list, ok := strings.CutPrefix(url, "mailto:")
	for text := range strings.SplitSeq(list, ",") {
		a, err := mail.ParseAddress(text)
		if !ok || err != nil || a.Name != "" || a.Address != strings.TrimSpace(text) {
			return nil
		}
		out = append(out, a.Address)
	}
	return out
}

// Disabled says why nothing is posted to an endpoint.
type Disabled struct {
	At  time.Time `json:"at"`
	Why string    `json:"why"`
}

// Enabled reports whether posts are made to the endpoint, unless its owner is disabled.
func (e *Endpoint) Enabled() bool {
	state, _ := e.State(&State{})
	return state == client.EndpointStateActive
}

// State returns the state of the endpoint, as client.Endpoint has it, and why it is not active. s is how
// far its posts are.
func (e *Endpoint) State(s *State) (state, why string) {
	switch {
	case e.Disabled != nil:
		return client.EndpointStateDisabled, e.Disabled.Why
	case s.Failures > 0 && s.Generation == e.Generation:
		return client.EndpointStateFailing, s.Why()
	}
	return client.EndpointStateActive, ""
}

// Body returns the body of a post with one message. In another shape than the standard one, the body of a test post is
// an example.
func (e *Endpoint) Body(m *Message) ([]byte, error) {
	if name := shape.Name(e.Shape); name.Foreign() {
		d, ok := m.Data.(*feed.Described)
		if !ok {
			d = feed.Example(m.Timestamp)
		}
		return json.Marshal(name.Event(d))
	}
	switch e.Format {
	case client.FormatSlack:
		return json.Marshal(map[string]string{"text": slackText.Replace(m.Text)})
	case client.FormatMail:
		subject := "Safedelivr: " + m.Type.Words()
		if m.Provider != "" {
			subject += " (" + m.Provider + ")"
		}
		return json.Marshal(Letter{Subject: subject, Text: m.Text, Provider: m.Provider})
	}
	return json.Marshal(m)
}

// Width returns how many posts are made at once.
func (e *Endpoint) Width() int {
	if e.Ordered {
		return 1
	}
	return cmp.Or(e.AtOnce, DefaultAtOnce)
}

// slackText escapes what Slack takes for a command.
var slackText = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;")

// Message is the body of a post, as Standard Webhooks describes it.
type Message struct {
	Type      feed.Type `json:"type"`
	Timestamp time.Time `json:"timestamp"`
	Data      any       `json:"data"`
	Text      string    `json:"-"` // what is said to people
	Provider  string    `json:"-"` // that it is about
}

// wanted reports whether updates of a type with a reason are posted.
func (e *Endpoint) wanted(t feed.Type, r models.Reason) bool {
	return feed.Wanted(e.Events, t) && shape.Name(e.Shape).Has(t, r)
}

// manyInPost reports whether a post may have several updates.
func (e *Endpoint) manyInPost() bool {
	return e.Format == "" && (!shape.Name(e.Shape).Foreign() || e.Shape == client.ShapeSendGrid)
}

// Wants reports whether updates of a type about the mail of a batch are posted.
func (e *Endpoint) Wants(t feed.Type, b *feed.Batch) bool {
	if !e.wanted(t, "") {
		return false
	}
	if len(e.Categories) > 0 && !slices.Contains(e.Categories, b.Category) {
		return false
	}
	return len(e.Tags) == 0 || slices.ContainsFunc(b.Tags, func(t string) bool { return slices.Contains(e.Tags, t) })
}

// State is how far the posts of an endpoint are. The worker that posts owns it.
type State struct {
	Next         feed.Position `json:"next"`               // behind the updates that were posted, or wait for a retry
	Generation   int           `json:"generation"`         // that of the endpoint which was taken over
	Retries      []Retry       `json:"retries,omitempty"`  // posts that failed, in the order of the feed
	Failures     int           `json:"failures,omitempty"` // since the last post that was accepted
	FailingSince time.Time     `json:"failing_since,omitzero"`
	Gone         bool          `json:"gone,omitempty"`     // it answered 410
	Posted       int64         `json:"posted"`             // posts that were accepted
	GivenUp      int64         `json:"given_up"`           // posts whose retries are used up
	Attempts     []Attempt     `json:"attempts,omitempty"` // the newest, newest first
}

// Retry is a post that waits for another attempt.
type Retry struct {
	Part
	Tried int       `json:"tried"`
	At    time.Time `json:"at"`
}

// Attempt is an attempt to post.
type Attempt struct {
	At      time.Time `json:"at"`
	Post    string    `json:"post"` // its ID
	Updates int       `json:"updates"`
	Type    feed.Type `json:"type,omitempty"` // of a single update
	Log     string    `json:"log,omitempty"`
	Tried   int       `json:"tried"` // how often before
	Status  int       `json:"http_status,omitempty"`
	Answer  string    `json:"answer,omitempty"` // its beginning, or why there is none
	Took    int64     `json:"took_ms"`
	Part    Part      `json:"part,omitzero"` // what was posted
}

// OK reports whether the post was accepted.
func (a *Attempt) OK() bool { return a.Status/100 == 2 }

// Words says why the post was not accepted, or "" if it was.
func (a *Attempt) Words() string {
	switch {
	case a.OK():
		return ""
	case a.Status == 0:
		return a.Answer
	}
	return answerWords(a.Status)
}

// Why says why the newest post that failed was not accepted, or "" if none failed.
func (s *State) Why() string {
	for i := range s.Attempts {
		if words := s.Attempts[i].Words(); words != "" {
			return words
		}
	}
	return ""
}

// Attempt returns the newest of the attempts at a post, or nil.
func (s *State) Attempt(post string) *Attempt {
	for i := range s.Attempts {
		if s.Attempts[i].Post == post {
			return &s.Attempts[i]
		}
	}
	return nil
}

// Endpoints and their states have one owner, so that one read finds those of all users.
const (
	owner     = "*"
	stateKind = "endpoint_state"
)

// In returns the endpoints in a store.
func In(store models.DocumentStore) *documents.Of[Endpoint] {
	return &documents.Of[Endpoint]{Store: store, Owner: owner, Kind: "endpoint"}
}

// Key returns where an endpoint is in the list of all.
func (e *Endpoint) Key() string { return e.Owner + "/" + e.ID }

// Remove removes an endpoint with its cursors and its state.
func Remove(ctx context.Context, store models.DocumentStore, e *Endpoint) error {
	docs, err := store.DocumentsOf(ctx, owner, cursorKind, cursorKeys(e))
	if err == nil {
		err = store.RemoveDocuments(ctx, owner, cursorKind, docs)
	}
	if err == nil {
		err = In(store).Remove(ctx, e.Owner, e.ID)
	}
	if err != nil {
		return err
	}
	return store.DeleteDocument(ctx, owner, stateKind, e.Key())
}

// StateOf returns the state of an endpoint and its version. An endpoint that is new has none.
func StateOf(ctx context.Context, store models.DocumentStore, e *Endpoint) (s State, version int, err error) {
	return models.ReadDocument[State](ctx, store, owner, stateKind, e.Key())
}

// TakeOver applies the changes of an endpoint.
func (s *State) TakeOver(e *Endpoint) {
	if s.Generation == e.Generation {
		return
	}
	s.Generation, s.Failures, s.FailingSince, s.Gone = e.Generation, 0, time.Time{}, false
	for i := range s.Retries {
		s.Retries[i].At = time.Time{}
	}
	if e.Replay != nil {
		s.Next, s.Retries = *e.Replay, nil
	}
	for _, part := range e.Again {
		if !slices.ContainsFunc(s.Retries, func(t Retry) bool { return t.Same(part) }) {
			s.Retries = append(s.Retries, Retry{Part: part})
		}
	}
}

// PutState stores the state of an endpoint. version is the one that is stored now. Errors: models.ErrConflict.
func PutState(ctx context.Context, store models.DocumentStore, e *Endpoint, s *State, version int) error {
	raw, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return store.PutDocument(ctx, owner, stateKind, models.Document{Key: e.Key(), Version: version + 1, Value: raw})
}
