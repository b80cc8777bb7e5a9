package operate

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
	"github.com/safedelivr/safedelivr/service/caller"
	"github.com/safedelivr/safedelivr/service/operation"
	"github.com/safedelivr/safedelivr/service/problem"
)

// Unmatched returns a page of the events that fitted no message, or several, newest first: of each worker the newest
// telemetry.MaxUnmatched, while their posts are kept. What a replay has matched, and what names an address that was
// erased, is not among them. Workers list an event within seconds.
func (s *Installation) Unmatched(
	ctx context.Context, who caller.Caller, p operation.Page,
) (client.UnmatchedPage, error) {
	if err := who.NeedOperator(); err != nil {
		return client.UnmatchedPage{}, err
	}
	var q operation.Query
	const list = "unmatched"
	n, after := q.Limit(p), q.ID(p, list)
	if err := q.Err(); err != nil {
		return client.UnmatchedPage{}, err
	}
	all, err := s.unmatched(ctx)
	if err != nil {
		return client.UnmatchedPage{}, err
	}
	out := client.UnmatchedPage{Events: []client.UnmatchedEvent{}}
	var last models.ID
	for i := range all {
		e := &all[i]
		if !after.IsZero() && bytes.Compare(e.ID[:], after[:]) >= 0 {
			continue
		}
		if len(out.Events) == n {
			out.Next = operation.IDCursor(list, last)
			break
		}
		v, err := s.unmatchedEvent(ctx, e)
		if err != nil {
			return client.UnmatchedPage{}, err
		}
		if v != nil {
			v.Post, last = "", e.ID
			out.Events = append(out.Events, *v)
		}
	}
	return out, nil
}

// UnmatchedEvent returns an unmatched event with the post that it came in.
func (s *Installation) UnmatchedEvent(
	ctx context.Context, who caller.Caller, id string,
) (client.UnmatchedEvent, error) {
	if err := who.NeedOperator(); err != nil {
		return client.UnmatchedEvent{}, err
	}
	all, err := s.unmatched(ctx)
	if err != nil {
		return client.UnmatchedEvent{}, err
	}
	for i := range all {
		if all[i].ID.String() != id {
			continue
		}
		if v, err := s.unmatchedEvent(ctx, &all[i]); v != nil || err != nil {
			return *cmp.Or(v, &client.UnmatchedEvent{}), err
		}
	}
	return client.UnmatchedEvent{}, problem.NoSuch("unmatched event")
}

// unmatched returns what workers have listed, newest first.
func (s *Installation) unmatched(ctx context.Context) ([]telemetry.UnmatchedEvent, error) {
	reports, err := telemetry.Reports[telemetry.Unmatched](ctx, s.Store, telemetry.UnmatchedReport)
	if err != nil {
		return nil, problem.FromStore("read unmatched events", err)
	}
	all := map[models.ID]telemetry.UnmatchedEvent{}
	for _, r := range reports {
		for _, e := range r.Events {
			all[e.ID] = e
		}
	}
	for _, r := range reports {
		for _, id := range r.Solved {
			delete(all, id)
		}
	}
	return slices.SortedFunc(maps.Values(all), func(a, b telemetry.UnmatchedEvent) int {
		return bytes.Compare(b.ID[:], a.ID[:])
	}), nil
}

// idTexts returns IDs as the API has them.
func idTexts(ids []models.ID) []string {
	out := make([]string, len(ids))
	for i, id := range ids {
		out[i] = id.String()
	}
	return out
}

// unmatchedEvent reads an event from its post. It returns nil if the post is gone or says something else.
func (s *Installation) unmatchedEvent(
	ctx context.Context, e *telemetry.UnmatchedEvent,
) (*client.UnmatchedEvent, error) {
	adapter := s.Adapters[e.Provider]
	entries, err := s.Store.Inbox(ctx, e.Post)
	if errors.Is(err, models.ErrDamaged) || errors.Is(err, models.ErrNewer) || adapter == nil {
		return nil, nil
	}
	if err != nil {
		return nil, problem.FromStore("read a post", err)
	}
	for i := range entries {
		for _, post := range entries[i].Posts {
			for _, u := range adapter.Parse(post.Body).Unnamed {
				if telemetry.UnmatchedID(e.Post, &u) != e.ID {
					continue
				}
				return &client.UnmatchedEvent{
					ID: e.ID.String(), Provider: e.Provider, ReceivedAt: entries[i].Received(), At: u.Event.At,
					Kind: string(u.Event.Kind), Reason: string(u.Event.Reason), Text: models.Clip(u.Event.Text), Email: u.Address,
					MessageID: u.MessageID, Logs: idTexts(e.Logs), Post: string(post.Body),
				}, nil
			}
		}
	}
	return nil, nil
}
