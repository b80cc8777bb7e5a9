package accesslog

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/background"
	"github.com/safedelivr/safedelivr/store/memory"
)

func newLog(t *testing.T, store background.Store) *Log {
	t.Helper()
	l := New(store, slog.New(slog.DiscardHandler))
	t.Cleanup(l.Close)
	return l
}

// list returns all entries of a kind, read page by page.
func list(t *testing.T, l *Log, kind Kind, page int) (out []Entry) {
	t.Helper()
	for before := (models.ID{}); ; before = out[len(out)-1].ID {
		es, err := l.List(t.Context(), kind, before, page)
		require.NoError(t, err)
		if out = append(out, es...); len(es) < page {
			return out
		}
	}
}

// TestEqualEventsAreOneEntry: an event that repeats within an hour is one entry with a count,
// which other processes see.
func TestEqualEventsAreOneEntry(t *testing.T) {
	t.Parallel()
	store := memory.Open(t)
	l := newLog(t, store)
	for range 1000 {
		l.Add(Event{Kind: FailedKey, Reason: "wrong_key", Address: "192.0.2.1"})
	}
	l.Add(Event{Kind: Login, Reason: "link", User: "ann", Address: "2001:db8::1"})
	for i := range 3 {
		l.Add(Event{Kind: FailedLogin, Reason: "link_invalid", Address: fmt.Sprintf("2001:db8::%d", i)})
	}
	require.NoError(t, l.Write(t.Context()))
	all := list(t, newLog(t, store), "", 2)
	require.Len(t, all, 3)
	counts := map[Kind]int{}
	for i := range all {
		counts[all[i].Kind] = all[i].Count
		require.False(t, all[i].Last.Before(all[i].First))
	}
	require.Equal(t, map[Kind]int{FailedKey: 1000, Login: 1, FailedLogin: 3}, counts)
	failed := list(t, newLog(t, store), FailedLogin, 2)
	require.Len(t, failed, 1)
	require.Equal(t, "2001:db8::/64", failed[0].Address, "a client has all addresses of its network")
	require.Equal(t, "2001:db8::1", list(t, l, Login, 2)[0].Address)
}

// TestStrangersCannotGrowTheLog: many sources add a bounded number of entries, and leave room
// for failures of other kinds.
func TestStrangersCannotGrowTheLog(t *testing.T) {
	t.Parallel()
	l := newLog(t, memory.Open(t))
	now := time.Now().UTC().Truncate(time.Hour)
	const tries = 100_000
	for i := range tries {
		l.add(Event{Kind: FailedKey, Reason: "wrong_key", Address: fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255)}, now)
	}
	l.add(Event{Kind: FailedKey, Reason: "revoked_key", User: "ann", Key: "k", Address: "192.0.2.1"}, now)
	require.Len(t, l.entries, maxFailures+2)
	all := list(t, l, "", 500)
	require.Len(t, all, maxFailures+2)
	sum := 0
	for i := range all {
		if all[i].Reason == "wrong_key" {
			sum += all[i].Count
		}
	}
	require.Equal(t, tries, sum, "every try is counted")
	l.add(Event{Kind: FailedKey, Reason: "wrong_key", Address: "10.0.0.0"}, now.Add(time.Hour))
	require.Len(t, l.entries, 1, "memory holds one hour")
	require.Len(t, list(t, l, "", 500), maxFailures+3)
}

// brokenStore fails its writes until it is healed.
type brokenStore struct {
	healed atomic.Bool
	puts   atomic.Int64
}

func (s *brokenStore) PutTransient(context.Context, string, string, []byte, time.Duration) error {
	if !s.healed.Load() {
		return errors.New("down")
	}
	s.puts.Add(1)
	return nil
}

func (s *brokenStore) Transients(context.Context, string) (map[string][]byte, error) { return nil, nil }

// TestWrittenInTheBackground: entries wait for a store that is down.
func TestWrittenInTheBackground(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &brokenStore{}
		l := newLog(t, store)
		l.Add(Event{Kind: Login, User: "ann"})
		time.Sleep(6 * time.Second)
		synctest.Wait()
		store.healed.Store(true)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		require.EqualValues(t, 2, store.puts.Load(), "the day and the entry")
	})
}
