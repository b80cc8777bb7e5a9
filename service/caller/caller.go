// Package caller says on whose behalf a use case runs, and what that user may do.
package caller

import (
	"cmp"
	"slices"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/problem"
)

// Caller is the user on whose behalf a use case runs.
type Caller struct {
	User     string         // ID
	Key      string         // ID of the API key; empty: a session or the command line
	By       string         // name in the command log; default: User
	Operator bool           // may control what belongs to others
	Everyone bool           // lists have the mail of all users; only for operators
	Via      string         // the dialect or protocol of the request; empty: the own API
	Scopes   []models.Scope // scopes of the API key; empty: everything that the user may do
}

// Whose identifies whose mail a list has.
func (c Caller) Whose() string {
	if c.Everyone {
		return "everyone"
	}
	return c.User
}

// Name returns the name of the caller in the command log.
func (c Caller) Name() string { return cmp.Or(c.By, c.User) }

// May reports whether the caller has a scope.
func (c Caller) May(s models.Scope) bool {
	return (len(c.Scopes) == 0 || slices.Contains(c.Scopes, s)) && (s != models.ScopeOperate || c.Operator)
}

// Need returns an error if the caller lacks a scope.
func (c Caller) Need(s models.Scope) error {
	if c.May(s) {
		return nil
	}
	return problem.New(problem.Forbidden, "scope_missing", "This request needs the scope %s.", s)
}

// NeedOperator returns an error if the caller is not an operator.
func (c Caller) NeedOperator() error { return c.Need(models.ScopeOperate) }

// MayRelease reports whether the caller may end a stop or a pause of an owner's mail that by gave. An operator may end
// any. The owner may end only those that no operator gave.
func (c Caller) MayRelease(by, owner string) bool {
	return by == "" || by == owner || by == models.BySafedelivr || c.May(models.ScopeOperate)
}

// PassesUnsubscribes reports whether the caller's mail of a batch reaches recipients who unsubscribed from its
// category.
func (c Caller) PassesUnsubscribes(b *models.Batch) bool {
	return b.Lane == models.Urgent && slices.Contains(c.Scopes, models.ScopePass)
}
