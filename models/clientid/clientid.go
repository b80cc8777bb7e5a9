// Package clientid stores which logs the messages of a user became, by the ids that the user gave them.
package clientid

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/safedelivr/safedelivr/models"
)

// MaxLen is the length in bytes of the longest id.
const MaxLen = 255

// maxVersions is how many versions of a message are kept. The oldest are dropped.
const maxVersions = 20

// Version is a message in one of its versions.
type Version struct {
	Log  models.ID `json:"l"`
	Hash string    `json:"h"` // of what the user sent
}

// Message has the versions of a message, oldest first. Of all but the last none can be sent any more. A log
// whose batch does not exist says nothing: the batch was never stored, or it is not kept any more.
type Message struct {
	Versions []Version `json:"v"`
	stored   int       // version of the document; 0: there is none
}

// Add returns the message with a further version.
func (m *Message) Add(v Version) Message {
	vs := append(slices.Clone(m.Versions), v)
	return Message{Versions: vs[max(0, len(vs)-maxVersions):], stored: m.stored}
}

// Last returns the last version; nil: there is none.
func (m *Message) Last() *Version {
	if len(m.Versions) == 0 {
		return nil
	}
	return &m.Versions[len(m.Versions)-1]
}

// Documents of messages are divided by the first byte of their keys: those of one kind change together.
// A key is a digest, so that no id can be read from it.
func keyOf(id string) string {
	sum := sha256.Sum256([]byte(id))
	return hex.EncodeToString(sum[:16])
}

func kindOf(key string) string { return "message/" + key[:2] }

const atOnce = 16

// eachKind calls f for the keys of each kind, some at the same time.
func eachKind(ctx context.Context, keys []string, f func(ctx context.Context, kind string, keys []string) error) error {
	kinds := map[string][]string{}
	for _, k := range keys {
		kinds[kindOf(k)] = append(kinds[kindOf(k)], k)
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(atOnce)
	for kind, keys := range kinds {
		g.Go(func() error { return f(ctx, kind, keys) })
	}
	return g.Wait()
}

// read returns the documents with keys, by their keys.
func read(
	ctx context.Context, s models.DocumentStore, user string, keys []string,
) (map[string]models.Document, error) {
	found := make(chan []models.Document, len(keys))
	err := eachKind(ctx, keys, func(ctx context.Context, kind string, keys []string) error {
		ds, err := s.DocumentsOf(ctx, user, kind, keys)
		found <- ds
		return err
	})
	close(found)
	out := make(map[string]models.Document, len(keys))
	for ds := range found {
		for _, d := range ds {
			out[d.Key] = d
		}
	}
	return out, err
}

// Read returns the messages of a user that are stored under ids.
func Read(ctx context.Context, s models.DocumentStore, user string, ids []string) (map[string]Message, error) {
	keys := make([]string, len(ids))
	for i, id := range ids {
		keys[i] = keyOf(id)
	}
	ds, err := read(ctx, s, user, keys)
	if err != nil {
		return nil, fmt.Errorf("messages: %w", err)
	}
	out := make(map[string]Message, len(ds))
	for i, id := range ids {
		d, ok := ds[keys[i]]
		if !ok {
			continue
		}
		m := Message{stored: d.Version}
		if err := d.Decode(&m); err != nil {
			return nil, err
		}
		out[id] = m
	}
	return out, nil
}

// Put stores messages of a user by their ids. Each is stored only if it was not changed since it was read. Put
// returns the ids of the others. After an error any of them may be stored.
func Put(
	ctx context.Context, s models.DocumentStore, user string, ms map[string]Message,
) (changed map[string]bool, err error) {
	ids, values := make(map[string]string, len(ms)), make(map[string]models.Document, len(ms))
	for id, m := range ms {
		raw, err := json.Marshal(&m)
		if err != nil {
			return nil, err
		}
		k := keyOf(id)
		ids[k], values[k] = id, models.Document{Key: k, Version: m.stored + 1, Value: raw}
	}
	lost := make(chan string, len(ms))
	err = eachKind(ctx, slices.Collect(maps.Keys(values)), func(ctx context.Context, kind string, keys []string) error {
		ds := make([]models.Document, len(keys))
		for i, k := range keys {
			ds[i] = values[k]
		}
		conflicts, err := s.PutDocuments(ctx, user, kind, ds)
		for _, i := range conflicts {
			lost <- ids[keys[i]]
		}
		return err
	})
	close(lost)
	changed = map[string]bool{}
	for id := range lost {
		changed[id] = true
	}
	return changed, err
}

// listKind is the kind of the documents that have the keys of the messages of a batch whose recipients are removed.
const listKind = "message-keys"

// Remember notes the ids of recipients that are about to be removed, so that Forget finds their messages.
func Remember(ctx context.Context, s models.DocumentStore, chunk models.ID, rs []models.Recipient) error {
	var keys []string
	for i := range rs {
		if rs[i].ClientID != "" {
			keys = append(keys, keyOf(rs[i].ClientID))
		}
	}
	if len(keys) == 0 {
		return nil
	}
	_, _, err := models.ChangeDocument(ctx, s, chunk.Batch().String(), listKind, chunk.String(),
		func(there *[]string, _ int) error {
			all := append(*there, keys...)
			slices.Sort(all)
			*there = slices.Compact(all)
			return nil
		})
	return err
}

// Forget removes the messages of a user whose last version is in a batch, as far as Remember has noted them.
func Forget(ctx context.Context, s models.DocumentStore, user string, batch models.ID) error {
	for {
		page, err := s.Documents(ctx, batch.String(), listKind, "", 10)
		if err != nil || len(page) == 0 {
			return err
		}
		for i := range page {
			var keys []string
			err := page[i].Decode(&keys)
			if err == nil {
				err = forget(ctx, s, user, batch, keys)
			}
			if err != nil {
				return err
			}
			if err := s.DeleteDocument(ctx, batch.String(), listKind, page[i].Key); err != nil {
				return err
			}
		}
	}
}

func forget(ctx context.Context, s models.DocumentStore, user string, batch models.ID, keys []string) error {
	ds, err := read(ctx, s, user, keys)
	if err != nil {
		return err
	}
	old := map[string][]models.Document{}
	for k, d := range ds {
		var m Message
		if err := d.Decode(&m); err != nil {
			return err
		}
		if v := m.Last(); v == nil || v.Log.Batch() == batch {
			old[kindOf(k)] = append(old[kindOf(k)], d)
		}
	}
	for kind, ds := range old {
		if err := s.RemoveDocuments(ctx, user, kind, ds); err != nil {
			return err
		}
	}
	return nil
}

// ErrInvalid reports an id that is too long, empty, or no text of one line.
var ErrInvalid = errors.New("an id has 1 to 255 bytes of text without control characters")

// Check returns ErrInvalid if no message can have an id.
func Check(id string) error {
	if id == "" || len(id) > MaxLen || strings.ToValidUTF8(id, "") != id || models.OneLine(id) != id {
		return ErrInvalid
	}
	return nil
}
