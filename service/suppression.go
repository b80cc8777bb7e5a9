package service

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/softbounce"
	"github.com/safedelivr/safedelivr/service/audit"
	"github.com/safedelivr/safedelivr/service/intake"
	"github.com/safedelivr/safedelivr/service/mail"
	"github.com/safedelivr/safedelivr/service/operation"
)

// NewSuppression is an entry of a suppression list to be added.
type NewSuppression struct {
	Email     string
	Reason    models.SuppressionReason // empty: manual
	Category  string                   // empty: all mail
	ExpiresAt time.Time                // zero: never
	Why       string
}

// SuppressionView is an entry of a suppression list as it is shown.
type SuppressionView struct {
	Email      string                   `json:"email"` // empty: it was erased
	Reason     models.SuppressionReason `json:"reason"`
	ReasonText string                   `json:"reason_text"`
	Category   string                   `json:"category,omitempty"`
	Origin     models.SuppressionOrigin `json:"origin"`
	Log        models.ID                `json:"log_id,omitzero"`
	By         string                   `json:"by,omitempty"` // the user, or the provider of an event
	Why        string                   `json:"why,omitempty"`
	At         time.Time                `json:"at"`
	ExpiresAt  time.Time                `json:"expires_at,omitzero"`
}

func viewSuppression(e *models.Suppression) SuppressionView {
	return SuppressionView{
		Email:      e.Email,
		Reason:     e.Reason,
		ReasonText: e.Reason.Words(),
		Category:   e.Category,
		Origin:     e.Origin,
		Log:        e.Log,
		By:         e.By,
		Why:        e.Why,
		At:         e.At,
		ExpiresAt:  e.Expires,
	}
}

// suppressionList returns the name of the list that the caller means.
func suppressionList(who Caller) (string, error) {
	if who.Everyone {
		return models.EveryonesList, who.NeedOperator()
	}
	return who.User, nil
}

// check adds the mistakes in the entry to a form, and returns the entry to be stored.
func (n *NewSuppression) check(f *Form, who Caller, origin models.SuppressionOrigin, now time.Time) models.Suppression {
	a, err := intake.ParseAddress(n.Email)
	if err != nil {
		f.Wrong("/email", "invalid_address", "%s %s.", Quote(n.Email), err)
	}
	if n.Reason == "" {
		n.Reason = models.Manual
	}
	if !n.Reason.Valid() {
		f.Wrong("/reason", "invalid_value",
			"reason must be one of complaint, hard_bounce, manual, unsubscribe and soft_bounce.")
	}
	if !intake.ValidCategory(n.Category) {
		f.Wrong("/category", "invalid_name", "%s", intake.TagRule)
	}
	if !n.ExpiresAt.IsZero() && !n.ExpiresAt.After(now) {
		f.Wrong("/expires_at", "invalid_value", "expires_at must be in the future.")
	}
	audit.WrongWhy(f, n.Why)
	e := models.NewSuppression(a.Email, n.Reason, origin, now)
	e.Category, e.Expires, e.By, e.Why = n.Category, n.ExpiresAt.UTC().Truncate(time.Millisecond), who.Name(), n.Why
	return e
}

// Suppress adds an address to the caller's suppression list, or to everyone's. When it
// returns, no call begins any more that contains the address and is met by the entry. Adding
// what is there already changes nothing.
func (s *Service) Suppress(
	ctx context.Context, who Caller, n NewSuppression, origin models.SuppressionOrigin, r Repeat,
) (SuppressionView, bool, error) {
	if err := who.Need(models.ScopeSend); err != nil {
		return SuppressionView{}, false, err
	}
	list, err := suppressionList(who)
	if err != nil {
		return SuppressionView{}, false, err
	}
	var f Form
	n.check(&f, who, origin, time.Now())
	if err := f.Err(); err != nil {
		return SuppressionView{}, false, err
	}
	return once(ctx, s, who, r, func(ctx context.Context, _ models.Claim, _ bool) (SuppressionView, error) {
		es := []models.Suppression{n.check(&f, who, origin, time.Now())}
		if _, err := s.addSuppressions(ctx, list, es); err != nil {
			return SuppressionView{}, err
		}
		s.Audit.Await(ctx)
		return viewSuppression(&es[0]), ctx.Err()
	})
}

