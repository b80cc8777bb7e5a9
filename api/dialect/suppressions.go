package dialect

import (
	"slices"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/operation"
	"github.com/safedelivr/safedelivr/service/problem"
	"github.com/safedelivr/safedelivr/service/suppressions"
)

// A List is a suppression list of a service: the entries of the user's own list with some reasons. New entries have the
// first one.
type List []models.SuppressionReason

// Has reports whether an entry is on the list.
func (l List) Has(e *client.Suppression) bool {
	return slices.Contains(l, models.SuppressionReason(e.Reason)) && e.Email != "" // else it was erased
}

// Page returns the entries of a page of the user's list that are on this one, and the cursor of the next page.
func (l List) Page(r *Request, p operation.Page) (entries []client.Suppression, next string, err error) {
	page, err := r.Service.Suppressions.List(r.Context(), r.Who, suppressions.Filter{}, p)
	return slices.DeleteFunc(page.Suppressions, func(e client.Suppression) bool { return !l.Has(&e) }), page.Next, err
}

// Each calls f for each entry until f returns false.
func (l List) Each(r *Request, f func(e *client.Suppression) bool) error {
	for p := (operation.Page{Limit: operation.MaxPage}); ; {
		entries, next, err := l.Page(r, p)
		if err != nil {
			return err
		}
		for i := range entries {
			if !f(&entries[i]) {
				return nil
			}
		}
		if p.Cursor = next; next == "" {
			return nil
		}
	}
}

// Of returns the entries of an address; none if there are none.
func (l List) Of(r *Request, address string) ([]client.Suppression, error) {
	entries, err := r.Service.Suppressions.Of(r.Context(), r.Who, address)
	if problem.IsNotFound(err) {
		return nil, nil
	}
	return slices.DeleteFunc(entries, func(e client.Suppression) bool { return !l.Has(&e) }), err
}

// Add adds an entry.
func (l List) Add(r *Request, n client.NewSuppression) error {
	n.Reason = string(l[0])
	_, _, err := r.Service.Suppressions.Suppress(r.Context(), r.Who, n, models.FromAPI, service.Repeat{})
	return err
}

// Remove removes the entries of an address that a filter selects. It reports whether there were any.
func (l List) Remove(r *Request, address string, f suppressions.Filter) (removed bool, err error) {
	for _, reason := range l {
		f.Reason = string(reason)
		once, err := r.Service.Suppressions.Unsuppress(r.Context(), r.Who, address, f,
			"removed by an application that speaks the API of "+r.Who.Via)
		if err != nil && !problem.IsNotFound(err) {
			return removed, err
		}
		removed = removed || once
	}
	return removed, nil
}
