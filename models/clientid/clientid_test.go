package clientid

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/store/memory"
)

// put stores a first version of a message for each id, and returns what was stored.
func put(t *testing.T, s models.DocumentStore, user string, log models.ID, ids ...string) map[string]Message {
	t.Helper()
	ms := map[string]Message{}
	for i, id := range ids {
		var none Message
		ms[id] = none.Add(Version{Log: log.Log(i + 1), Hash: "h"})
	}
	changed, err := Put(t.Context(), s, user, ms)
	require.NoError(t, err)
	require.Empty(t, changed)
	ms, err = Read(t.Context(), s, user, ids)
	require.NoError(t, err)
	require.Len(t, ms, len(ids))
	return ms
}

// TestPutOfChangedMessage: a message that was changed since it was read is not stored, and the others are.
func TestPutOfChangedMessage(t *testing.T) {
	t.Parallel()
	s, batch := memory.Open(t), models.NewBatchID(time.Now())
	first := put(t, s, "ann", batch, "a", "b")
	second := maps.Clone(first)
	next := func(m Message, hash string) Message { return m.Add(Version{Log: batch.Log(9), Hash: hash}) }

	a := first["a"]
	changed, err := Put(t.Context(), s, "ann", map[string]Message{"a": next(a, "first")})
	require.NoError(t, err)
	require.Empty(t, changed)
	a, b := second["a"], second["b"]
	changed, err = Put(t.Context(), s, "ann", map[string]Message{"a": next(a, "late"), "b": next(b, "second")})
	require.NoError(t, err)
	require.Equal(t, map[string]bool{"a": true}, changed)

	there, err := Read(t.Context(), s, "ann", []string{"a", "b", "none"})
	require.NoError(t, err)
	require.Len(t, there, 2)
	a, b = there["a"], there["b"]
	require.Equal(t, "first", a.Last().Hash)
	require.Equal(t, "second", b.Last().Hash)
	others, err := Read(t.Context(), s, "bob", []string{"a", "b"})
	require.NoError(t, err)
	require.Empty(t, others)
}

// TestOldVersionsAreDropped: a message keeps its newest versions. Add does not change the message that it is called on.
func TestOldVersionsAreDropped(t *testing.T) {
	t.Parallel()
	var m Message
	require.Nil(t, m.Last())
	batch := models.NewBatchID(time.Now())
	for n := 1; n <= maxVersions+5; n++ {
		before := len(m.Versions)
		next := m.Add(Version{Log: batch.Log(n)})
		require.Len(t, m.Versions, before)
		m = next
	}
	require.Len(t, m.Versions, maxVersions)
	require.Equal(t, batch.Log(6), m.Versions[0].Log)
	require.Equal(t, batch.Log(maxVersions+5), m.Last().Log)
	m.Versions = slices.Grow(m.Versions, 2)
	one, two := m.Add(Version{Hash: "one"}), m.Add(Version{Hash: "two"})
	require.Equal(t, []string{"one", "two"}, []string{one.Last().Hash, two.Last().Hash})
}

// TestForget: the messages of a batch go with it, as far as they were remembered and have no version in another batch.
func TestForget(t *testing.T) {
	t.Parallel()
	s, ctx := memory.Open(t), t.Context()
	old, newer := models.NewBatchID(time.Now()), models.NewBatchID(time.Now())
	ms := put(t, s, "ann", old, "gone", "changed", "not remembered")
	put(t, s, "bob", old, "gone")
	m := ms["changed"]
	_, err := Put(ctx, s, "ann", map[string]Message{"changed": m.Add(Version{Log: newer.Log(1)})})
	require.NoError(t, err)
	for range 2 {
		require.NoError(t, Remember(ctx, s, old, []models.Recipient{{ClientID: "gone"}, {ClientID: "changed"}, {}}))
	}
	require.NoError(t, Forget(ctx, s, "ann", newer), "nothing was remembered of it")
	require.NoError(t, Forget(ctx, s, "ann", old))
	left, err := Read(ctx, s, "ann", slices.Collect(maps.Keys(ms)))
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"changed", "not remembered"}, slices.Collect(maps.Keys(left)))
	others, err := Read(ctx, s, "bob", []string{"gone"})
	require.NoError(t, err)
	require.Len(t, others, 1)
	lists, err := s.Documents(ctx, old.String(), listKind, "", 10)
	require.NoError(t, err)
	require.Empty(t, lists)
}

func TestCheck(t *testing.T) {
	t.Parallel()
	for id, ok := range map[string]bool{
		"":                              false,
		"order-1":                       true,
		"Bücher 7":                      true,
		strings.Repeat("x", MaxLen):     true,
		strings.Repeat("x", MaxLen+1):   false,
		"two\nlines":                    false,
		"\x00":                          false,
		"not UTF-8 \xff":                false,
		strings.Repeat("ü", MaxLen/2+1): false,
	} {
		if err := Check(id); ok {
			require.NoError(t, err, "%q", id)
		} else {
			require.ErrorIs(t, err, ErrInvalid, "%q", id)
		}
	}
}
