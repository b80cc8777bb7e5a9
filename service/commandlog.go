package service

import (
	"context"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/accesslog"
	"github.com/safedelivr/safedelivr/service/operation"
)

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
func (s *Service) AccessLog(ctx context.Context, who Caller, kind accesslog.Kind, p Page) (AccessPage, error) {
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
		return AccessPage{}, storeError("read access log", err)
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
func (s *Service) RecordAccess(ctx context.Context, e accesslog.Event) error {
	s.access.Add(e)
	if e.Kind != accesslog.Login {
		return nil
	}
	if err := s.access.Write(ctx); err != nil {
		return storeError("write access log", err)
	}
	return nil
}
