package service

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/safedelivr/safedelivr/models"
)

// Caller is who asks.
type Caller struct {
	User     string         // id
	By       string         // who is written down for what is ordered; default: User
	Operator bool           // may steer what belongs to others and to all
	Scopes   []models.Scope // what the key may be used for; empty: everything that the user may
}

func (c Caller) by() string { return cmp.Or(c.By, c.User) }

// May reports whether the caller has a scope.
func (c Caller) May(s models.Scope) bool {
	return (len(c.Scopes) == 0 || slices.Contains(c.Scopes, s)) && (s != models.ScopeOperate || c.Operator)
}

// Need returns an error where the caller has not a scope.
func (c Caller) Need(s models.Scope) error {
	if c.May(s) {
		return nil
	}
	return Fail(Forbidden, "scope_missing", "This needs the scope %s.", s)
}

// operates returns an error where the caller is no operator.
func (c Caller) operates() error { return c.Need(models.ScopeOperate) }

// mayRelease reports whether the caller may take back what somebody withheld from an
// owner's mail: an operator always, the owner where no operator ordered it.
func (c Caller) mayRelease(by, owner string) bool {
	return by == "" || by == owner || c.May(models.ScopeOperate)
}

// MayResume reports whether the caller, who may steer a batch, may resume it: what
// an operator stopped, only an operator resumes.
func (c Caller) MayResume(b *BatchView) bool {
	return c.mayRelease(b.StoppedBy, cmp.Or(b.User, c.User))
}

// steerable reads a batch that the caller may steer: one's own, or any for an
// operator. Everything else is not found.
func (s *Service) steerable(ctx context.Context, who Caller, id models.ID) (*models.Batch, error) {
	b, err := s.store.Batch(ctx, id)
	if err == nil && b.User != who.User && !who.May(models.ScopeOperate) {
		err = models.ErrNotFound
	}
	if errors.Is(err, models.ErrNotFound) {
		return nil, notFound("batch")
	}
	if err != nil {
		return nil, storeError("read batch", err)
	}
	if b.User == who.User {
		err = who.Need(models.ScopeSend)
	}
	return &b, err
}
