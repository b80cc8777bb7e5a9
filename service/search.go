package service

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/drift"
	"github.com/safedelivr/safedelivr/service/audit"
	"github.com/safedelivr/safedelivr/service/erase"
	"github.com/safedelivr/safedelivr/service/intake"
	"github.com/safedelivr/safedelivr/service/operation"
	"github.com/safedelivr/safedelivr/service/walk"
)

// LogFilter selects logs. The zero value selects all.
type LogFilter struct {
	State     models.State
	Reason    models.Reason  // of the state
	Provider  string         // one that was tried
	Result    ProviderResult // at Provider, or at any one
	Rerouted  bool           // tried at more than one provider
	MayDouble bool           // sent again while an outcome was unknown
	Doubled   bool           // known to be delivered more than once

	// These select logs of all mail, and not of one batch.
	Email    string    // a complete address, or a domain with an @ before it
	Part     string    // of an address, in any case
	Tag      string    // of the batch
	From, To time.Time // of acceptance: [From, To); zero: any
}

// ProviderResult is the result of the newest try of a log at a provider.
type ProviderResult string

// The results. They are the members of ProviderCounts.
const (
	ResultDelivered ProviderResult = "delivered"
	ResultRefused   ProviderResult = "refused"
	ResultFailed    ProviderResult = "failed"
	ResultPending   ProviderResult = "pending"
	ResultWaiting   ProviderResult = "waiting"
	ResultUnknown   ProviderResult = "unknown"
)

// resultOf returns the result of a try of a log in a state.
func resultOf(v models.Verdict, s models.State) ProviderResult {
	switch v {
	case models.VerdictDelivered:
		return ResultDelivered
	case models.VerdictRefused:
		return ResultRefused
	case models.VerdictFailed:
		return ResultFailed
	case models.VerdictAccepted:
		return ResultWaiting
	case models.VerdictPending:
		if s.Open() {
			return ResultPending
		}
	case models.VerdictUnknown:
	}
	return ResultUnknown
}

// results maps the results to their counts.
var results = map[ProviderResult]func(*models.ProviderCounts) int64{
	"":              func(c *models.ProviderCounts) int64 { return c.Tried },
	ResultDelivered: func(c *models.ProviderCounts) int64 { return c.Delivered },
	ResultRefused:   func(c *models.ProviderCounts) int64 { return c.Refused },
	ResultFailed:    func(c *models.ProviderCounts) int64 { return c.Failed },
	ResultPending:   func(c *models.ProviderCounts) int64 { return c.Pending },
	ResultWaiting:   func(c *models.ProviderCounts) int64 { return c.Waiting },
	ResultUnknown:   func(c *models.ProviderCounts) int64 { return c.Unknown },
}

func (f *LogFilter) check(q *operation.Query) {
	if f.State != "" && !f.State.Valid() {
		q.Bad("state", "state must be queued, delivered, failed or cancelled.")
	}
	if results[f.Result] == nil {
		q.Bad("result", "result must be delivered, refused, failed, pending, waiting or unknown.")
	}
	if !f.From.IsZero() && !f.To.IsZero() && !f.From.Before(f.To) {
		q.Bad("from", "from must be before to.")
	}
	if f.Email != "" {
		f.Email = address(q, f.Email)
	}
}

// key identifies the filter in a cursor.
func (f *LogFilter) key() string { return fmt.Sprintf("%q", fmt.Sprint(*f)) }

// byAddress reports whether the filter looks at addresses.
func (f *LogFilter) byAddress() bool { return f.Email != "" || f.Part != "" }

// empty reports whether the filter selects every log of a batch.
func (f *LogFilter) empty() bool { return len(f.counts()) == 0 && !f.byAddress() && f.Tag == "" }

// tagged returns the part of a sum that has the tag of the filter. known is false if the sum does not count the tag
// apart: then the part is less than the sum that is returned.
func (f *LogFilter) tagged(s *models.Summary) (part *models.Summary, known bool) {
	g := models.Group{Kind: models.ByTag, Name: f.Tag}
	switch {
	case f.Tag == "", slices.Contains(s.In, g):
		return s, true
	case s.Groups[g] != nil:
		return s.Groups[g], true
	case s.MoreGroups:
		return s, false
	}
	return &models.Summary{}, true
}

