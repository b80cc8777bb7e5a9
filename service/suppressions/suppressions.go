// Package suppressions keeps the addresses to which no mail is sent: the lists of users, everyone's list, and what
// providers suppress.
package suppressions

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/internal/priority"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/suppression"
	"github.com/safedelivr/safedelivr/service/audit"
	"github.com/safedelivr/safedelivr/service/caller"
	"github.com/safedelivr/safedelivr/service/idempotency"
	"github.com/safedelivr/safedelivr/service/intake"
	"github.com/safedelivr/safedelivr/service/mail"
	"github.com/safedelivr/safedelivr/service/operation"
	"github.com/safedelivr/safedelivr/service/people"
	"github.com/safedelivr/safedelivr/service/problem"
)

// Deps holds what Lists use.
type Deps struct {
	Store      models.Store
	Audit      *audit.Trail
	Guard      *idempotency.Guard
	Limits     *people.Limits
	Mail       *mail.Reader
	Marks      *suppression.Lists              // of the process
	Known      map[string]bool                 // names of the providers
	ByProvider map[string]models.ProviderLists // the suppression lists of a provider, if it has any
	Priority   *priority.Scheduler             // of imports
}

// Lists holds the suppression lists. Its methods may be called by many goroutines at once.
type Lists struct{ Deps }

// New returns the suppression lists of a store.
func New(d Deps) *Lists { return &Lists{d} }

// viewOf returns an entry as users see it.
func viewOf(e *models.Suppression) client.Suppression {
	v := client.Suppression{
		Email:      e.Email,
		Reason:     string(e.Reason),
		ReasonText: e.Reason.Words(),
		Category:   e.Category,
		Origin:     string(e.Origin),
		By:         e.By,
		Why:        e.Why,
		At:         e.At,
		Expires:    e.Expires,
	}
	if !e.Log.IsZero() {
		v.LogID = e.Log.String()
	}
	return v
}

// listOf returns the name of the list that the caller means. The caller needs a scope.
func listOf(who caller.Caller, needs models.Scope) (string, error) {
	if err := who.Need(needs); err != nil {
		return "", err
	}
	if who.Everyone {
		return models.EveryonesList, who.NeedOperator()
	}
	return who.User, nil
}

// check adds the mistakes in a new entry to a form, and returns the entry to be stored.
func check(
	n *client.NewSuppression, f *problem.Form, who caller.Caller, origin models.SuppressionOrigin, now time.Time,
) models.Suppression {
	a, err := intake.ParseAddress(n.Email)
	if err != nil {
		f.Wrong("/email", "invalid_address", "%s %s.", problem.Quote(n.Email), err)
	}
	reason := models.SuppressionReason(cmp.Or(n.Reason, string(models.Manual)))
	if !reason.Valid() {
		f.Wrong("/reason", "invalid_value",
			"reason must be one of complaint, hard_bounce, manual, unsubscribe and soft_bounce.")
	}
	if !intake.ValidCategory(n.Category) {
		f.Wrong("/category", "invalid_name", "%s", intake.CategoryRule)
	}
	if !n.Expires.IsZero() && !n.Expires.After(now) {
		f.Wrong("/expires_at", "invalid_value", "expires_at must be in the future.")
	}
	audit.WrongWhy(f, n.Why)
	e := models.NewSuppression(a.Email, reason, origin, now)
	e.Category, e.Expires, e.By, e.Why = n.Category, n.Expires.UTC().Truncate(time.Millisecond), who.Name(), n.Why
	return e
}

// Suppress adds an address to the caller's suppression list, or to everyone's. When it returns, no call begins any more
// that contains the address and is met by the entry. Adding what is there already changes nothing.
func (s *Lists) Suppress(
	ctx context.Context, who caller.Caller, n client.NewSuppression, origin models.SuppressionOrigin, r idempotency.Repeat,
) (client.Suppression, bool, error) {
	list, err := listOf(who, models.ScopeSend)
	if err != nil {
		return client.Suppression{}, false, err
	}
	var f problem.Form
	check(&n, &f, who, origin, time.Now())
	if err := f.Err(); err != nil {
		return client.Suppression{}, false, err
	}
	return idempotency.Once(ctx, s.Guard, who.User, r,
		func(ctx context.Context, _ models.Claim, _ bool) (client.Suppression, error) {
			es := []models.Suppression{check(&n, &f, who, origin, time.Now())}
			if _, err := s.add(ctx, list, es); err != nil {
				return client.Suppression{}, err
			}
			s.Audit.Await(ctx)
			return viewOf(&es[0]), ctx.Err()
		})
}

