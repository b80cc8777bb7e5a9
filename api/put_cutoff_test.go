package api

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/changes"
	"github.com/safedelivr/safedelivr/service/mail"
)

// writeStore is a store whose writes can be cut off or held up.
type writeStore struct {
	models.Store

	mu   sync.Mutex
	n    int
	hook func(n int, write func() error) error // called for the n-th write, from 1; nil: write
}

func (s *writeStore) write(f func() error) error {
	s.mu.Lock()
	s.n++
	n, hook := s.n, s.hook
	s.mu.Unlock()
	if hook == nil {
		return f()
	}
	return hook(n, f)
}

// set sets the hook and counts from 1 again.
func (s *writeStore) set(hook func(n int, write func() error) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.n, s.hook = 0, hook
}

func (s *writeStore) PutDocuments(
	ctx context.Context, owner, kind string, ds []models.Document,
) (conflicts []int, err error) {
	err = s.write(func() (err error) {
		conflicts, err = s.Store.PutDocuments(ctx, owner, kind, ds)
		return err
	})
	return conflicts, err
}

func (s *writeStore) Schedule(ctx context.Context, es ...models.AgendaEntry) error {
	return s.write(func() error { return s.Store.Schedule(ctx, es...) })
}

func (s *writeStore) PutBatch(ctx context.Context, b models.Batch, first models.Chunk, es ...models.AgendaEntry) error {
	return s.write(func() error { return s.Store.PutBatch(ctx, b, first, es...) })
}

func (s *writeStore) Append(ctx context.Context, chunk models.ID, e models.Entry) error {
	return s.write(func() error { return s.Store.Append(ctx, chunk, e) })
}

func (s *writeStore) AbandonBatch(ctx context.Context, batch models.ID, chunks int) (gone bool, err error) {
	err = s.write(func() (err error) {
		gone, err = s.Store.AbandonBatch(ctx, batch, chunks)
		return err
	})
	return gone, err
}

// writeFixture returns a fixture with a writeStore and three messages.
func writeFixture(t *testing.T) (*fixture, *writeStore) {
	t.Helper()
	f := newFixture(t, func(s *setup) {
		s.service.MessageWait, s.service.RetryTime = time.Nanosecond, 50*time.Millisecond
	})
	ws := &writeStore{Store: f.store.Store}
	f.deps.Store = ws
	f.serve(Config{})
	f.putUntilDone("", version("new", "One", "u1", "u2", "u3")...)
	return f, ws
}

// putUntilDone repeats a request until it is answered, as clients do. The store is given little time.
func (f *fixture) putUntilDone(query string, records ...string) []changes.Result {
	f.Helper()
	for {
		if r := f.put(query, records...); r.Status != http.StatusServiceUnavailable {
			return putResults(f, r)
		}
	}
}

// version returns records about messages with a subject, each to an address of its own.
func version(action, subject string, ids ...string) (out []string) {
	for _, id := range ids {
		out = append(out, record(action, id, subject, id+"@example.com"))
	}
	return out
}

// request creates two messages in one batch and one in another, changes two and cancels one.
func request(subject string) (out []string) {
	out = append(out, version("update", subject, "n1", "n2", "u1", "u2")...)
	out = append(out, version("update", subject+"'", "n3")...)
	return append(out, version("cancel", "", "u3")...)
}

// consistent checks that of each message one version will be sent: the one that is shown, and in one of some versions.
func (f *fixture) consistent(subjects ...string) {
	f.Helper()
	mails := f.sendable()
	require.Len(f, mails, 5, "%v", mails)
	for _, id := range []string{"n1", "n2", "n3", "u1", "u2"} {
		v := read[mail.MessageView](f, "/v1/messages/"+id)
		require.Equal(f, 1, mails[v.Log.Subject+" "+v.Log.Email], "%s of %v", id, mails)
		require.Contains(f, subjects, strings.TrimSuffix(v.Log.Subject, "'"))
		for _, old := range v.History[:len(v.History)-1] {
			require.Equal(f, models.Cancelled, old.State)
		}
	}
	_, now := f.present("u3")
	require.Equal(f, "One cancelled", now)
}