// counts returns, for each property that the filter asks for, how many logs of a sum have
// it. A negative count says that the sum does not tell.
func (f *LogFilter) counts() (out []func(*models.Summary) int64) {
	add := func(asked bool, count func(*models.Summary) int64) {
		if asked {
			out = append(out, count)
		}
	}
	add(f.State != "", func(s *models.Summary) int64 { return countOf(s, f.State) })
	add(f.Reason != "", func(s *models.Summary) int64 {
		switch f.Reason { //nolint:exhaustive // all others are of failed logs
		case models.Unconfirmed:
			return s.Unconfirmed
		case models.CancelledByRq:
			return s.Cancelled
		case models.Implied:
			return -s.Success
		}
		return s.Reasons[f.Reason]
	})
	add(f.Provider != "", func(s *models.Summary) int64 {
		c := s.Providers[f.Provider]
		return results[f.Result](&c)
	})
	add(f.Provider == "" && f.Result != "", func(s *models.Summary) (n int64) {
		for _, c := range s.Providers {
			n -= results[f.Result](&c) // a log counts at each provider
		}
		return n
	})
	add(f.Rerouted, func(s *models.Summary) int64 { return s.Rerouted })
	add(f.MayDouble, func(s *models.Summary) int64 { return s.MayDouble })
	add(f.Doubled, func(s *models.Summary) int64 { return s.Doubled })
	return out
}

// mayMatch reports whether a chunk or a span with this sum may have a log that the filter
// selects.
func (f *LogFilter) mayMatch(s *models.Summary) bool {
	s, _ = f.tagged(s)
	for _, count := range f.counts() {
		if count(s) == 0 {
			return false
		}
	}
	return s.Accepted > 0
}

// count returns how many logs with this sum the filter selects, if the sum tells.
func (f *LogFilter) count(s *models.Summary) (n int64, known bool) {
	counts := f.counts()
	s, known = f.tagged(s)
	switch {
	case !known || f.byAddress() || len(counts) > 1 || f.Provider == "" && f.Result != "":
		return 0, false
	case len(counts) == 0:
		return s.Accepted, true
	}
	n = counts[0](s)
	return n, n >= 0
}

// matches reports whether the filter selects recipient r of a chunk, whatever its address.
func (f *LogFilter) matches(v *models.View, r int) bool {
	st := v.Status(r)
	if f.State != "" && st.State != f.State || f.Reason != "" && st.Reason != f.Reason ||
		f.MayDouble && !st.MayDouble || f.Doubled && st.Copies < 2 {
		return false
	}
	if f.Provider == "" && f.Result == "" && !f.Rerouted {
		return true
	}
	newest := map[string]models.Verdict{}
	v.EachTry(r, func(t *models.Try) { newest[t.Provider] = t.Verdict })
	if f.Rerouted && len(newest) < 2 {
		return false
	}
	for provider, verdict := range newest {
		if (f.Provider == "" || f.Provider == provider) && (f.Result == "" || resultOf(verdict, st.State) == f.Result) {
			return true
		}
	}
	return f.Provider == "" && f.Result == ""
}

// matchesAddress reports whether the filter selects logs of a recipient, by its address.
func (f *LogFilter) matchesAddress(r models.Recipient) bool {
	domain, isDomain := strings.CutPrefix(f.Email, "@")
	return (f.Email == "" || !isDomain && strings.EqualFold(r.Email, f.Email) ||
		isDomain && strings.EqualFold(models.DomainOf(r.Email), domain)) &&
		(f.Part == "" || strings.Contains(strings.ToLower(r.Email), strings.ToLower(f.Part)))
}

// FoundLog is a log of any batch.
type FoundLog struct {
	LogView
	BatchID   models.ID `json:"batch_id"`
	User      string    `json:"user,omitempty"` // the owner, if it is not the caller
	CreatedAt time.Time `json:"created_at"`
}