// SuppressSelected adds the recipients of logs that the caller may read to the suppression lists of the users who sent
// the mail, as Suppress does. Recipients who were erased are left out.
func (s *Service) SuppressSelected(
	ctx context.Context, who Caller, ids []models.ID, origin models.SuppressionOrigin, why string,
) error {
	if err := errors.Join(who.Need(models.ScopeSend), audit.CheckWhy(why)); err != nil {
		return err
	}
	if len(ids) > mail.MaxSelected {
		return Fail(Invalid, "invalid_request", "Select at most %d at a time.", mail.MaxSelected)
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
		if _, err := s.addSuppressions(ctx, of, es); err != nil {
			return err
		}
	}
	if len(lists) > 0 {
		s.Audit.Await(ctx)
	}
	return ctx.Err()
}

// addSuppressions stores entries of a list, and returns how many of them are new. It replaces
// those that are in effect already by the stored ones.
func (s *Service) addSuppressions(ctx context.Context, list string, es []models.Suppression) (added int, err error) {
	hashes := make([]models.AddressHash, len(es))
	for i := range es {
		hashes[i] = es[i].Hash
	}
	there, err := s.store.SuppressionsOf(ctx, list, hashes...)
	if err != nil {
		return 0, storeError("read suppressions", err)
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
		default: // the newest counts, whatever the clocks say
			if after := old.At.Add(time.Millisecond); e.At.Before(after) {
				e.At = after
			}
			if !old.InEffect(now) {
				added++
			}
		}
		known[e.SuppressionKey] = e
	}
	if err := s.suppressions.AddBeside(ctx, list, there, es...); err != nil {
		return 0, storeError("store suppressions", err)
	}
	return added, nil
}

// SuppressionFilter selects entries of a suppression list. The zero value selects all.
type SuppressionFilter struct {
	Reason   models.SuppressionReason
	Category string
	Text     string // part of the address
}

func (f *SuppressionFilter) matches(e *models.Suppression, now time.Time) bool {
	return e.InEffect(now) && (f.Reason == "" || f.Reason == e.Reason) && (f.Category == "" || f.Category == e.Category) &&
		(f.Text == "" || strings.Contains(e.Email, strings.ToLower(f.Text)))
}

// SuppressionPage is a page of a suppression list, in an order that means nothing. It may be
// short although more pages follow. Next is empty on the last one.
type SuppressionPage struct {
	Suppressions []SuppressionView `json:"suppressions"`
	Next         string            `json:"next_cursor"`
}

// suppressionsRead is how many entries one page reads at most.
const suppressionsRead = 10_000