// TestPutCutOff: a repeat finishes a request that was cut off before or after any of its writes. Any parts of the
// request may be repeated first. A further repeat changes nothing.
func TestPutCutOff(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"", "?mode=strict"} {
		for _, done := range []bool{false, true} {
			for _, part := range [][]string{nil, version("update", "Two", "n2", "u1")} {
				if mode != "" && (part != nil || done) {
					continue
				}
				for k, more := 1, true; more; k++ {
					f, ws := writeFixture(t)
					var cut atomic.Bool
					ws.set(func(n int, write func() error) error {
						if n < k {
							return write()
						}
						cut.Store(true)
						if done && n == k {
							_ = write()
							return models.ErrOutcomeUnknown
						}
						return models.ErrUnavailable
					})
					first := f.put(mode, request("Two")...)
					if more = cut.Load(); more {
						require.Equal(t, http.StatusServiceUnavailable, first.Status, string(first.Body))
					}
					ws.set(nil)
					if part != nil {
						f.putUntilDone("", part...)
					}
					for _, r := range f.putUntilDone(mode, request("Two")...) {
						require.NotEqual(t, "rejected", string(r.Status), "%s %s, cut off at %d", r.ID, r.Code, k)
					}
					f.consistent("Two")
					before := f.sendable()
					for _, r := range f.putUntilDone(mode, request("Two")...) {
						require.Equal(t, "unchanged", string(r.Status))
					}
					require.Equal(t, before, f.sendable())
				}
			}
		}
	}
}

// TestPutRace: a request that is held up before any of its writes, while another one about the same messages is carried
// out, ends with a stable answer. One version of each message is sent, and no other.
func TestPutRace(t *testing.T) {
	t.Parallel()
	for _, other := range []string{"Two", "Three"} {
		for k, held := 1, true; held; k++ {
			f, ws := writeFixture(t)
			held = false
			reached, goOn := make(chan struct{}), make(chan struct{})
			ws.set(func(n int, write func() error) error {
				if n == k {
					held = true
					close(reached)
					<-goOn
				}
				return write()
			})
			answer := make(chan *reply, 1)
			go func() {
				r := f.put("", request("Two")...)
				if !held {
					ws.set(nil)
					close(reached)
				}
				answer <- r
			}()
			<-reached
			for _, r := range f.putUntilDone("", request(other)...) {
				require.NotEqual(t, "rejected", string(r.Status), "%s %s, held up at %d", r.ID, r.Code, k)
			}
			close(goOn)
			first := <-answer
			if first.Status == http.StatusServiceUnavailable {
				first = &reply{Status: http.StatusOK, Body: []byte(`{}`)}
				f.putUntilDone("", request("Two")...)
			}
			for _, r := range putResults(t, first) {
				require.NotEqual(t, "rejected", string(r.Status), "%s %s, held up at %d", r.ID, r.Code, k)
			}
			f.consistent("Two", other)
		}
	}
}

// TestPutAgainstDispatch: a request or a worker may be first in the ledger of a chunk: one version of a message is
// handed over.
func TestPutAgainstDispatch(t *testing.T) {
	t.Parallel()
	for _, action := range []string{"update", "cancel"} {
		for k, tried := 1, true; tried; k++ {
			f, ws := writeFixture(t)
			u1, _ := f.present("u1")
			tried = false
			ws.set(func(n int, write func() error) error {
				if n == k {
					tried = true
					entries, err := f.store.Store.Ledger(f.Context(), u1.Log.ID.ChunkID())
					require.NoError(t, err)
					if len(entries) == 0 {
						f.attempt(u1.Log.ID)
					}
				}
				return write()
			})
			r := f.putUntilDone("", record(action, "u1", "Two", "u1@example.com"))[0]
			entries, facts, err := f.store.Store.Record(f.Context(), u1.Log.ID.ChunkID())
			require.NoError(t, err)
			calls := models.Resolve(3, entries, facts).Status(u1.Log.ID.Recipient()).Attempts
			sent := calls + f.sendable()["Two u1@example.com"]
			want := 1
			if action == "cancel" && r.Status == "cancelled" {
				want = 0
			}
			require.Equal(t, want, sent, "%s before write %d: %s", action, k, fmt.Sprint(r))
			require.Equal(t, calls == 1, r.Code == "in_flight", fmt.Sprint(r))
		}
	}
}
