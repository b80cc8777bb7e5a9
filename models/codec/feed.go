package codec

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/safedelivr/safedelivr/models"
)

// EncodeFeedEntry returns the stored form of e, without its number and token.
func EncodeFeedEntry(e *models.FeedEntry) []byte {
	return packFields(64+32*len(e.Chunks), e, entryOfFeedFields)
}

// DecodeFeedEntry reverses EncodeFeedEntry. Errors: models.ErrInvalid, models.ErrNewer.
func DecodeFeedEntry(number int, token, raw []byte) (models.FeedEntry, error) {
	e, err := unpackFields(raw, entryOfFeedFields)
	e.Number = number
	copy(e.Token[:], token)
	for i := 0; i < len(e.Chunks) && err == nil; i++ {
		err = knownChanges(e.Chunks[i].Changes)
	}
	return e, err
}

// EncodePublished returns the stored form of t, without its chunk.
func EncodePublished(t *models.Published) []byte { return packFields(64, t, publishedFields) }

// DecodePublished reverses EncodePublished. Errors: models.ErrInvalid, models.ErrNewer.
func DecodePublished(chunk models.ID, raw []byte) (models.Published, error) {
	t, err := unpackFields(raw, publishedFields)
	t.Chunk = chunk
	if err == nil {
		err = knownChanges(t.Changes)
	}
	return t, err
}

// EncodeFeedSuppressions returns the stored form of additions to suppression lists in feeds.
func EncodeFeedSuppressions(es []models.FeedSuppression) []byte {
	return packFields(64*len(es), &es, suppressionsFields)
}

// DecodeFeedSuppressions reverses EncodeFeedSuppressions. Errors: models.ErrInvalid, models.ErrNewer.
func DecodeFeedSuppressions(raw []byte) ([]models.FeedSuppression, error) {
	return unpackFields(raw, suppressionsFields)
}

// knownChanges returns an error if this version of the program does not know the state or the
// event of a change.
func knownChanges(cs []models.FeedChange) error {
	for i := range cs {
		c := &cs[i]
		event := slices.Contains(models.FeedEvents, c.Event)
		if !event && (c.Event != "" || !c.State.Valid() || c.State == models.Sent) {
			return fmt.Errorf("%w: update to %q%q", models.ErrNewer, c.State, c.Event)
		}
	}
	return nil
}

func entryOfFeedFields(f *fields, e *models.FeedEntry) {
	f.time(&e.At)
	number(f, &e.Settled)
	list(f, &e.Chunks, func(f *fields, c *models.FeedChunk) {
		f.bytes(c.Chunk[:])
		number(f, &c.Version)
		list(f, &c.Changes, changeFields)
		number(f, &c.Ended)
		number(f, &c.Done)
	})
	suppressionsFields(f, &e.Suppressions)
	noticesFields(f, &e.Notices)
	if text(f, &e.Status); f.reads && len(e.Status) == 0 {
		e.Status = nil
	}
}

func publishedFields(f *fields, t *models.Published) {
	number(f, &t.Entry)
	number(f, &t.Version)
	list(f, &t.Changes, changeFields)
	list(f, &t.Events, func(f *fields, e *models.FeedEvent) {
		word(f, &e.Kind)
		word(f, &e.Provider)
		f.set(&e.Recipients)
	})
	f.flags(&t.Ended)
	number(f, &t.Batch.Ended)
	number(f, &t.Batch.Done)
}

func changeFields(f *fields, c *models.FeedChange) {
	word(f, &c.State)
	word(f, &c.Event)
	word(f, &c.Reason)
	word(f, &c.Provider)
	number(f, &c.Number)
	f.set(&c.Recipients)
}

func suppressionsFields(f *fields, es *[]models.FeedSuppression) {
	list(f, es, func(f *fields, e *models.FeedSuppression) {
		f.bytes(e.Hash[:])
		word(f, &e.Category)
		word(f, &e.Reason)
		word(f, &e.Origin)
		f.time(&e.At)
		log, expires := !e.Log.IsZero(), !e.Expires.IsZero()
		if f.flags(&log, &expires); log {
			f.bytes(e.Log[:])
		}
		if expires {
			f.time(&e.Expires)
		}
	})
}

// noticesFields has notices as JSON, or nothing if there are none.
func noticesFields(f *fields, ns *[]models.Notice) {
	var raw []byte
	if len(*ns) > 0 {
		var err error
		if raw, err = json.Marshal(*ns); err != nil {
			panic("codec: " + err.Error()) // notices have only texts, numbers and times
		}
	}
	text(f, &raw)
	if f.reads && len(raw) > 0 && json.Unmarshal(raw, ns) != nil {
		f.bad = true
	}
}