// SuppressSelected adds the recipients of logs that the caller may read to the suppression lists of the users who sent
// the mail, as Suppress does. Recipients who were erased are left out.
func (s *Lists) SuppressSelected(
	ctx context.Context, who caller.Caller, ids []models.ID, origin models.SuppressionOrigin, why string,
) error {
	if err := errors.Join(who.Need(models.ScopeSend), audit.CheckWhy(why)); err != nil {
		return err
	}
	if len(ids) > mail.MaxSelected {
		return problem.New(problem.Invalid, "invalid_request", "Select at most %d at a time.", mail.MaxSelected)
	}
	lists := map[string][]models.Suppression{}
	for _, id := range ids {
		l, err := s.Mail.Log(ctx, who, id.String())
		if err != nil {
			return err
		}
		if l.Email == "" {
			continue
		}
		e := models.NewSuppression(l.Email, models.Manual, origin, time.Now())
		e.Log, e.By, e.Why = id, who.Name(), why
		of := cmp.Or(l.User, who.User)
		lists[of] = append(lists[of], e)
	}
	for of, es := range lists {
		if _, err := s.add(ctx, of, es); err != nil {
			return err
		}
	}
	if len(lists) > 0 {
		s.Audit.Await(ctx)
	}
	return ctx.Err()
}

// add stores entries of a list, and returns how many of them are new. It replaces those that are in effect already by
// the stored ones.
func (s *Lists) add(ctx context.Context, list string, es []models.Suppression) (added int, err error) {
	hashes := make([]models.AddressHash, len(es))
	for i := range es {
		hashes[i] = es[i].Hash
	}
	there, err := s.Store.SuppressionsOf(ctx, list, hashes...)
	if err != nil {
		return 0, problem.FromStore("read suppressions", err)
	}
	known := make(map[models.SuppressionKey]*models.Suppression, len(there))
	for i := range there {
		known[there[i].SuppressionKey] = &there[i]
	}
	now := time.Now()
	for i := range es {
		e := &es[i]
		switch old := known[e.SuppressionKey]; {
		case old == nil:
			added++
		case old.InEffect(now) && old.Expires.Equal(e.Expires) && (old.Email != "" || e.Email == ""):
			*e = *old
		default: // the newest counts, even if clocks differ
			if after := old.At.Add(time.Millisecond); e.At.Before(after) {
				e.At = after
			}
			if !old.InEffect(now) {
				added++
			}
		}
		known[e.SuppressionKey] = e
	}
	if err := s.Marks.AddBeside(ctx, list, there, es...); err != nil {
		return 0, problem.FromStore("store suppressions", err)
	}
	return added, nil
}

// Filter selects entries of a suppression list. The zero value selects all.
type Filter struct {
	Reason   string // one of models.SuppressionReason
	Category string
	AllMail  bool   // only entries of no category
	Text     string // part of the address
}

// selects reports whether an entry has the reason and the category.
func (f *Filter) selects(e *models.Suppression) bool {
	return (f.Reason == "" || f.Reason == string(e.Reason)) && (f.Category == "" || f.Category == e.Category) &&
		(!f.AllMail || e.Category == "")
}

func (f *Filter) matches(e *models.Suppression, now time.Time) bool {
	return e.InEffect(now) && f.selects(e) &&
		(f.Text == "" || strings.Contains(e.Email, strings.ToLower(f.Text)))
}

// suppressionsRead is how many entries one page reads at most.
const suppressionsRead = 10_000

// List returns a page of the entries in effect of the caller's suppression list, or of everyone's.
func (s *Lists) List(
	ctx context.Context, who caller.Caller, f Filter, p operation.Page,
) (client.SuppressionPage, error) {
	list, err := listOf(who, models.ScopeRead)
	if err != nil {
		return client.SuppressionPage{}, err
	}
	var q operation.Query
	if f.Reason != "" && !models.SuppressionReason(f.Reason).Valid() {
		q.Bad("reason", "There is no reason %s.", problem.Quote(f.Reason))
	}
	n, after := q.Limit(p), after(&q, p, "suppressions "+list)
	if err := q.Err(); err != nil {
		return client.SuppressionPage{}, err
	}
	out := client.SuppressionPage{Suppressions: []client.Suppression{}}
	now := time.Now()
	for read := 0; ; {
		page, err := s.Store.Suppressions(ctx, list, after, operation.MaxPage)
		if err != nil {
			return client.SuppressionPage{}, problem.FromStore("read suppressions", err)
		}
		for i := range page {
			if len(out.Suppressions) == n {
				out.Next = afterCursor("suppressions "+list, after)
				return out, nil
			}
			after = page[i].SuppressionKey
			if f.matches(&page[i], now) {
				out.Suppressions = append(out.Suppressions, viewOf(&page[i]))
			}
		}
		if read += len(page); len(page) < operation.MaxPage {
			return out, nil
		}
		if read >= suppressionsRead {
			out.Next = afterCursor("suppressions "+list, after)
			return out, nil
		}
	}
}

// afterCursor returns the cursor of the page of a list that comes after an entry.
func afterCursor(list string, k models.SuppressionKey) string {
	return operation.CursorOf(list, append(k.Hash[:], k.Category+" "+string(k.Reason)...))
}

// after returns the entry that the page comes after. The cursor must belong to the list.
func after(q *operation.Query, p operation.Page, list string) (k models.SuppressionKey) {
	if b := q.Cursor(p, list, len(k.Hash)); b != nil {
		category, reason, _ := strings.Cut(string(b[copy(k.Hash[:], b):]), " ")
		k.Category, k.Reason = category, models.SuppressionReason(reason)
	}
	return k
}