// Suppressions returns a page of the entries in effect of the caller's suppression list, or
// of everyone's.
func (s *Service) Suppressions(
	ctx context.Context, who Caller, f SuppressionFilter, p Page,
) (SuppressionPage, error) {
	if err := who.Need(models.ScopeRead); err != nil {
		return SuppressionPage{}, err
	}
	list, err := suppressionList(who)
	if err != nil {
		return SuppressionPage{}, err
	}
	var q operation.Query
	if f.Reason != "" && !f.Reason.Valid() {
		q.Bad("reason", "There is no reason %s.", Quote(string(f.Reason)))
	}
	n, after := q.Limit(p), after(&q, p, "suppressions "+list)
	if err := q.Err(); err != nil {
		return SuppressionPage{}, err
	}
	out := SuppressionPage{Suppressions: []SuppressionView{}}
	now := time.Now()
	for read := 0; ; {
		page, err := s.store.Suppressions(ctx, list, after, operation.MaxPage)
		if err != nil {
			return SuppressionPage{}, storeError("read suppressions", err)
		}
		for i := range page {
			if len(out.Suppressions) == n {
				out.Next = afterCursor("suppressions "+list, after)
				return out, nil
			}
			after = page[i].SuppressionKey
			if f.matches(&page[i], now) {
				out.Suppressions = append(out.Suppressions, viewSuppression(&page[i]))
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
func after(q *operation.Query, p Page, list string) (k models.SuppressionKey) {
	if b := q.Cursor(p, list, len(k.Hash)); b != nil {
		category, reason, _ := strings.Cut(string(b[copy(k.Hash[:], b):]), " ")
		k.Category, k.Reason = category, models.SuppressionReason(reason)
	}
	return k
}

// EachSuppression calls f for every entry in effect of the caller's suppression list, or of
// everyone's.
func (s *Service) EachSuppression(ctx context.Context, who Caller, f func(SuppressionView) error) error {
	for p := (Page{Limit: operation.MaxPage}); ; {
		page, err := s.Suppressions(ctx, who, SuppressionFilter{}, p)
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

// ExportSuppressions calls row for the names of the columns and then for each entry that EachSuppression tells of,
// without those whose address was erased. It calls row for nothing if the list cannot be read from its beginning.
func (s *Service) ExportSuppressions(ctx context.Context, who Caller, row func([]string) error) error {
	begin := sync.OnceValue(func() error { return row(suppressionColumns) })
	err := s.EachSuppression(ctx, who, func(e SuppressionView) error {
		if err := begin(); err != nil || e.Email == "" {
			return err
		}
		return row(e.row())
	})
	if err != nil {
		return err
	}
	return begin()
}

// SuppressionsOf returns the entries in effect of an address.
func (s *Service) SuppressionsOf(ctx context.Context, who Caller, email string) ([]SuppressionView, error) {
	if err := who.Need(models.ScopeRead); err != nil {
		return nil, err
	}
	_, entries, err := s.entriesOf(ctx, who, email)
	if err != nil {
		return nil, err
	}
	out := []SuppressionView{}
	for i := range entries {
		if entries[i].InEffect(time.Now()) {
			out = append(out, viewSuppression(&entries[i]))
		}
	}
	if len(out) == 0 {
		return nil, noSuch("suppression")
	}
	return out, nil
}

// entriesOf returns the entries of an address in the list that the caller means.
func (s *Service) entriesOf(ctx context.Context, who Caller, email string) (string, []models.Suppression, error) {
	list, err := suppressionList(who)
	if err != nil {
		return "", nil, err
	}
	a, err := intake.ParseAddress(email)
	if err != nil {
		return "", nil, noSuch("suppression")
	}
	entries, err := s.store.SuppressionsOf(ctx, list, models.HashAddress(a.Email))
	if err != nil {
		return "", nil, storeError("read suppressions", err)
	}
	return list, entries, nil
}

// Unsuppress removes the entries of an address from the caller's suppression list, or from
// everyone's, those of one reason or category if f has one. Complaints and hard bounces are
// removed only with a reason, which the audit trail shows. It reports whether any was in
// effect.
func (s *Service) Unsuppress(
	ctx context.Context, who Caller, email string, f SuppressionFilter, why string,
) (changed bool, err error) {
	if err := errors.Join(who.Need(models.ScopeSend), audit.CheckWhy(why)); err != nil {
		return false, err
	}
	list, entries, err := s.entriesOf(ctx, who, email)
	if err != nil {
		return false, err
	}
	entries = slices.DeleteFunc(entries, func(e models.Suppression) bool {
		return f.Reason != "" && f.Reason != e.Reason || f.Category != "" && f.Category != e.Category
	})
	if len(entries) == 0 {
		return false, noSuch("suppression")
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
	if err := s.store.PutSuppressions(ctx, list, entries...); err != nil {
		return false, storeError("remove suppressions", err)
	}
	return true, nil
}

// eraseSuppressions removes an address from the entries of all lists, and the records of its soft
// bounces. The hash of an entry stays, so that the address stays suppressed.
func (s *Service) eraseSuppressions(ctx context.Context, address string) error {
	users, err := s.store.Users(ctx)
	if err != nil {
		return storeError("read users", err)
	}
	lists := []string{models.EveryonesList}
	for i := range users {
		lists = append(lists, users[i].ID)
		if err := softbounce.Erase(ctx, s.store, users[i].ID, address); err != nil {
			return storeError("erase soft bounces", err)
		}
	}
	for _, list := range lists {
		entries, err := s.store.SuppressionsOf(ctx, list, models.HashAddress(address))
		if err != nil {
			return storeError("read suppressions", err)
		}
		entries = slices.DeleteFunc(entries, func(e models.Suppression) bool { return e.Email == "" })
		for i := range entries {
			e := &entries[i]
			e.Email, e.Why, e.At = "", "", e.At.Add(time.Millisecond)
		}
		if err := s.store.PutSuppressions(ctx, list, entries...); err != nil {
			return storeError("erase suppressions", err)
		}
	}
	return nil
}
