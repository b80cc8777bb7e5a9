package web

import (
	"context"
)

// NameOf returns the name of a user, or the ID if there is no such user.
func (f *Frame) NameOf(ctx context.Context, id string) string {
	if name, ok := f.names.Load(id); ok {
		return name.(string)
	}
	u, err := f.store.User(ctx, id)
	if err != nil {
		return id
	}
	f.names.Store(id, u.Name)
	return u.Name
}
