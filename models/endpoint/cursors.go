package endpoint

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/feed"
)

// Start says from when on an endpoint of everyone's mail gets the updates of each feed.
type Start struct {
	At         time.Time `json:"at"`
	Generation int       `json:"generation"` // of the endpoint that began there
}

// Cursor is how far an endpoint is in the feed of a user.
type Cursor struct {
	Next  feed.Position `json:"next"`
	Start int           `json:"start"` // generation of the Start that it began with
}

// cursorPages is the number of documents that have the cursors of an endpoint. It must never change.
const cursorPages = 256

const cursorKind = "endpoint_cursors"

// Cursors are how far an endpoint is in the feeds of all users. The worker that posts owns them.
type Cursors [cursorPages]cursors

// cursors is a page of Cursors.
type cursors struct {
	users   map[string]Cursor
	version int // that is stored; 0: nothing is
	changed bool
}

func pageOf(user string) int {
	h := fnv.New32a()
	_, _ = h.Write([]byte(user)) // a hash never fails
	return int(h.Sum32() % cursorPages)
}

func cursorKey(e *Endpoint, page int) string { return fmt.Sprintf("%s/%02x", e.Key(), page) }

func cursorKeys(e *Endpoint) []string {
	keys := make([]string, cursorPages)
	for page := range keys {
		keys[page] = cursorKey(e, page)
	}
	return keys
}

// CursorsOf returns the cursors of an endpoint.
func CursorsOf(ctx context.Context, store models.DocumentStore, e *Endpoint) (*Cursors, error) {
	docs, err := store.DocumentsOf(ctx, owner, cursorKind, cursorKeys(e))
	if err != nil {
		return nil, err
	}
	c := new(Cursors)
	for i := range docs {
		var users map[string]Cursor
		if err := docs[i].Decode(&users); err != nil {
			return nil, err
		}
		for user := range users {
			p := &c[pageOf(user)]
			p.users, p.version = users, docs[i].Version
			break
		}
	}
	return c, nil
}

// Of returns the cursor of a user, if there is one.
func (c *Cursors) Of(user string) (Cursor, bool) {
	v, ok := c[pageOf(user)].users[user]
	return v, ok
}

// Set changes the cursor of a user.
func (c *Cursors) Set(user string, v Cursor) {
	p := &c[pageOf(user)]
	if p.users == nil {
		p.users = map[string]Cursor{}
	}
	if p.users[user] != v {
		p.users[user], p.changed = v, true
	}
}

// Put stores the changed cursors. Errors: models.ErrConflict.
func (c *Cursors) Put(ctx context.Context, store models.DocumentStore, e *Endpoint) error {
	for page := range c {
		p := &c[page]
		if !p.changed {
			continue
		}
		raw, err := json.Marshal(p.users)
		if err != nil {
			return err
		}
		d := models.Document{Key: cursorKey(e, page), Version: p.version + 1, Value: raw}
		if err := store.PutDocument(ctx, owner, cursorKind, d); err != nil {
			return err
		}
		p.version, p.changed = d.Version, false
	}
	return nil
}
