package service

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/caller"
	"github.com/safedelivr/safedelivr/service/operation"
	"github.com/safedelivr/safedelivr/service/requestlog"
)

// Caller is caller.Caller. The entrances use this name.
type Caller = caller.Caller

// MayResume reports whether a caller who may control a batch may resume it. Only an
// operator resumes a batch that an operator stopped.
func MayResume(who Caller, b *BatchView) bool {
	return who.MayRelease(b.StoppedBy, cmp.Or(b.User, who.User))
}

// owners returns the IDs of the users whose mail a list has: everybody's if the caller wants
// that, else the given one's, else the caller's.
func (s *Service) owners(ctx context.Context, who Caller, user string) ([]string, error) {
	if who.Everyone || user != "" && user != who.User {
		if err := who.NeedOperator(); err != nil {
			return nil, err
		}
	}
	if user != "" {
		return []string{user}, nil
	}
	out := []string{who.User}
	if !who.Everyone {
		return out, nil
	}
	users, err := s.users.Get(usersAge, func() ([]models.User, error) { return s.store.Users(ctx) })
	if err != nil {
		return nil, storeError("list users", err)
	}
	for i := range users {
		if users[i].ID != who.User {
			out = append(out, users[i].ID)
		}
	}
	return out, nil
}

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
func (s *Service) LogRequest(who Caller, line requestlog.Line) {
	if who.Key != "" {
		s.lines.Add(who.Key, line)
	}
}

// Requests returns a page of the requests of a key of the caller, newest first; an empty key is
// the caller's. Operators may read those of any key.
func (s *Service) Requests(ctx context.Context, who Caller, key string, p Page) (RequestPage, error) {
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
		keys, err := s.store.Keys(ctx, who.User)
		if err != nil {
			return RequestPage{}, storeError("read keys", err)
		}
		if !slices.ContainsFunc(keys, func(k models.Key) bool { return k.ID == key }) {
			return RequestPage{}, notFound("key")
		}
	}
	lines, err := s.lines.List(ctx, key, before, n+1)
	if err != nil {
		return RequestPage{}, storeError("read request log", err)
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
