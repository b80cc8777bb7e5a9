package service

import (
	"cmp"
	"slices"

	"github.com/safedelivr/safedelivr/models"
)

// Caller is the user on whose behalf a use case runs.
type Caller struct {
	User     string         // ID
	Key      string         // ID of the API key; empty: a session or the command line
	By       string         // name in the command log; default: User
	Operator bool           // may control what belongs to others
	Everyone bool           // lists have the mail of all users; only for operators
	Scopes   []models.Scope // scopes of the API key; empty: everything that the user may do
}

// Whose identifies whose mail a list has.
func (c Caller) Whose() string {
	if c.Everyone {
		return "everyone"
	}
	return c.User
}

func (c Caller) by() string { return cmp.Or(c.By, c.User) }

// May reports whether the caller has a scope.
func (c Caller) May(s models.Scope) bool {
	return (len(c.Scopes) == 0 || slices.Contains(c.Scopes, s)) && (s != models.ScopeOperate || c.Operator)
}

// Need returns an error if the caller lacks a scope.
func (c Caller) Need(s models.Scope) error {
	if c.May(s) {
		return nil
	}
	return Fail(Forbidden, "scope_missing", "This request needs the scope %s.", s)
}

// operates returns an error if the caller is not an operator.
func (c Caller) operates() error { return c.Need(models.ScopeOperate) }

// mayRelease reports whether the caller may end a stop or a pause of an owner's mail that
// by gave. An operator may end any; the owner only those that no operator gave.
func (c Caller) mayRelease(by, owner string) bool {
	return by == "" || by == owner || c.May(models.ScopeOperate)
}

// MayResume reports whether a caller who may control a batch may resume it. Only an
// operator resumes a batch that an operator stopped.
func (c Caller) MayResume(b *BatchView) bool {
	return c.mayRelease(b.StoppedBy, cmp.Or(b.User, c.User))
}
