package storetest

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
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
		{"Document/Many", testDocuments},
		{"Document/ManyRace", testDocumentsRace},
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

// testDocuments: many documents are stored, read and removed at once, each by its own version.
func testDocuments(t *testing.T, s models.Store) {
	ctx, owner := t.Context(), models.NewUserID()
	const n = 250
	var keys []string
	ds := make([]models.Document, n)
	for i := range ds {
		ds[i] = models.Document{Key: fmt.Sprintf("k%03d", i), Version: 1, Value: fmt.Append(nil, i)}
		keys = append(keys, ds[i].Key)
	}
	stored := func() map[string]models.Document {
		t.Helper()
		found, err := s.DocumentsOf(ctx, owner, "many", append([]string{"none"}, keys...))
		require.NoError(t, err)
		out := map[string]models.Document{}
		for _, d := range found {
			out[d.Key] = d
		}
		require.Len(t, out, len(found))
		return out
	}
	require.Empty(t, stored())
	require.NoError(t, s.PutDocument(ctx, owner, "many", models.Document{Key: "k007", Version: 1, Value: []byte("other")}))
	for range 2 { // a repeat succeeds
		lost, err := s.PutDocuments(ctx, owner, "many", ds)
		require.NoError(t, err)
		require.Equal(t, []int{7}, lost)
		got := stored()
		require.Len(t, got, n)
		require.Equal(t, []byte("other"), got["k007"].Value)
		require.Equal(t, ds[249], got["k249"])
	}
	next := []models.Document{
		{Key: "k001", Version: 2, Value: []byte("new")},
		{Key: "k002", Version: 3},
		{Key: "k300", Version: 1},
	}
	lost, err := s.PutDocuments(ctx, owner, "many", next)
	require.NoError(t, err)
	require.Equal(t, []int{1}, lost)
	require.Equal(t, next[0], stored()["k001"])
	_, err = s.PutDocuments(ctx, owner, "many", []models.Document{{Key: "k400", Version: 1}, {Key: "", Version: 1}})
	require.ErrorIs(t, err, models.ErrInvalid)
	lost, err = s.PutDocuments(ctx, owner, "many", nil)
	require.NoError(t, err)
	require.Empty(t, lost)

	require.NoError(t, s.RemoveDocuments(ctx, owner, "many", ds), "those of version 1")
	require.Equal(t, map[string]models.Document{"k001": next[0]}, stored())
	require.NoError(t, s.RemoveDocuments(ctx, owner, "many", next[:1]))
	require.Empty(t, stored())
}

// testDocumentsRace: of several callers that write the same documents, each is written by one.
func testDocumentsRace(t *testing.T, s models.Store) {
	owner, ctx := models.NewUserID(), t.Context()
	const callers, n = 4, 30
	won := make([][]int, callers)
	errs := together(callers, func(i int) error {
		return settled(ctx, func() error {
			ds := make([]models.Document, n)
			for k := range ds {
				ds[k] = models.Document{Key: fmt.Sprint("k", (k+10*i)%40), Version: 1, Value: fmt.Append(nil, i)}
			}
			lost, err := s.PutDocuments(ctx, owner, "race", ds)
			won[i] = nil
			for k := range ds {
				if !slices.Contains(lost, k) {
					won[i] = append(won[i], (k+10*i)%40)
				}
			}
			return err
		})
	})
	by := map[int]int{}
	for i, err := range errs {
		require.NoError(t, err)
		for _, k := range won[i] {
			require.NotContains(t, by, k, "stored by two callers")
			by[k] = i
		}
	}
	require.Len(t, by, 40)
	for k, i := range by {
		d, err := s.Document(ctx, owner, "race", fmt.Sprint("k", k))
		require.NoError(t, err)
		require.Equal(t, fmt.Append(nil, i), d.Value)
	}
}
