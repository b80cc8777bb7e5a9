package service

import (
	"context"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// BatchFilter narrows the list of batches. The zero value lets all through.
type BatchFilter struct {
	State models.BatchState // empty: any
	Day   string            // accepted on this UTC day, like 2026-01-31; empty: any
	User  string            // whose, by id; empty: the caller's. Only operators may name others
}

// maxScan bounds how many batches one request looks through: a page may be
// short, and still have a next cursor.
const maxScan = 300

// FindBatches lists the batches that pass a filter, newest first.
func (s *Service) FindBatches(ctx context.Context, who Caller, f BatchFilter, p Page) (BatchPage, error) {
	user := who.User
	if f.User != "" && f.User != user {
		if err := who.operates(); err != nil {
			return BatchPage{}, err
		}
		user = f.User
	}
	var q Query
	list := "batches " + user + " " + string(f.State) + " " + f.Day
	n, before := q.limit(p), q.cursor(p, list)
	if f.State != "" && f.State != models.BatchQueued && f.State != models.BatchSending && f.State != models.BatchDone {
		q.Bad("state", "state is queued, sending or done.")
	}
	day := q.day("day", f.Day, time.Time{})
	if err := q.Err(); err != nil {
		return BatchPage{}, err
	}
	if !day.IsZero() && before.IsZero() {
		before = models.MinID(day.Add(24 * time.Hour))
	}
	out := BatchPage{Batches: []BatchView{}}
	for scanned := 0; scanned < maxScan; {
		batches, err := s.store.Batches(ctx, user, before, n+1)
		if err != nil {
			return BatchPage{}, storeError("list batches", err)
		}
		for i := range batches {
			b := &batches[i]
			if b.Created().Before(day) {
				return out, nil // the rest is older still
			}
			v, err := s.view(ctx, b)
			if err != nil {
				return BatchPage{}, storeError("sum batch", err)
			}
			if f.State == "" || v.State == f.State {
				if len(out.Batches) == n {
					out.Next = cursorOf(list, before)
					return out, nil
				}
				out.Batches = append(out.Batches, v)
			}
			before = b.ID
		}
		if len(batches) <= n {
			return out, nil
		}
		scanned += len(batches)
	}
	out.Next = cursorOf(list, before)
	return out, nil
}
