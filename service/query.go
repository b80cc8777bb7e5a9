package service

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/intake"
	"github.com/safedelivr/safedelivr/service/operation"
	"github.com/safedelivr/safedelivr/service/problem"
	"github.com/safedelivr/safedelivr/service/walk"
)

// address returns an address, or a domain with an @ before it, as batches hold it, in lower
// case.
func address(q *operation.Query, text string) string {
	probe, at := strings.TrimSpace(text), ""
	if strings.HasPrefix(probe, "@") {
		probe, at = "any"+probe, "any"
	}
	a, err := intake.ParseAddress(probe)
	if err != nil {
		q.Bad("email", "%s %s.", problem.Quote(text), err)
	}
	return strings.ToLower(strings.TrimPrefix(a.Email, at))
}

// Page is operation.Page. The zero value selects the first page with the default size.
type Page = operation.Page

// place is where a page of a listing begins.
type place struct {
	at   models.ID // the page comes after it; zero: the first page
	back bool      // the page is before at, not behind it
	pos  int       // entries of the list before the place
}

// placeLength is the length of a place in a cursor: direction, position, ID.
const placeLength = 1 + 4 + len(models.ID{})

func (p place) cursor(list string) string {
	b := []byte{0}
	if p.back {
		b[0] = 1
	}
	b = binary.BigEndian.AppendUint32(b, uint32(max(p.pos, 0))) //nolint:gosec // lists are shorter
	return operation.CursorOf(list, append(b, p.at[:]...))
}

// placeOf returns the place in p.Cursor. The cursor must belong to the list.
func placeOf(q *operation.Query, p Page, list string) (out place) {
	if b := q.Cursor(p, list, placeLength); b != nil {
		out.at, out.back, out.pos = models.ID(b[5:]), b[0] == 1, int(binary.BigEndian.Uint32(b[1:]))
	}
	return out
}

// PageInfo describes a page of a list that can be read in both directions.
type PageInfo struct {
	First int    `json:"first"`           // number of its first entry, from 1
	Total *int64 `json:"total,omitempty"` // entries of the list; nil: not known
	// AtLeast is how many entries a list has at least whose total is not known; 0: not known either.
	AtLeast int64  `json:"total_at_least,omitempty"`
	Next    string `json:"next_cursor"`     // empty on the last page
	Prev    string `json:"previous_cursor"` // empty on the first page
	// Until is set if the page ended because it had read as much as one page may: nothing is known yet of mail that was
	// accepted before, or is due after it, or the other way round if the page was read backwards.
	Until time.Time `json:"searched_until,omitzero"`
}

// listing is a list of entries in the order of their IDs.
type listing[T any] struct {
	walk.List[T]
	name   string // binds cursors to the list
	up     bool   // the entry with the lowest ID comes first
	oneWay bool   // it can only be read forwards
}

// page reads a page of at most n entries.
func (l *listing[T]) page(ctx context.Context, n int, p place) ([]T, PageInfo, error) {
	got, err := l.Read(ctx, p.at, l.up != p.back, n, walk.MaxRead)
	switch {
	case err != nil:
		return nil, PageInfo{}, err
	case p.back && !got.More && len(got.Items) < n: // the beginning: a whole page
		return l.page(ctx, n, place{})
	}
	var info PageInfo
	if p == (place{}) && !got.More { // the page is the list
		n := int64(len(got.Items))
		info.Total = &n
	}
	if got.Spent {
		info.Until = got.End.Time()
	}
	first := p.pos // entries before the page
	last := place{at: got.End, pos: p.pos + len(got.Items)}
	if p.back {
		slices.Reverse(got.Items)
		first = max(p.pos-len(got.Items), 0)
		last = place{at: nudge(p.at, !l.up), pos: p.pos}
		if got.More {
			info.Prev = place{at: got.End, back: true, pos: first}.cursor(l.name)
		} else {
			first = 0
		}
		info.Next = last.cursor(l.name)
	} else {
		if got.More {
			info.Next = last.cursor(l.name)
		}
		if !p.at.IsZero() && !l.oneWay {
			info.Prev = place{at: nudge(p.at, l.up), back: true, pos: p.pos}.cursor(l.name)
		}
	}
	info.First = first + 1
	return got.Items, info, nil
}

// count adds the total to a page that ends with entry number last: what the sums tell, or what a bounded count finds.
func (l *listing[T]) count(ctx context.Context, c *walk.Counts, info *PageInfo, last int, sums *int64) error {
	if info.Total != nil {
		return nil
	}
	if info.Total = sums; sums != nil {
		return nil
	}
	n, all, err := walk.CountList(ctx, c, l.name, &l.List, l.up)
	switch {
	case err != nil || n < int64(last): // it has grown, or goes on
		return err
	case all:
		info.Total = &n
	default:
		info.AtLeast = n
	}
	return nil
}

// nudge returns the ID beside an ID, so that a page that begins there includes the ID.
func nudge(id models.ID, up bool) models.ID {
	for i := len(id) - 1; i >= 0; i-- {
		if up {
			id[i]++
			if id[i] != 0 {
				return id
			}
		} else {
			id[i]--
			if id[i] != 0xff {
				return id
			}
		}
	}
	return id
}

// BatchFilter selects batches. The zero value selects all of the caller, or of everybody if
// the caller wants that.
type BatchFilter struct {
	State   string // scheduled, queued, sending, done, stopped or cancelled; empty: any
	Subject string // a part of the subject, in any case
	Sender  string // a part of the sender's address, in any case
	User    string // ID of the owner. Only operators may name others
	// Logs selects the time of acceptance, and batches that have a log with each of its
	// properties.
	Logs LogFilter
}

