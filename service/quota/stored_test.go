package quota

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

func (m *memory) PutDocument(_ context.Context, owner, kind string, d models.Document) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	at := owner + " " + kind + " " + d.Key
	if m.documents[at].Version != d.Version-1 {
		return models.ErrConflict
	}
	m.documents[at] = d
	return nil
}

func (m *memory) Document(_ context.Context, owner, kind, key string) (models.Document, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	d, ok := m.documents[owner+" "+kind+" "+key]
	if !ok {
		return d, models.ErrNotFound
	}
	return d, nil
}

func (m *memory) BatchIDsAfter(context.Context, string, models.ID, int) ([]models.ID, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.oldest++
	return m.batches[:min(1, len(m.batches))], nil
}

// TestStoredBytes: bytes count until retention has removed the content of their day, in all processes.
func TestStoredBytes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		one, two := New(m, &Processes{}), New(m, &Processes{})
		user := Subject{ID: "u", User: "u", Limits: models.Limits{models.StoredBytes: 1000}}
		key := Subject{ID: "k", User: "u", Limits: models.Limits{models.StoredBytes: 300}}
		take := func(g *Guard, n int64, ss ...Subject) (giveBack func(), err error) {
			return g.Take(t.Context(), ss, []Amount{{Limit: models.StoredBytes, N: n}})
		}
		m.batches = append(m.batches, models.NewBatchID(time.Now()))
		_, err := take(one, 300, user, key)
		require.NoError(t, err)
		var e *Exceeded
		_, err = take(one, 10, user, key)
		require.ErrorAs(t, err, &e)
		require.Equal(t, "k", e.Subject)
		back, err := take(two, 600, user)
		require.NoError(t, err)
		_, err = take(one, 200, user)
		require.ErrorAs(t, err, &e)
		require.Equal(t, storedRetry, e.After)
		_, err = take(two, 10, user)
		require.NoError(t, err, "what is smaller than what was refused may fit")
		back()
		n, err := two.Stored(t.Context(), user, models.StoredBytes)
		require.NoError(t, err)
		require.LessOrEqual(t, n, int64(400))

		time.Sleep(72 * time.Hour)
		_, err = take(two, 990, user)
		require.ErrorAs(t, err, &e)
		id := models.NewBatchID(time.Now().Add(-24 * time.Hour))
		m.removed = &id
		time.Sleep(storedCheck)
		_, err = take(two, 990, user)
		require.NoError(t, err)
	})
}

// store admits up to n batches one by one, and stores those that are admitted.
func (m *memory) store(t *testing.T, g *Guard, s Subject, n int) (admitted int) {
	t.Helper()
	for range n {
		if _, err := g.Take(t.Context(), []Subject{s}, []Amount{{Limit: models.StoredBatches, N: 1}}); err != nil {
			var e *Exceeded
			require.ErrorAs(t, err, &e)
			require.Equal(t, models.StoredBatches, e.Limit)
			require.Equal(t, storedRetry, e.After)
			return admitted
		}
		admitted++
		m.batches = append(m.batches, models.NewBatchID(time.Now()))
	}
	return admitted
}

func used(t *testing.T, g *Guard, s Subject) int64 {
	t.Helper()
	all, err := g.Usage(t.Context(), s)
	require.NoError(t, err)
	for _, u := range all {
		if u.Limit == models.StoredBatches {
			return u.Used
		}
	}
	return -1
}

// TestStoredBatches: all processes together never store more than the limit, and store more when
// the batches of a day are removed.
func TestStoredBatches(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		one, two := New(m, &Processes{}), New(m, &Processes{})
		u := Subject{ID: "u", User: "u", Limits: models.Limits{models.StoredBatches: 1000}}
		require.Equal(t, 100, m.store(t, one, u, 100))
		time.Sleep(24 * time.Hour)
		first := m.store(t, one, u, 450)
		second := m.store(t, two, u, 1000)
		first += m.store(t, one, u, 1000)
		require.LessOrEqual(t, first+second, 900)
		require.Greater(t, first+second, 900-2*1000/maxSlices, "only what one process keeps for itself is missing")
		require.LessOrEqual(t, used(t, two, u), int64(1000))
		require.Len(t, m.batches, 100+first+second)

		time.Sleep(24 * time.Hour)
		require.LessOrEqual(t, m.store(t, one, u, 100), 2*1000/maxSlices, "the new day has what the old one left")
		m.batches = m.batches[100:] // retention removes the first day
		time.Sleep(storedCheck)
		again := m.store(t, one, u, 1000)
		require.Positive(t, again)
		require.LessOrEqual(t, len(m.batches), 1000)
		require.Greater(t, len(m.batches), 1000-2*1000/maxSlices)

		asked := m.oldest
		require.Zero(t, m.store(t, one, u, 1))
		require.Equal(t, asked, m.oldest, "a refusal asks the store only now and then")
	})
}

// TestStoredBatchesGivenBack: what is not stored after all, and what a day leaves, is not counted.
func TestStoredBatchesGivenBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		g := New(m, &Processes{})
		u := Subject{ID: "u", User: "u", Limits: models.Limits{models.StoredBatches: 640}}
		for range 100 {
			back, err := g.Take(t.Context(), []Subject{u}, []Amount{{Limit: models.StoredBatches, N: 7}})
			require.NoError(t, err)
			back()
		}
		require.Zero(t, used(t, g, u))
		require.Equal(t, 25, m.store(t, g, u, 25))
		require.EqualValues(t, 25, used(t, g, u))
		time.Sleep(24 * time.Hour)
		m.store(t, g, u, 1)
		require.EqualValues(t, 26, used(t, g, u))

		_, err := g.Take(t.Context(), []Subject{u}, []Amount{{Limit: models.StoredBatches, N: 641}})
		var e *Exceeded
		require.ErrorAs(t, err, &e)
		require.Zero(t, e.After, "it never fits")
	})
}

// TestStoredBatchesOfKeys: a key is counted from when it has a limit, a user always.
func TestStoredBatchesOfKeys(t *testing.T) {
	t.Parallel()
	m := newMemory()
	g := New(m, &Processes{})
	user, key := Subject{ID: "u", User: "u"}, Subject{ID: "k", User: "u"}
	take := func() error {
		_, err := g.Take(t.Context(), []Subject{user, key}, []Amount{{Limit: models.StoredBatches, N: 1}})
		return err
	}
	for range 5 {
		require.NoError(t, take())
	}
	require.EqualValues(t, 5, used(t, g, user))
	require.Zero(t, used(t, g, key))
	key.Limits = models.Limits{models.StoredBatches: 1}
	require.NoError(t, take())
	require.ErrorContains(t, take(), "stored_batches is limited to 1")
	require.EqualValues(t, 1, used(t, g, key))
	require.EqualValues(t, 6, used(t, g, user), "what the key refuses is not counted")
	user.Limits = models.Limits{models.StoredBatches: 6}
	key.Limits = nil
	require.Error(t, take(), "a limit that is set later knows the batches before it")
}
