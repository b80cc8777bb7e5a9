// Package people keeps users, their API keys and sessions, the senders that they may use, and their limits.
package people

import (
	"context"
	"log/slog"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/accesslog"
	"github.com/safedelivr/safedelivr/service/audit"
	"github.com/safedelivr/safedelivr/service/cached"
	"github.com/safedelivr/safedelivr/service/idempotency"
	"github.com/safedelivr/safedelivr/service/problem"
	"github.com/safedelivr/safedelivr/service/requestlog"
)

// Deps holds what People uses.
type Deps struct {
	Store    models.Store
	Audit    *audit.Trail
	Guard    *idempotency.Guard
	Limits   *Limits
	Operator func(models.User) bool // reports whether a user is an operator
	// Resumed announces the mail of a user who was resumed.
	Resumed func(ctx context.Context, user string)
	Log     *slog.Logger
}

// People holds the users. Its methods may be called by many goroutines at once.
type People struct {
	Deps
	keys   keyCache
	uses   keyUses
	access *accesslog.Log
	lines  *requestlog.Log
	users  cached.Value[[]models.User]
}

// New returns the users of a store. Close stops it.
func New(d Deps) *People {
	return &People{Deps: d, access: accesslog.New(d.Store, d.Log), lines: requestlog.New(d.Store, d.Log)}
}

// Close writes the access log and the request log, for a few seconds at most.
func (s *People) Close() {
	s.uses.wg.Wait()
	s.access.Close()
	s.lines.Close()
}

// All returns all users, as they were a few seconds ago at most.
func (s *People) All(ctx context.Context) ([]models.User, error) {
	users, err := s.users.Get(usersAge, func() ([]models.User, error) { return s.Store.Users(ctx) })
	return users, problem.FromStore("list users", err)
}
