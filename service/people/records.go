package people

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/accesslog"
	"github.com/safedelivr/safedelivr/service/caller"
	"github.com/safedelivr/safedelivr/service/operation"
	"github.com/safedelivr/safedelivr/service/problem"
	"github.com/safedelivr/safedelivr/service/requestlog"
)

// Request is an API request as the request log shows it.
type Request struct {
	ID        models.ID `json:"id"`
	At        time.Time `json:"at"` // when it was answered
	Method    string    `json:"method"`
	Path      string    `json:"path"` // the pattern, like /v1/batches/:id
	Status    int       `json:"status"`
	Code      string    `json:"code,omitempty"` // of the error
	RequestID string    `json:"request_id"`
	BatchID   models.ID `json:"batch_id,omitzero"`
	TookMS    float64   `json:"took_ms"`
	Omitted   int       `json:"omitted,omitempty"` // older requests that follow and were only counted
}

// RequestPage is a page of the request log of a key. Next is empty on the last page.
type RequestPage struct {
	Key      string    `json:"key"`
	Requests []Request `json:"requests"`
	Next     string    `json:"next_cursor"`
}

// LogRequest records a request of the caller's key that was answered. It does not wait.
func (s *People) LogRequest(who caller.Caller, line requestlog.Line) {
	if who.Key != "" {
		s.lines.Add(who.Key, line)
	}
}

// Requests returns a page of the requests of a key of the caller, newest first; an empty key is
// the caller's. Operators may read those of any key.
func (s *People) Requests(ctx context.Context, who caller.Caller, key string, p operation.Page) (RequestPage, error) {
	key = cmp.Or(key, who.Key)
	var q operation.Query
	list := "requests " + key
	n, before := q.Limit(p), q.ID(p, list)
	if key == "" {
		q.Bad("key", "Add key: the ID of an API key.")
	}
	if err := q.Err(); err != nil {
		return RequestPage{}, err
	}
	if key != who.Key && !who.May(models.ScopeOperate) {
		keys, err := s.Store.Keys(ctx, who.User)
		if err != nil {
			return RequestPage{}, problem.FromStore("read keys", err)
		}
		if !slices.ContainsFunc(keys, func(k models.Key) bool { return k.ID == key }) {
			return RequestPage{}, problem.NotYours("key")
		}
	}
	lines, err := s.lines.List(ctx, key, before, n+1)
	if err != nil {
		return RequestPage{}, problem.FromStore("read request log", err)
	}
	out := RequestPage{Key: key, Requests: []Request{}}
	if len(lines) > n {
		lines = lines[:n]
		out.Next = operation.IDCursor(list, lines[n-1].ID)
	}
	for i := range lines {
		l := &lines[i]
		out.Requests = append(out.Requests, Request{
			ID:        l.ID,
			At:        l.ID.Time(),
			Method:    l.Method,
			Path:      l.Path,
			Status:    l.Status,
			Code:      l.Code,
			RequestID: l.Request,
			BatchID:   l.Batch,
			TookMS:    float64(l.Took.Microseconds()) / 1000,
			Omitted:   l.Omitted,
		})
	}
	return out, nil
}

// AccessEntry is a login, or a refused login or key, as the audit trail shows it.
type AccessEntry struct {
	ID      models.ID      `json:"id"`
	At      time.Time      `json:"at"`      // the first time
	LastAt  time.Time      `json:"last_at"` // the last time, within an hour
	Count   int            `json:"count"`
	Kind    accesslog.Kind `json:"kind"`
	Reason  string         `json:"reason"`
	User    string         `json:"user,omitempty"` // ID
	Login   string         `json:"github_login,omitempty"`
	Key     string         `json:"key,omitempty"`     // ID
	Address string         `json:"address,omitempty"` // or an IPv6 network; empty: many
}

// AccessPage is a page of the access log. Next is empty on the last page.
type AccessPage struct {
	Entries []AccessEntry `json:"entries"`
	Next    string        `json:"next_cursor"`
}

// AccessLog returns a page of the access log, newest first. An empty kind selects all.
func (s *People) AccessLog(
	ctx context.Context, who caller.Caller, kind accesslog.Kind, p operation.Page,
) (AccessPage, error) {
	if err := who.NeedOperator(); err != nil {
		return AccessPage{}, err
	}
	var q operation.Query
	list := "access " + string(kind)
	n, from := q.Limit(p), q.ID(p, list)
	if kind != "" && !kind.Valid() {
		q.Bad("kind", "kind must be login, login.failed or key.failed.")
	}
	if err := q.Err(); err != nil {
		return AccessPage{}, err
	}
	entries, err := s.access.List(ctx, kind, from, n+1)
	if err != nil {
		return AccessPage{}, problem.FromStore("read access log", err)
	}
	out := AccessPage{Entries: []AccessEntry{}}
	for i := range entries[:min(len(entries), n)] {
		e := &entries[i]
		out.Entries = append(out.Entries, AccessEntry{
			ID:      e.ID,
			At:      e.First,
			LastAt:  e.Last,
			Count:   e.Count,
			Kind:    e.Kind,
			Reason:  e.Reason,
			User:    e.User,
			Login:   e.Login,
			Key:     e.Key,
			Address: e.Address,
		})
	}
	if len(entries) > n {
		out.Next = operation.IDCursor(list, entries[n-1].ID)
	}
	return out, nil
}

// RecordAccess adds a login, or a refused one, to the access log. A login is stored when
// RecordAccess returns nil.
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
