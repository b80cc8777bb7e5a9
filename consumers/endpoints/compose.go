package endpoints

import (
	"context"
	"encoding/json"
	"slices"

	"github.com/safedelivr/safedelivr/models/endpoint"
	"github.com/safedelivr/safedelivr/models/feed"
)

// compose returns the posts of updates: some single ones, or a batch of as many as maxBody has room for.
func (r *round) compose(
	ctx context.Context, user string, batch bool, from feed.Position, updates []feed.Update,
) ([]post, error) {
	if !batch || r.e.Format != endpoint.Signed {
		updates = updates[:min(len(updates), describedAtOnce)]
		messages, err := r.messages(ctx, user, updates)
		posts := make([]post, len(messages))
		for i := range posts {
			posts[i] = post{user: user, from: from, updates: updates[i : i+1], body: messages[i]}
			from = updates[i].Next
		}
		return posts, err
	}
	var all []json.RawMessage
	size := 0
	for some := range slices.Chunk(updates, describedAtOnce) {
		messages, err := r.messages(ctx, user, some)
		if err != nil {
			return nil, err
		}
		for _, m := range messages {
			if size += len(m); size > maxBody && len(all) > 0 {
				return batchOf(user, from, updates[:len(all)], all)
			}
			all = append(all, m)
		}
	}
	return batchOf(user, from, updates, all)
}

// batchOf returns one post of updates.
func batchOf(
	user string, from feed.Position, updates []feed.Update, messages []json.RawMessage,
) ([]post, error) {
	body, err := json.Marshal(&endpoint.Message{
		Type: endpoint.Batch, Timestamp: updates[len(updates)-1].At, Data: messages,
	})
	return []post{{user: user, from: from, updates: updates, batch: true, body: body}}, err
}

// messages returns the messages of updates.
func (r *round) messages(ctx context.Context, user string, updates []feed.Update) ([]json.RawMessage, error) {
	told, err := r.p.tell.Describe(ctx, user, updates)
	if err != nil {
		return nil, err
	}
	out := make([]json.RawMessage, len(told))
	for i := range told {
		u := &told[i]
		if r.all != nil {
			u.User = user
		}
		m := endpoint.Message{Type: u.Type(), Timestamp: u.At, Data: u}
		switch {
		case u.Notice != nil:
			m.Text, m.Provider = u.Text(), u.Provider
		case u.Suppression != nil:
			m.Text = u.Suppression.Text()
		}
		if out[i], err = r.e.Body(&m); err != nil {
			return nil, err
		}
	}
	return out, nil
}
