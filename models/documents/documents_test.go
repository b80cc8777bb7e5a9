package documents_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/documents"
	"github.com/safedelivr/safedelivr/store/memory"
)

type value struct {
	ID, Text string
	Version  int `json:"-"`
}

// TestOf: values of a user are created up to a bound, listed, changed and removed, in documents of the
// user and of a common owner.
func TestOf(t *testing.T) {
	t.Parallel()
	full, noRoom, ctx := errors.New("full"), errors.New("no room"), t.Context()
	for _, owner := range []string{"", "*"} {
		o := documents.Of[value]{
			Store: memory.Open(t), Kind: "value", Owner: owner, Most: 2, Full: full,
			Room: func(_ context.Context, user string) error {
				if user == "eve" {
					return noRoom
				}
				return nil
			},
			Read: func(v *value, id string, version int) {
				require.Equal(t, v.ID, id)
				v.Version = version
			},
		}
		for _, user := range []string{"ann", "bob"} {
			require.NoError(t, o.Create(ctx, user, "1", value{ID: "1", Text: user}))
			require.NoError(t, o.Create(ctx, user, "2", value{ID: "2", Text: user}))
			require.ErrorIs(t, o.Create(ctx, user, "3", value{ID: "3"}), full)
		}
		require.ErrorIs(t, o.Create(ctx, "eve", "1", value{}), noRoom)
		v, err := o.Change(ctx, "ann", "1", func(v *value) error { v.Text = "new"; return nil })
		require.NoError(t, err)
		require.Equal(t, value{"1", "new", 2}, v)
		_, err = o.Change(ctx, "ann", "1", func(*value) error { return full })
		require.ErrorIs(t, err, full)
		list, err := o.List(ctx, "ann")
		require.NoError(t, err)
		require.Equal(t, []value{{"1", "new", 2}, {"2", "ann", 1}}, list)
		list, err = o.Page(ctx, "ann", "1", 5)
		require.NoError(t, err)
		require.Len(t, list, 1)

		require.NoError(t, o.Remove(ctx, "ann", "2"))
		o.Fail = func(doing string, err error) error { return errors.Join(errors.New(doing), err) }
		_, err = o.Get(ctx, "ann", "2")
		require.ErrorIs(t, err, models.ErrNotFound)
		require.ErrorContains(t, err, "read")
		_, err = o.Change(ctx, "ann", "2", func(*value) error { return nil })
		require.ErrorIs(t, err, models.ErrNotFound)
		v, err = o.Get(ctx, "bob", "2")
		require.NoError(t, err)
		require.Equal(t, "bob", v.Text)
	}
}
