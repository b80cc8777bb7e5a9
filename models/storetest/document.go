package storetest

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

func documentCases() []testCase {
	return []testCase{
		{"Document/CompareAndSet", testDocument},
		{"Document/Race", testDocumentRace},
		{"Document/List", testDocumentList},
		{"Document/Large", testDocumentLarge},
	}
}

func testDocument(t *testing.T, s models.Store) {
	ctx, owner := t.Context(), models.NewUserID()
	put := func(version int, value string) error {
		return s.PutDocument(ctx, owner, "a", models.Document{Key: "k", Version: version, Value: []byte(value)})
	}
	is := func(version int, value string) {
		t.Helper()
		got, err := s.Document(ctx, owner, "a", "k")
		require.NoError(t, err)
		require.Equal(t, models.Document{Key: "k", Version: version, Value: []byte(value)}, got)
	}
	_, err := s.Document(ctx, owner, "a", "k")
	require.ErrorIs(t, err, models.ErrNotFound)
	require.ErrorIs(t, put(0, "x"), models.ErrInvalid)
	require.ErrorIs(t, put(2, "x"), models.ErrConflict, "there is no version 1")
	for range 2 { // a repeat succeeds
		require.NoError(t, put(1, "one"))
		is(1, "one")
	}
	require.ErrorIs(t, put(1, "other"), models.ErrConflict)
	require.ErrorIs(t, put(3, "three"), models.ErrConflict)
	for range 2 {
		require.NoError(t, put(2, "two"))
		is(2, "two")
	}
	require.ErrorIs(t, put(1, "one"), models.ErrConflict, "the version is older")
	require.ErrorIs(t, put(2, "other"), models.ErrConflict)
	is(2, "two")

	for _, other := range [][2]string{{owner, "b"}, {models.NewUserID(), "a"}} {
		_, err := s.Document(ctx, other[0], other[1], "k")
		require.ErrorIs(t, err, models.ErrNotFound, "owners and kinds are apart")
	}
	for range 2 {
		require.NoError(t, s.DeleteDocument(ctx, owner, "a", "k"))
		_, err = s.Document(ctx, owner, "a", "k")
		require.ErrorIs(t, err, models.ErrNotFound)
	}
	require.NoError(t, put(1, ""))
	got, err := s.Document(ctx, owner, "a", "k")
	require.NoError(t, err)
	require.Equal(t, 1, got.Version)
	require.Empty(t, got.Value)
}

// testDocumentRace: of several callers that write a version, one succeeds.
func testDocumentRace(t *testing.T, s models.Store) {
	owner := models.NewUserID()
	for version := 1; version <= 3; version++ {
		errs := together(8, func(i int) error {
			return settled(t.Context(), func() error {
				d := models.Document{Key: "k", Version: version, Value: fmt.Append(nil, i)}
				return s.PutDocument(t.Context(), owner, "race", d)
			})
		})
		winner := -1
		for i, err := range errs {
			if err == nil {
				require.Negative(t, winner, "%d and %d succeeded", winner, i)
				winner = i
			} else if !errors.Is(err, models.ErrConflict) {
				require.NoError(t, err)
			}
		}
		got, err := s.Document(t.Context(), owner, "race", "k")
		require.NoError(t, err)
		require.Equal(t, models.Document{Key: "k", Version: version, Value: fmt.Append(nil, winner)}, got)
	}
}

func testDocumentList(t *testing.T, s models.Store) {
	ctx, owner := t.Context(), models.NewUserID()
	list := func(after string, limit int) (keys []string) {
		ds, err := s.Documents(ctx, owner, "list", after, limit)
		require.NoError(t, err)
		for _, d := range ds {
			require.Equal(t, models.Document{Key: d.Key, Version: 1, Value: []byte("value of " + d.Key)}, d)
			keys = append(keys, d.Key)
		}
		return keys
	}
	require.Empty(t, list("", 10))
	for _, key := range []string{"b", "a/2", "ä", "B", "a/10", "a"} {
		d := models.Document{Key: key, Version: 1, Value: []byte("value of " + key)}
		require.NoError(t, s.PutDocument(ctx, owner, "list", d))
	}
	require.Equal(t, []string{"B", "a", "a/10", "a/2", "b", "ä"}, list("", 10))
	require.Equal(t, []string{"B", "a"}, list("", 2))
	require.Equal(t, []string{"a/10", "a/2"}, list("a", 2))
	require.Equal(t, []string{"ä"}, list("b", 2))
	require.Empty(t, list("ä", 2))
	require.Empty(t, list("", 0))
}

func testDocumentLarge(t *testing.T, s models.Store) {
	ctx, owner := t.Context(), models.NewUserID()
	d := models.Document{Key: "large", Version: 1, Value: bytes.Repeat([]byte("0123456789abcdef"), models.MaxDocument/16)}
	require.NoError(t, s.PutDocument(ctx, owner, "large", d))
	got, err := s.Document(ctx, owner, "large", "large")
	require.NoError(t, err)
	require.True(t, bytes.Equal(d.Value, got.Value))
	d.Key, d.Value = "too large", append(d.Value, 'x')
	require.ErrorIs(t, s.PutDocument(ctx, owner, "large", d), models.ErrInvalid)
}