// FoundPage is a page of logs of any batch.
type FoundPage struct {
	Logs []FoundLog `json:"logs"`
	PageInfo
}

// FindLogs returns a page of the logs that a filter selects, newest first: those of the
// caller, or of everybody if the caller wants that. A log is found by its address from its
// first attempt on, until its address is removed. A page may be short and still have a next
// cursor.
func (s *Service) FindLogs(ctx context.Context, who Caller, f LogFilter, p Page) (FoundPage, error) {
	users, err := s.People.Owners(ctx, who, "")
	if err != nil {
		return FoundPage{}, err
	}
	var q operation.Query
	f.check(&q)
	l := listing[FoundLog]{
		name:   "found " + who.Whose() + " " + f.key(),
		oneWay: f.Email != "",
	}
	l.ID = func(v *FoundLog) models.ID { return v.ID }
	n, at := q.Limit(p), placeOf(&q, p, l.name)
	if err := q.Err(); err != nil {
		return FoundPage{}, err
	}
	w, err := s.waiting(ctx)
	if err != nil {
		return FoundPage{}, err
	}
	span := spanOf(f.From, f.To)
	l.Steps = func(from models.ID, up bool) walk.Steps {
		span.From, span.Up = from, up
		return walks(users, span, func(span walk.Span) walk.Steps {
			if f.Email != "" {
				return walk.Addresses(ctx, s.store, span, models.Fingerprint(f.Email))
			}
			return walk.Chunks(ctx, s.store, span, f.mayMatch)
		})
	}
	l.Load = func(ctx context.Context, st walk.Step) ([]FoundLog, int, error) { return s.found(ctx, who, w, st, &f) }
	var out FoundPage
	if out.Logs, out.PageInfo, err = l.page(ctx, n, at); err != nil {
		return FoundPage{}, storeError("find logs", err)
	}
	last := out.First + len(out.Logs) - 1
	total, err := s.totalOf(ctx, users, span, walk.Counter{List: f.key(), Of: f.count}, last)
	if err == nil {
		err = l.count(ctx, s.counts, &out.PageInfo, last, total)
	}
	if err != nil {
		return FoundPage{}, storeError("count logs", err)
	}
	if out.Logs == nil {
		out.Logs = []FoundLog{}
	}
	return out, nil
}

// found returns the logs of a chunk that a filter selects, and what reading it costs.
func (s *Service) found(
	ctx context.Context,
	who Caller,
	w *waits,
	st walk.Step,
	f *LogFilter,
) ([]FoundLog, int, error) {
	const missing = 20
	b, err := s.store.Batch(ctx, st.At.Batch())
	if errors.Is(err, models.ErrNotFound) || errors.Is(err, models.ErrDamaged) || errors.Is(err, models.ErrNewer) {
		return nil, missing, nil
	}
	if err != nil {
		return nil, 0, err
	}
	if f.Tag != "" && !slices.Contains(b.Groups, models.Group{Kind: models.ByTag, Name: f.Tag}) {
		return nil, missing, nil // it was found by its address
	}
	logs, err := s.matching(ctx, w, &b, st.At, f)
	if errors.Is(err, models.ErrDamaged) || errors.Is(err, models.ErrNewer) {
		logs, err = nil, nil // the check of sums reports it
	}
	if err != nil {
		return nil, 0, err
	}
	out := make([]FoundLog, len(logs))
	for i := range logs {
		out[i] = FoundLog{LogView: logs[i], BatchID: b.ID, CreatedAt: b.Created()}
		if b.User != who.User {
			out[i].User = b.User
		}
	}
	return out, chunkCost(&b, st.At), nil
}

// maxAge is how far back lists over all mail go, and clockSkew how far the clocks of
// processes may differ.
const (
	maxAge    = maxDays * 24 * time.Hour
	clockSkew = 48 * time.Hour
)

