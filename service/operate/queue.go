package operate

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
	"github.com/safedelivr/safedelivr/service/audit"
	"github.com/safedelivr/safedelivr/service/caller"
	"github.com/safedelivr/safedelivr/service/idempotency"
	"github.com/safedelivr/safedelivr/service/operation"
	"github.com/safedelivr/safedelivr/service/problem"
)

// Queues returns the number and the age of the messages in each queue.
func (s *Installation) Queues(ctx context.Context, who caller.Caller) ([]client.Queue, error) {
	if err := who.NeedOperator(); err != nil {
		return nil, err
	}
	depths, err := s.Broker.Depths(ctx)
	if err != nil {
		return nil, brokerError(err)
	}
	reports, err := telemetry.Reports[telemetry.QueueTimes](ctx, s.Store, telemetry.QueuesReport)
	if err != nil {
		return nil, problem.FromStore("read the age of queues", err)
	}
	since := telemetry.QueueTimes{}
	for _, times := range reports {
		since.Take(times)
	}
	now := time.Now()
	out := make([]client.Queue, 0, len(depths))
	for _, d := range depths {
		q := client.Queue{
			Name:     d.Queue.Name(),
			Provider: d.Queue.Provider,
			Lane:     client.Lane(d.Queue.Lane),
			Ready:    d.Ready,
			Working:  d.Unacked,
		}
		if at := since[q.Name]; d.Ready > 0 && !at.IsZero() {
			age := math.Round(max(0, now.Sub(at).Seconds())*10) / 10
			q.OldestSeconds = &age
		}
		out = append(out, q)
	}
	return out, nil
}

// Parked returns a page of the parked messages, oldest first if the broker can tell. Brokers list them only from the
// beginning, so a page costs as much as all pages before it.
func (s *Installation) Parked(ctx context.Context, who caller.Caller, p operation.Page) (client.ParkedPage, error) {
	if err := who.NeedOperator(); err != nil {
		return client.ParkedPage{}, err
	}
	var q operation.Query
	const list = "parked"
	n, last := q.Limit(p), q.ID(p, list)
	if err := q.Err(); err != nil {
		return client.ParkedPage{}, err
	}
	parked, err := s.Broker.Parked(ctx, countOfPosition(last)+n+1)
	if err != nil {
		return client.ParkedPage{}, brokerError(err)
	}
	first := afterPosition(parked, last)
	end := min(first+n, len(parked))
	out := client.ParkedPage{Parked: make([]client.ParkedMessage, 0, end-first)}
	for _, m := range parked[first:end] {
		out.Parked = append(out.Parked, client.ParkedMessage{ID: m.ID, Key: m.Key, Why: m.Why, At: m.At})
	}
	if end < len(parked) {
		out.Next = operation.IDCursor(list, positionOf(&parked[end-1], end))
	}
	return out, nil
}

// positionOf returns the position after a parked message, for a cursor. It has the number of messages up to it, the
// time of its parking, and a part of the hash of its ID.
func positionOf(m *models.Parked, count int) (position models.ID) {
	binary.BigEndian.PutUint32(position[:4], uint32(min(count, math.MaxInt32))) //nolint:gosec // is not negative
	copy(position[4:], fingerprintOf(m))
	return position
}

func fingerprintOf(m *models.Parked) []byte {
	sum := sha256.Sum256([]byte(m.ID))
	return append(binary.BigEndian.AppendUint64(nil, uint64(m.At.UnixMicro())), sum[:4]...)
}

// countOfPosition returns the number of messages up to a position.
func countOfPosition(position models.ID) int { return int(binary.BigEndian.Uint32(position[:4])) }

// afterPosition returns the index of the first message after a position. If the message at the position is gone, it
// returns the index of the first message that is not older, so that no message is skipped.
func afterPosition(parked []models.Parked, position models.ID) int {
	if position.IsZero() {
		return 0
	}
	same := func(m models.Parked) bool { return string(fingerprintOf(&m)) == string(position[4:]) }
	if i := slices.IndexFunc(parked, same); i >= 0 {
		return i + 1
	}
	at := int64(binary.BigEndian.Uint64(position[4:12])) //nolint:gosec // written from an int64
	if i := slices.IndexFunc(parked, func(m models.Parked) bool { return m.At.UnixMicro() >= at }); i >= 0 {
		return i
	}
	return len(parked)
}

// Requeue publishes a parked message again. It reports whether that changed anything: a
// message that was requeued before stays requeued.
func (s *Installation) Requeue(
	ctx context.Context, who caller.Caller, id, why string, r idempotency.Repeat,
) (changed, replayed bool, err error) {
	c := models.Command{Kind: models.Requeued, Subject: id, Why: why}
	return s.unpark(ctx, who, c, r, s.Broker.Unpark)
}

// Discard drops a parked message. It reports whether that changed anything: a message that was discarded before stays
// discarded. If there is still something to do for its batch, the agenda finds it.
func (s *Installation) Discard(ctx context.Context, who caller.Caller, id, why string) (changed bool, err error) {
	c := models.Command{Kind: models.Discarded, Subject: id, Why: why}
	changed, _, err = s.unpark(ctx, who, c, idempotency.Repeat{}, s.Broker.Discard)
	return changed, err
}

// unpark gives a command about the parked message c.Subject and carries it out with do.
func (s *Installation) unpark(
	ctx context.Context,
	who caller.Caller,
	c models.Command,
	r idempotency.Repeat,
	do func(ctx context.Context, id string) error,
) (changed, replayed bool, err error) {
	if err := errors.Join(who.NeedOperator(), audit.CheckWhy(c.Why)); err != nil {
		return false, false, err
	}
	type done struct{ Changed bool }
	d, replayed, err := idempotency.Once(ctx, s.Guard, who.User, r,
		func(ctx context.Context, _ models.Claim, older bool) (done, error) {
			parked, err := s.Broker.Parked(ctx, math.MaxInt32)
			if err != nil {
				return done{}, brokerError(err)
			}
			if !slices.ContainsFunc(parked, func(p models.Parked) bool { return p.ID == c.Subject }) {
				// An earlier attempt of this request did it, or another request.
				return done{older}, s.requireUnparked(ctx, &c, 0)
			}
			if _, err := s.Audit.Append(ctx, who, &c, nil); err != nil {
				return done{}, err
			}
			err = do(ctx, c.Subject)
			if errors.Is(err, models.ErrNotFound) { // another request was faster
				return done{}, s.requireUnparked(ctx, &c, c.Number)
			}
			if err != nil {
				return done{}, brokerError(err)
			}
			return done{true}, nil
		})
	return d.Changed, replayed, err
}

// requireUnparked returns nil if the command log has the same command about the same message, with a number below the
// given one (0: any number). Otherwise the message never existed or another command removed it, and it returns the
// error that there is no such message.
func (s *Installation) requireUnparked(ctx context.Context, want *models.Command, below int) error {
	return s.Audit.Require(ctx, "parked message", below, func(c *models.Command) bool {
		return c.Kind == want.Kind && c.Subject == want.Subject
	})
}

// brokerError returns the Error for an error of the broker.
func brokerError(err error) error {
	if errors.Is(err, models.ErrNotFound) {
		return problem.NoSuch("parked message")
	}
	return problem.New(problem.Unavailable, "broker_unavailable",
		"The broker cannot be reached. Repeat the request.").After(5).Because(err)
}

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
