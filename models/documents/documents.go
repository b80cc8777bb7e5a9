// Package documents keeps values of which a user has a few, like endpoints, templates and drafts. Each is a document of
// the store, as JSON. Of has what such a noun needs: create with a bound, list, get, change and remove.
package documents

import (
	"cmp"
	"context"
	"strings"

	"github.com/safedelivr/safedelivr/models"
)

// Room returns an error while nothing more of a user may be stored.
type Room func(ctx context.Context, user string) error

// Of are the values of one type.
type Of[T any] struct {
	Store models.DocumentStore
	Kind  string // of the documents
	Owner string // of all documents, whose keys begin with the user; empty: each user has their own
	Most  int    // that a user may have; 0: there is no bound, and always room
	Full  error  // of Create, if a user has as many
	Room  Room   // of Create

	// Read gives a value that was read or stored what only its document has. nil: it needs neither.
	Read func(v *T, id string, version int)
	// Fail returns the error for a caller, and gets a verb that says what failed. nil: errors stay as they are.
	Fail func(doing string, err error) error
}

// at returns the owner and the key of a document.
func (o *Of[T]) at(user, id string) (owner, key string) {
	if o.Owner == "" || user == "" {
		return o.Owner + user, id
	}
	return o.Owner, user + "/" + id
}

func (o *Of[T]) read(v *T, id string, version int) {
	if o.Read != nil && version > 0 {
		o.Read(v, id, version)
	}
}

func (o *Of[T]) fail(doing string, err error) error {
	if err == nil || o.Fail == nil {
		return err
	}
	return o.Fail(doing, err)
}

// Create stores a new value. Errors: those of Room, Full.
func (o *Of[T]) Create(ctx context.Context, user, id string, v T) error {
	if o.Most > 0 {
		if err := o.Room(ctx, user); err != nil {
			return err
		}
		if there, err := o.List(ctx, user); err != nil || len(there) >= o.Most {
			return cmp.Or(err, o.Full)
		}
	}
	_, err := o.Put(ctx, user, id, func(there *T, _ int) error { *there = v; return nil })
	return err
}

// List returns the values of a user, by ID.
func (o *Of[T]) List(ctx context.Context, user string) ([]T, error) {
	return o.Page(ctx, user, "", o.Most)
}

// Page returns at most limit values of a user whose IDs come after one, by ID. With an Owner and no user it returns
// those of all users, by key.
func (o *Of[T]) Page(ctx context.Context, user, after string, limit int) ([]T, error) {
	owner, prefix := o.at(user, "")
	docs, err := o.Store.Documents(ctx, owner, o.Kind, prefix+after, limit)
	out := make([]T, 0, len(docs))
	for i := 0; i < len(docs) && err == nil && strings.HasPrefix(docs[i].Key, prefix); i++ {
		var v T
		err = docs[i].Decode(&v)
		o.read(&v, strings.TrimPrefix(docs[i].Key, prefix), docs[i].Version)
		out = append(out, v)
	}
	return out, o.fail("list", err)
}

// Get returns a value. Errors: models.ErrNotFound.
func (o *Of[T]) Get(ctx context.Context, user, id string) (T, error) {
	owner, key := o.at(user, id)
	v, version, err := models.ReadDocument[T](ctx, o.Store, owner, o.Kind, key)
	if err == nil && version == 0 {
		err = models.ErrNotFound
	}
	o.read(&v, id, version)
	return v, o.fail("read", err)
}

// Change changes a value as Put does. Errors: those of do, models.ErrNotFound.
func (o *Of[T]) Change(ctx context.Context, user, id string, do func(v *T) error) (T, error) {
	return o.Put(ctx, user, id, func(v *T, version int) error {
		if version == 0 {
			return models.ErrNotFound
		}
		return do(v)
	})
}

// Put changes or adds a value by models.ChangeDocument, and returns it. Errors: those of do.
func (o *Of[T]) Put(ctx context.Context, user, id string, do func(v *T, version int) error) (T, error) {
	owner, key := o.at(user, id)
	v, version, err := models.ChangeDocument(ctx, o.Store, owner, o.Kind, key, do)
	o.read(&v, id, version)
	return v, o.fail("change", err)
}

// Remove removes a value. If there is none, it does nothing.
func (o *Of[T]) Remove(ctx context.Context, user, id string) error {
	owner, key := o.at(user, id)
	return o.fail("remove", o.Store.DeleteDocument(ctx, owner, o.Kind, key))
}