// spanOf returns the part of a user's mail that lists visit: what was accepted in [first, last). A time that is
// zero is as far as lists go.
func spanOf(first, last time.Time) walk.Span {
	if first.IsZero() {
		first = models.DayOf(time.Now().Add(-maxAge))
	}
	if last.IsZero() {
		last = time.Now().Add(clockSkew)
	}
	return walk.Span{First: first, Last: last}
}

// walks merges a walk over the same span of the mail of each user.
func walks(users []string, span walk.Span, walkOf func(walk.Span) walk.Steps) walk.Steps {
	all := make([]walk.Steps, len(users))
	for i, user := range users {
		span.User = user
		all[i] = walkOf(span)
	}
	return walk.Merge(all, span.Up)
}

// Erase does a part of the erasure of an address, its name and variables from all stored
// mail: the first one, or that of the next cursor of the part before. A part takes a few
// seconds and may be repeated. Mail to the address that was not sent fails with the reason
// erased, and no command sends mail to it again. Mail that is accepted after the erasure has
// begun keeps the address. The audit trail names only the domain.
func (s *Service) Erase(
	ctx context.Context,
	who Caller,
	address, cursor, why string,
	r Repeat,
) (client.Erasure, bool, error) {
	if err := who.NeedOperator(); err != nil {
		return client.Erasure{}, false, err
	}
	var f Form
	audit.WrongWhy(&f, why)
	if strings.TrimSpace(address) == "" {
		f.Wrong("/email", "required", "Add email: a complete address like ada@example.com.")
	} else if a, err := intake.ParseAddress(address); err != nil {
		f.Wrong("/email", "invalid_address", "%s %s.", Quote(address), err)
	} else {
		address = a.Email
	}
	if err := f.Err(); err != nil {
		return client.Erasure{}, false, err
	}
	return once(ctx, s, who, r, func(ctx context.Context, _ models.Claim, _ bool) (client.Erasure, error) {
		return s.erase(ctx, who, address, cursor, why)
	})
}

func (s *Service) erase(ctx context.Context, who Caller, address, cursor, why string) (client.Erasure, error) {
	record := func(kind models.CommandKind) error {
		_, err := s.Audit.Append(ctx, who,
			&models.Command{Kind: kind, Subject: "@" + models.DomainOf(address), Why: why}, nil)
		return err
	}
	if cursor == "" {
		if err := record(models.EraseAddress); err != nil {
			return client.Erasure{}, err
		}
	}
	e := erase.Erasure{Store: s.store, Address: address, InboxKeep: s.cfg.InboxKeep,
		Erased: func(b *models.Batch, chunk models.ID) { // what waits for nothing else ends at once
			m := models.Message{Kind: models.BatchMessage, ID: chunk, Lane: b.Lane}
			if err := s.broker.Publish(ctx, m); err != nil {
				s.log.Debug("a chunk with an erased address is not announced; the agenda finds it", "err", err)
			}
		}}
	part, err := e.Part(ctx, cursor)
	switch {
	case errors.Is(err, models.ErrInvalid):
		var f Form
		f.Wrong("/cursor", "invalid_value", "cursor must be the next_cursor of the part before.")
		return client.Erasure{}, f.Err()
	case err != nil:
		return client.Erasure{}, storeError("erase an address", err)
	}
	if part.Done {
		if err := s.eraseSuppressions(ctx, address); err != nil {
			return client.Erasure{}, err
		}
		if err := drift.Forget(ctx, s.store, address, func(*drift.Entry) bool { return true }); err != nil {
			return client.Erasure{}, storeError("erase an address on lists of providers", err)
		}
		if err := s.eraseDrafts(ctx, address); err != nil {
			return client.Erasure{}, err
		}
		if err := record(models.AddressErased); err != nil {
			return client.Erasure{}, err
		}
	}
	return client.Erasure(part), nil
}

// eraseDrafts removes an address from the drafts of all users.
func (s *Service) eraseDrafts(ctx context.Context, address string) error {
	users, err := s.store.Users(ctx)
	if err != nil {
		return storeError("read users", err)
	}
	for i := range users {
		if err := s.drafts.Erase(ctx, users[i].ID, address); err != nil {
			return err
		}
	}
	return nil
}
