package service

import (
	"context"
	"iter"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/inproc/inproctest"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/sqlite/sqlitetest"
)

// fullHoursStore has more fingerprints in each hour than one search reads.
type fullHoursStore struct {
	models.Store
	hours []time.Time // newest first
	read  []time.Time
}

func (s *fullHoursStore) AddressIndexHours(
	_ context.Context,
	_ string,
	before time.Time,
	limit int,
) (out []time.Time, err error) {
	for _, h := range s.hours {
		if h.Before(before) && len(out) < limit {
			out = append(out, h)
		}
	}
	return out, nil
}

func (s *fullHoursStore) AddressIndexes(
	_ context.Context,
	_ string,
	hour time.Time,
) iter.Seq2[models.AddressIndex, error] {
	s.read = append(s.read, hour)
	return func(yield func(models.AddressIndex, error) bool) {
		yield(
			models.AddressIndex{Chunk: models.MinID(hour.Add(time.Minute)), Fingerprints: make([]byte, searchBytes+1)},
			nil,
		)
	}
}

// TestSearchFullHours: a search ends and reads each hour once, even if an hour has more
// fingerprints than one page reads.
func TestSearchFullHours(t *testing.T) {
	t.Parallel()
	real, broker := sqlitetest.Open(t), inproctest.New(t, "sg")
	now := time.Now().UTC().Truncate(time.Hour)
	store := &fullHoursStore{Store: real, hours: []time.Time{now, now.Add(-time.Hour), now.Add(-5 * time.Hour)}}
	s := New(Deps{Store: store, Broker: broker, Config: Config{SpoolDir: t.TempDir()}})
	t.Cleanup(s.Close)
	pages, cursor := 0, ""
	for {
		page, err := s.Search(t.Context(), Caller{User: "aaaa"}, "ann@b.example", Page{Cursor: cursor})
		require.NoError(t, err)
		pages++
		require.Less(t, pages, 6, "the search does not end")
		if cursor = page.Next; cursor == "" {
			break
		}
	}
	require.Equal(t, store.hours, store.read)
}

// TestErasureInTheAuditTrail: the audit trail says that an address was erased, by whom and why,
// and names only its domain.
func TestErasureInTheAuditTrail(t *testing.T) {
	t.Parallel()
	s := New(
		Deps{Store: sqlitetest.Open(t), Broker: inproctest.New(t, "sg"), Config: Config{SpoolDir: t.TempDir(), Sole: true}},
	)
	t.Cleanup(s.Close)
	boss := Caller{By: "cli:zoe", Operator: true}
	out, _, err := s.Erase(t.Context(), boss, "Ann <Ann@X.test>", "", "asked", Repeat{})
	require.NoError(t, err)
	require.True(t, out.Done)
	audit, err := s.Audit(t.Context(), boss, Page{})
	require.NoError(t, err)
	var kinds []models.CommandKind
	for _, e := range audit.Commands {
		kinds = append(kinds, e.Command)
		require.Equal(t, "@x.test", e.Subject)
		require.Equal(t, "asked", e.Why)
		require.Equal(t, "cli:zoe", e.By)
	}
	require.Equal(t, []models.CommandKind{models.AddressErased, models.EraseAddress}, kinds)
	_, _, err = s.Erase(t.Context(), Caller{User: "u"}, "ann@x.test", "", "", Repeat{})
	require.ErrorContains(t, err, "operate")
}
