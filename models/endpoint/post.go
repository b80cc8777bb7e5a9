package endpoint

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/feed"
	"github.com/safedelivr/safedelivr/models/shape"
)

const (
	maxBody         = 1 << 20 // bytes of a batch, unless a single update has more
	describedAtOnce = 50
)

// Part is the part of a feed that a post is about.
type Part struct {
	User  string        `json:"user,omitempty"` // whose feed it is, of an endpoint of everyone's
	From  feed.Position `json:"from"`           // of its first update
	To    feed.Position `json:"to"`             // behind its last update
	Batch bool          `json:"batch,omitempty"`
	Since time.Time     `json:"since"` // when its first update was written
}

// Same reports whether two parts are of one feed and have the same bounds.
func (p *Part) Same(o Part) bool {
	return p.User == o.User && p.From.Compare(o.From) == 0 && p.To.Compare(o.To) == 0
}

// Post is a post to make.
type Post struct {
	User    string // whose feed it is
	From    feed.Position
	Updates []feed.Update
	Batch   bool
	Body    []byte
	Tried   int // how often before
}

// End returns the position behind the updates of a post.
func (p *Post) End() feed.Position { return p.Updates[len(p.Updates)-1].Next }

// ID returns the ID of a post to an endpoint, which is the same each time.
func (p *Post) ID(e *Endpoint) string {
	first := &p.Updates[0]
	text := fmt.Appendf(nil, "%s %s %s %d %d", e.ID, first.Log, first.Event, first.Number, len(p.Updates))
	if s := first.Suppression; s != nil {
		text = append(text, s.ID(feed.ListOf(p.User))...)
	}
	if n := first.Notice; n != nil && n.Endpoint != nil {
		text = fmt.Appendf(text, "%s %d", n.Endpoint.ID, n.Endpoint.Since.UnixNano())
	}
	sum := sha256.Sum256(text)
	return "msg_" + hex.EncodeToString(sum[:16])
}

// Part returns the part of a feed that the post to an endpoint is about.
func (p *Post) Part(e *Endpoint) Part {
	part := Part{From: p.From, To: p.End(), Batch: p.Batch, Since: p.Updates[0].At}
	if e.Everyone {
		part.User = p.User
	}
	return part
}

// Composer makes posts from feeds. Its methods may be called by many goroutines at once.
type Composer struct {
	store     models.FeedStore
	describer *feed.Describer
}

// ComposerStore is the part of models.Store that a Composer needs.
type ComposerStore interface {
	models.FeedStore
	feed.DescribedStore
}

// NewComposer returns a Composer.
func NewComposer(store ComposerStore) *Composer {
	return &Composer{store: store, describer: feed.NewDescriber(store)}
}

// Read returns the updates of a feed after a position that an endpoint wants.
func (c *Composer) Read(
	ctx context.Context, e *Endpoint, user string, after feed.Position, limit int,
) (feed.Page, error) {
	wants := func(ctx context.Context, t feed.Type, r models.Reason, batch models.ID) (bool, error) {
		if !e.wanted(t, r) {
			return false, nil
		}
		b, err := c.describer.Batch(ctx, batch)
		return err == nil && e.Wants(t, &b), err
	}
	return feed.Read(ctx, c.store, user, feed.Query{
		After: after,
		Limit: limit,
		Match: func(ctx context.Context, chunk models.ID, v *models.FeedChange) (bool, error) {
			return wants(ctx, feed.TypeOf(v.State, v.Event), v.Reason, chunk.Batch())
		},
		Suppression: func(ctx context.Context, s *models.FeedSuppression) (bool, error) {
			if s.Log.IsZero() {
				return e.Wants(feed.SuppressionAdded, &feed.Batch{Category: s.Category}), nil
			}
			return wants(ctx, feed.SuppressionAdded, "", s.Log.Batch())
		},
		Notice: func(n *models.Notice) bool { return e.wanted(feed.Type(n.Kind), "") },
	})
}

// Compose returns the posts of updates of a part of a feed: some single ones, or a batch of as many as maxBody has room
// for.
func (c *Composer) Compose(ctx context.Context, e *Endpoint, of Part, updates []feed.Update) ([]Post, error) {
	user, from := cmp.Or(of.User, e.Owner), of.From
	if !of.Batch || !e.manyInPost() {
		updates = updates[:min(len(updates), describedAtOnce)]
		messages, err := c.messages(ctx, e, user, updates)
		posts := make([]Post, len(messages))
		for i := range posts {
			posts[i] = Post{User: user, From: from, Updates: updates[i : i+1], Body: messages[i]}
			from = updates[i].Next
		}
		return posts, err
	}
	var all []json.RawMessage
	size := 0
	for some := range slices.Chunk(updates, describedAtOnce) {
		messages, err := c.messages(ctx, e, user, some)
		if err != nil {
			return nil, err
		}
		for _, m := range messages {
			if size += len(m); size > maxBody && len(all) > 0 {
				return e.batchOf(user, from, updates[:len(all)], all)
			}
			all = append(all, m)
		}
	}
	return e.batchOf(user, from, updates, all)
}

// batchOf returns one post of updates.
func (e *Endpoint) batchOf(
	user string, from feed.Position, updates []feed.Update, messages []json.RawMessage,
) ([]Post, error) {
	var content any = &Message{Type: Batch, Timestamp: updates[len(updates)-1].At, Data: messages}
	if e.Shape == client.ShapeSendGrid {
		content = messages
	}
	body, err := json.Marshal(content)
	return []Post{{User: user, From: from, Updates: updates, Batch: true, Body: body}}, err
}

// messages returns the messages of updates.
func (c *Composer) messages(
	ctx context.Context, e *Endpoint, user string, updates []feed.Update,
) ([]json.RawMessage, error) {
	described, err := c.describer.Describe(ctx, user, updates)
	if err == nil && shape.Name(e.Shape).Foreign() {
		err = c.describer.AddListed(ctx, user, described)
	}
	if err != nil {
		return nil, err
	}
	out := make([]json.RawMessage, len(described))
	for i := range described {
		u := &described[i]
		if e.Everyone {
			u.User = user
		}
		m := Message{Type: u.Type(), Timestamp: u.At, Data: u}
		switch {
		case u.Notice != nil:
			m.Text, m.Provider = u.Text(), u.Provider
		case u.Suppression != nil:
			m.Text = u.Suppression.Text()
		}
		if out[i], err = e.Body(&m); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Again returns the post of a part of a feed; nil: there is nothing to post. What the user wants may have changed since
// the part was posted. If it is more than one post, rest is the part that follows.
func (c *Composer) Again(ctx context.Context, e *Endpoint, part Part) (p *Post, rest *Part, err error) {
	limit := 1
	if part.Batch {
		limit = MaxBatch
	}
	page, err := c.Read(ctx, e, cmp.Or(part.User, e.Owner), part.From, limit)
	if errors.Is(err, feed.ErrExpired) {
		return nil, nil, nil
	}
	n := 0
	for n < len(page.Updates) && page.Updates[n].Next.Compare(part.To) <= 0 {
		n++
	}
	if err != nil || n == 0 {
		return nil, nil, err
	}
	posts, err := c.Compose(ctx, e, part, page.Updates[:n])
	if err != nil {
		return nil, nil, err
	}
	p = &posts[0]
	if end := p.End(); end.Compare(part.To) < 0 {
		part.From = end
		rest = &part
	}
	return p, rest, nil
}
