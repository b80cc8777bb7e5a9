package codec

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/safedelivr/safedelivr/models"
)

// EncodeFeedEntry returns the stored form of e, without its number and token.
func EncodeFeedEntry(e *models.FeedEntry) []byte {
	return packBinary(64+32*len(e.Chunks), func(w *binaryWriter) { encodeFeedFields(e, w) })
}

// DecodeFeedEntry reverses EncodeFeedEntry. Errors: models.ErrInvalid, models.ErrNewer.
func DecodeFeedEntry(number int, token, raw []byte) (models.FeedEntry, error) {
	e, err := unpackBinary(raw, decodeFeedFields)
	e.Number = number
	copy(e.Token[:], token)
	for i := 0; i < len(e.Chunks) && err == nil; i++ {
		err = knownChanges(e.Chunks[i].Changes)
	}
	return e, err
}

// EncodePublished returns the stored form of t, without its chunk.
func EncodePublished(t *models.Published) []byte {
	return packBinary(64, func(w *binaryWriter) {
		w.int(int64(t.Entry))
		w.int(t.Version)
		encodeChanges(t.Changes, w)
		encodeFeedEvents(t.Events, w)
		w.flags(t.Ended)
		w.int(int64(t.Batch.Ended))
		w.int(int64(t.Batch.Done))
	})
}

// DecodePublished reverses EncodePublished. Errors: models.ErrInvalid, models.ErrNewer.
func DecodePublished(chunk models.ID, raw []byte) (models.Published, error) {
	t, err := unpackBinary(raw, func(t *models.Published, r *binaryReader) {
		t.Entry, t.Version = r.int(), r.int64()
		t.Changes = decodeChanges(r)
		t.Events = decodeFeedEvents(r)
		t.Ended = r.flags() != 0
		t.Batch.Ended, t.Batch.Done = r.int(), r.int()
	})
	t.Chunk = chunk
	if err == nil {
		err = knownChanges(t.Changes)
	}
	return t, err
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

// encodeChanges writes changes of a chunk.
func encodeChanges(cs []models.FeedChange, w *binaryWriter) {
	w.b = binary.AppendUvarint(w.b, uint64(len(cs)))
	for i := range cs {
		c := &cs[i]
		w.word(string(c.State))
		w.word(string(c.Event))
		w.word(string(c.Reason))
		w.word(c.Provider)
		w.int(int64(c.Number))
		w.set(c.Recipients)
	}
}

func decodeChanges(r *binaryReader) (cs []models.FeedChange) {
	for range r.count() {
		c := models.FeedChange{State: models.State(r.word()), Event: models.EventKind(r.word())}
		c.Reason, c.Provider = models.Reason(r.word()), r.word()
		c.Number, c.Recipients = r.int(), r.set()
		cs = append(cs, c)
	}
	return cs
}

func encodeFeedEvents(es []models.FeedEvent, w *binaryWriter) {
	w.b = binary.AppendUvarint(w.b, uint64(len(es)))
	for i := range es {
		w.word(string(es[i].Kind))
		w.word(es[i].Provider)
		w.set(es[i].Recipients)
	}
}

func decodeFeedEvents(r *binaryReader) (es []models.FeedEvent) {
	for range r.count() {
		e := models.FeedEvent{Kind: models.EventKind(r.word()), Provider: r.word()}
		e.Recipients = r.set()
		es = append(es, e)
	}
	return es
}

func encodeFeedFields(e *models.FeedEntry, w *binaryWriter) {
	w.time(e.At)
	w.int(int64(e.Settled))
	w.b = binary.AppendUvarint(w.b, uint64(len(e.Chunks)))
	for i := range e.Chunks {
		c := &e.Chunks[i]
		w.b = append(w.b, c.Chunk[:]...)
		w.int(c.Version)
		encodeChanges(c.Changes, w)
		w.int(int64(c.Ended))
		w.int(int64(c.Done))
	}
	encodeFeedSuppressions(e.Suppressions, w)
	w.text(string(encodeNotices(e.Notices)))
	w.text(string(e.Status))
}

// EncodeFeedSuppressions returns the stored form of additions to suppression lists in feeds.
func EncodeFeedSuppressions(es []models.FeedSuppression) []byte {
	return packBinary(64*len(es), func(w *binaryWriter) { encodeFeedSuppressions(es, w) })
}

// DecodeFeedSuppressions reverses EncodeFeedSuppressions. Errors: models.ErrInvalid, models.ErrNewer.
func DecodeFeedSuppressions(raw []byte) ([]models.FeedSuppression, error) {
	return unpackBinary(raw, func(es *[]models.FeedSuppression, r *binaryReader) { *es = decodeFeedSuppressions(r) })
}

func encodeFeedSuppressions(es []models.FeedSuppression, w *binaryWriter) {
	w.b = binary.AppendUvarint(w.b, uint64(len(es)))
	for i := range es {
		e := &es[i]
		w.b = append(w.b, e.Hash[:]...)
		w.word(e.Category)
		w.word(string(e.Reason))
		w.word(string(e.Origin))
		w.time(e.At)
		w.flags(!e.Log.IsZero(), !e.Expires.IsZero())
		if !e.Log.IsZero() {
			w.b = append(w.b, e.Log[:]...)
		}
		if !e.Expires.IsZero() {
			w.time(e.Expires)
		}
	}
}

func decodeFeedSuppressions(r *binaryReader) (es []models.FeedSuppression) {
	for range r.count() {
		var e models.FeedSuppression
		r.bytes(e.Hash[:])
		e.Category, e.Reason = r.word(), models.SuppressionReason(r.word())
		e.Origin = models.SuppressionOrigin(r.word())
		e.At = r.time()
		marks := r.flags()
		if marks&1 != 0 {
			r.bytes(e.Log[:])
		}
		if marks&2 != 0 {
			e.Expires = r.time()
		}
		if r.bad {
			return nil
		}
		es = append(es, e)
	}
	return es
}

// encodeNotices returns notices as JSON, or nothing if there are none.
func encodeNotices(ns []models.Notice) []byte {
	if len(ns) == 0 {
		return nil
	}
	raw, err := json.Marshal(ns)
	if err != nil {
		panic("codec: " + err.Error()) // notices have only texts, numbers and times
	}
	return raw
}

func decodeFeedFields(e *models.FeedEntry, r *binaryReader) {
	e.At = r.time()
	e.Settled = r.int()
	n := r.count()
	if n > 0 {
		e.Chunks = make([]models.FeedChunk, 0, roomFor(n))
	}
	for range n {
		var c models.FeedChunk
		if r.bytes(c.Chunk[:]); r.bad {
			return
		}
		c.Version = r.int64()
		c.Changes = decodeChanges(r)
		c.Ended, c.Done = r.int(), r.int()
		e.Chunks = append(e.Chunks, c)
	}
	e.Suppressions = decodeFeedSuppressions(r)
	if raw := r.text(); raw != "" && json.Unmarshal([]byte(raw), &e.Notices) != nil {
		r.bad = true
	}
	if raw := r.text(); raw != "" {
		e.Status = []byte(raw)
	}
}
