package evidence

import (
	"context"
	"errors"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// foundEvent is an event that a query found.
type foundEvent struct {
	recipient, attempt int // recipient 0: only the address says which
	address            string
	id                 string
	body               []byte
}

// eventKey identifies an event of a provider.
type eventKey struct{ provider, id string }

// file puts found events into the inbox if the outcome of their attempt is unknown, and
// adds their number to found. An event that is in the inbox already counts as waiting and
// is not put there again, because that would only make a long queue longer.
func (l *Lookups) file(ctx context.Context, provider string, byChunk map[models.ID][]foundEvent, found findings) error {
	var posts []models.Post
	var keys []eventKey
	for chunk, events := range byChunk {
		c, err := l.Chunks.Load(ctx, chunk)
		if errors.Is(err, models.ErrNotFound) {
			continue // it belongs to another installation
		}
		if err != nil {
			if _, err = l.Chunks.SkipCorrupt(chunk, err); err != nil {
				return err
			}
			continue
		}
		facts, f := c.EventIDs(), found[chunk]
		for _, ev := range events {
			key := eventKey{provider, ev.id}
			if facts[ev.id] {
				l.filed.Add(key, true)
				continue
			}
			if ev.recipient > c.Size {
				continue
			}
			if attempt := c.View.Entry(ev.attempt); attempt.ByAddress(ev.recipient) {
				if err := l.Chunks.LoadRecipients(ctx, c); err != nil && !errors.Is(err, models.ErrNotFound) {
					return err
				}
				ev.recipient = attempt.RecipientOf(ev.recipient, ev.address, c.Recipients)
			}
			if ev.recipient == 0 || !c.MayHave(provider, ev.recipient, ev.attempt) {
				continue
			}
			if _, ok := l.filed.Get(key); ok {
				f.waiting++
				continue
			}
			f.filed++
			posts, keys = append(posts, models.Post{Body: ev.body}), append(keys, key)
		}
		found[chunk] = f
	}
	var messages []models.Message
	for len(posts) > 0 {
		in := models.Inbox{ID: models.NewInboxID(time.Now()), Provider: provider}
		in.Posts, posts = models.CutPosts(posts)
		if err := l.Store.PutInbox(ctx, in); err != nil {
			return err
		}
		messages = append(messages, models.Message{Kind: models.EventMessage, Provider: provider, ID: in.ID})
	}
	for _, key := range keys {
		l.filed.Add(key, false)
	}
	l.Outbox.Publish(ctx, messages...)
	return nil
}