// States of a batch by which lists can be filtered, besides those of models.BatchState.
const (
	BatchStopped   = "stopped"
	BatchCancelled = "cancelled"
)

func (f *BatchFilter) check(q *operation.Query) {
	f.Logs.check(q)
	switch f.State {
	case "",
		string(models.BatchScheduled),
		string(models.BatchQueued),
		string(models.BatchSending),
		string(models.BatchSent),
		string(models.BatchDone),
		BatchStopped,
		BatchCancelled:
	default:
		q.Bad("state", "state must be scheduled, queued, sending, sent, done, stopped or cancelled.")
	}
}

// selects reports whether the filter selects a batch, by its content and its summary.
func (f *BatchFilter) selects(b *models.Batch, v *BatchView) bool {
	has := func(text, part string) bool { return strings.Contains(strings.ToLower(text), strings.ToLower(part)) }
	switch {
	case !has(b.Content.Subject, f.Subject), !has(b.Content.From.Email, f.Sender):
		return false
	case f.State == BatchStopped:
		return v.Stopped && !v.Cancelled
	case f.State == BatchCancelled:
		return v.Cancelled
	case f.State == string(models.BatchScheduled):
		return !v.Stopped && !v.DueAt.IsZero()
	}
	return f.State == "" || !v.Stopped && !v.Cancelled && string(v.State) == f.State
}

// count returns how many of the batches of a sum the filter selects, if the sum tells.
func (f *BatchFilter) count(s *models.Summary) (n int64, known bool) {
	s, known = f.Logs.tagged(s)
	return s.Batches, known && f.State == "" && f.Subject == "" && f.Sender == "" && len(f.Logs.counts()) == 0 &&
		!f.Logs.byAddress()
}

// FindBatches returns a page of the batches that a filter selects, newest first, or those with mail whose time is to
// come, next first. A page may be short and still have a next cursor.
func (s *Service) FindBatches(ctx context.Context, who Caller, f BatchFilter, p Page) (BatchPage, error) {
	users, err := s.People.Owners(ctx, who, f.User)
	if err != nil {
		return BatchPage{}, err
	}
	var q operation.Query
	f.check(&q)
	l := listing[BatchView]{
		name: fmt.Sprintf("batches %s %q %q %q %q %s", who.Whose(), f.User, f.State, f.Subject, f.Sender, f.Logs.key()),
	}
	l.ID = func(v *BatchView) models.ID { return v.ID }
	n, at := q.Limit(p), placeOf(&q, p, l.name)
	if err := q.Err(); err != nil {
		return BatchPage{}, err
	}
	span := spanOf(f.Logs.From, f.Logs.To)
	l.Steps = func(from models.ID, up bool) walk.Steps {
		span.From, span.Up = from, up
		return walks(users, span, func(span walk.Span) walk.Steps {
			if f.Logs.empty() {
				return walk.Batches(ctx, s.store, span)
			}
			return walk.Batched(walk.Chunks(ctx, s.store, span, f.Logs.mayMatch))
		})
	}
	l.Load = func(ctx context.Context, st walk.Step) ([]BatchView, int, error) { return s.listed(ctx, who, st, &f) }
	if f.State == string(models.BatchScheduled) {
		s.inOrderOfTime(ctx, users, &l)
	}
	var out BatchPage
	if out.Batches, out.PageInfo, err = l.page(ctx, n, at); err != nil {
		return BatchPage{}, storeError("list batches", err)
	}
	last := out.First + len(out.Batches) - 1
	total, err := s.totalOf(ctx, users, span, walk.Counter{List: "batches " + f.Logs.Tag, Of: f.count}, last)
	if err == nil {
		err = l.count(ctx, s.counts, &out.PageInfo, last, total)
	}
	if err != nil {
		return BatchPage{}, storeError("count batches", err)
	}
	if out.Batches == nil {
		out.Batches = []BatchView{}
	}
	return out, nil
}

// batchCost is what reading a batch and its summaries counts, in rows of an index.
const batchCost = 40

// listed returns a batch if the filter selects it, and what reading it costs. If the step has a time, the batch must be
// due then, and next.
func (s *Service) listed(ctx context.Context, who Caller, st walk.Step, f *BatchFilter) ([]BatchView, int, error) {
	due := &st.Due
	if !due.Batch.IsZero() {
		st.At = due.Batch
	}
	b, err := s.store.Batch(ctx, st.At)
	switch {
	case errors.Is(err, models.ErrNotFound): // it is being stored, or was abandoned
		if time.Since(st.At.Time()) > maxIntake {
			s.removeDue(ctx, st.User, due)
		}
		return nil, batchCost, nil
	case errors.Is(err, models.ErrDamaged), errors.Is(err, models.ErrNewer):
		b, err = models.Batch{ID: st.At, User: st.User, Damaged: true}, nil
	}
	if err != nil {
		return nil, 0, err
	}
	v, _, err := s.view(ctx, &b)
	if v.Cancelled {
		s.removeDue(ctx, st.User, due)
	}
	selected := err == nil && f.selects(&b, &v)
	if selected && !due.Batch.IsZero() {
		selected, err = s.dueThen(ctx, &b, &v, due, &f.Logs)
	}
	if err != nil || !selected {
		return nil, batchCost + b.Chunks, err
	}
	if b.User != who.User {
		v.User = b.User
	}
	return []BatchView{v}, batchCost + b.Chunks, nil
}