// Each calls f for every entry in effect of the caller's suppression list, or of everyone's.
func (s *Lists) Each(ctx context.Context, who caller.Caller, f func(client.Suppression) error) error {
	for p := (operation.Page{Limit: operation.MaxPage}); ; {
		page, err := s.List(ctx, who, Filter{}, p)
		if err != nil {
			return err
		}
		for _, e := range page.Suppressions {
			if err := f(e); err != nil {
				return err
			}
		}
		if p.Cursor = page.Next; p.Cursor == "" {
			return nil
		}
	}
}

// Of returns the entries in effect of an address.
func (s *Lists) Of(ctx context.Context, who caller.Caller, email string) ([]client.Suppression, error) {
	_, entries, err := s.entriesOf(ctx, who, models.ScopeRead, email)
	if err != nil {
		return nil, err
	}
	out := []client.Suppression{}
	for i := range entries {
		if entries[i].InEffect(time.Now()) {
			out = append(out, viewOf(&entries[i]))
		}
	}
	if len(out) == 0 {
		return nil, problem.NoSuch("suppression")
	}
	return out, nil
}

// entriesOf returns the entries of an address in the list that the caller means.
func (s *Lists) entriesOf(
	ctx context.Context, who caller.Caller, needs models.Scope, email string,
) (string, []models.Suppression, error) {
	list, err := listOf(who, needs)
	if err != nil {
		return "", nil, err
	}
	a, err := intake.ParseAddress(email)
	if err != nil {
		return "", nil, problem.NoSuch("suppression")
	}
	entries, err := s.Store.SuppressionsOf(ctx, list, models.HashAddress(a.Email))
	if err != nil {
		return "", nil, problem.FromStore("read suppressions", err)
	}
	return list, entries, nil
}

// Unsuppress removes the entries of an address from the caller's suppression list, or from everyone's, those of one
// reason or category if f has one. Complaints and hard bounces are removed only with a reason, which the audit trail
// shows. It reports whether any was in effect.
func (s *Lists) Unsuppress(
	ctx context.Context, who caller.Caller, email string, f Filter, why string,
) (changed bool, err error) {
	if err := audit.CheckWhy(why); err != nil {
		return false, err
	}
	list, entries, err := s.entriesOf(ctx, who, models.ScopeSend, email)
	if err != nil {
		return false, err
	}
	entries = slices.DeleteFunc(entries, func(e models.Suppression) bool { return !f.selects(&e) })
	if len(entries) == 0 {
		return false, problem.NoSuch("suppression")
	}
	now := time.Now()
	entries = slices.DeleteFunc(entries, func(e models.Suppression) bool { return !e.InEffect(now) })
	if len(entries) == 0 {
		return false, nil
	}
	hard := func(e models.Suppression) bool { return e.Reason == models.Complaint || e.Reason == models.HardBounce }
	if why == "" && slices.ContainsFunc(entries, hard) {
		var q operation.Query
		q.Bad("why", "Say why mail may be sent to an address that complained or bounced for good.")
		return false, q.Err()
	}
	command := models.Command{
		Kind:    models.RemovedSuppression,
		User:    who.User,
		Subject: hex.EncodeToString(entries[0].Hash[:]),
		Why:     why,
	}
	if _, err := s.Audit.Append(ctx, who, &command, nil); err != nil {
		return false, err
	}
	for i := range entries {
		e := &entries[i]
		if err := s.noteListed(ctx, e); err != nil {
			return false, err
		}
		e.Removed, e.By, e.Why = true, who.Name(), why
		e.At = models.LaterOf(now.UTC().Truncate(time.Millisecond), e.At.Add(time.Millisecond))
	}
	if err := s.Store.PutSuppressions(ctx, list, entries...); err != nil {
		return false, problem.FromStore("remove suppressions", err)
	}
	return true, nil
}

// Erase removes an address from the entries of all lists. The hash of an entry stays, so that the address stays
// suppressed.
func (s *Lists) Erase(ctx context.Context, address string) error {
	users, err := s.Store.Users(ctx)
	if err != nil {
		return problem.FromStore("read users", err)
	}
	lists := []string{models.EveryonesList}
	for i := range users {
		lists = append(lists, users[i].ID)
	}
	for _, list := range lists {
		entries, err := s.Store.SuppressionsOf(ctx, list, models.HashAddress(address))
		if err != nil {
			return problem.FromStore("read suppressions", err)
		}
		entries = slices.DeleteFunc(entries, func(e models.Suppression) bool { return e.Email == "" })
		for i := range entries {
			e := &entries[i]
			e.Email, e.Why, e.At = "", "", e.At.Add(time.Millisecond)
		}
		if err := s.Store.PutSuppressions(ctx, list, entries...); err != nil {
			return problem.FromStore("erase suppressions", err)
		}
	}
	return nil
}
