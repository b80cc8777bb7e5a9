// Package people keeps users, their API keys and sessions, the senders that they may use, and their limits.
package people

import (
	"cmp"
	"context"
	"log/slog"
	"slices"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/accesslog"
	"github.com/safedelivr/safedelivr/service/audit"
	"github.com/safedelivr/safedelivr/service/cached"
	"github.com/safedelivr/safedelivr/service/caller"
	"github.com/safedelivr/safedelivr/service/idempotency"
	"github.com/safedelivr/safedelivr/service/operation"
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

// LogRequest records a request of the caller's key that was answered. It does not wait.
func (s *People) LogRequest(who caller.Caller, line requestlog.Line) {
	if who.Key != "" {
		s.lines.Add(who.Key, line)
	}
}

// Requests returns a page of the requests of a key of the caller, newest first; an empty key is
// the caller's. Operators may read those of any key.
func (s *People) Requests(
	ctx context.Context, who caller.Caller, key string, p operation.Page,
) (client.RequestPage, error) {
	key = cmp.Or(key, who.Key)
	var q operation.Query
	list := "requests " + key
	n, before := q.Limit(p), q.ID(p, list)
	if key == "" {
		q.Bad("key", "Add key: the ID of an API key.")
	}
	if err := q.Err(); err != nil {
		return client.RequestPage{}, err
	}
	if key != who.Key && !who.May(models.ScopeOperate) {
		keys, err := s.Store.Keys(ctx, who.User)
		if err != nil {
			return client.RequestPage{}, problem.FromStore("read keys", err)
		}
		if !slices.ContainsFunc(keys, func(k models.Key) bool { return k.ID == key }) {
			return client.RequestPage{}, problem.NotYours("key")
		}
	}
	lines, err := s.lines.List(ctx, key, before, n+1)
	if err != nil {
		return client.RequestPage{}, problem.FromStore("read request log", err)
	}
	out := client.RequestPage{Key: key, Requests: []client.Request{}}
	if len(lines) > n {
		lines = lines[:n]
		out.Next = operation.IDCursor(list, lines[n-1].ID)
	}
	for i := range lines {
		l := &lines[i]
		r := client.Request{
			ID:        l.ID.String(),
			At:        l.ID.Time(),
			Method:    l.Method,
			Path:      l.Path,
			Status:    l.Status,
			Code:      l.Code,
			RequestID: l.Request,
			TookMS:    float64(l.Took.Microseconds()) / 1000,
			Omitted:   l.Omitted,
		}
		if !l.Batch.IsZero() {
			r.BatchID = l.Batch.String()
		}
		out.Requests = append(out.Requests, r)
	}
	return out, nil
}

// AccessLog returns a page of the access log, newest first. An empty kind selects all.
func (s *People) AccessLog(
	ctx context.Context, who caller.Caller, kind accesslog.Kind, p operation.Page,
) (client.AccessPage, error) {
	if err := who.NeedOperator(); err != nil {
		return client.AccessPage{}, err
	}
	var q operation.Query
	list := "access " + string(kind)
	n, from := q.Limit(p), q.ID(p, list)
	if kind != "" && !kind.Valid() {
		q.Bad("kind", "kind must be login, login.failed or key.failed.")
	}
	if err := q.Err(); err != nil {
		return client.AccessPage{}, err
	}
	entries, err := s.access.List(ctx, kind, from, n+1)
	if err != nil {
		return client.AccessPage{}, problem.FromStore("read access log", err)
	}
	out := client.AccessPage{Entries: []client.AccessEntry{}}
	for i := range entries[:min(len(entries), n)] {
		e := &entries[i]
		out.Entries = append(out.Entries, client.AccessEntry{
			ID:          e.ID.String(),
			At:          e.First,
			LastAt:      e.Last,
			Count:       e.Count,
			Kind:        string(e.Kind),
			Reason:      e.Reason,
			User:        e.User,
			GitHubLogin: e.Login,
			Key:         e.Key,
			Address:     e.Address,
		})
	}
	if len(entries) > n {
		out.Next = operation.IDCursor(list, entries[n-1].ID)
	}
	return out, nil
}

// RecordAccess adds a login, or a refused one, to the access log. A login is stored when RecordAccess returns nil.
func (s *People) RecordAccess(ctx context.Context, e accesslog.Event) error {
	s.access.Add(e)
	if e.Kind != accesslog.Login {
		return nil
	}
	if err := s.access.Write(ctx); err != nil {
		return problem.FromStore("write access log", err)
	}
	return nil
}
