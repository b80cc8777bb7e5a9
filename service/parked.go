package service

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// ParkedView is a message that was put aside.
type ParkedView struct {
	ID  string    `json:"id"`
	Key string    `json:"key"`
	Why string    `json:"why"`
	At  time.Time `json:"at,omitzero"`
}

// ParkedPage is a part of the parked messages; Next is empty on the last one.
type ParkedPage struct {
	Parked []ParkedView `json:"parked"`
	Next   string       `json:"next_cursor"`
}

// Parked lists parked messages, oldest first where the broker can tell. Brokers
// list them from the beginning alone: a page costs what those before it do, too.
func (s *Service) Parked(ctx context.Context, who Caller, p Page) (ParkedPage, error) {
	if err := who.operates(); err != nil {
		return ParkedPage{}, err
	}
	var q Query
	const list = "parked"
	n, last := q.limit(p), q.cursor(p, list)
	if err := q.Err(); err != nil {
		return ParkedPage{}, err
	}
	parked, err := s.broker.Parked(ctx, shownOf(last)+n+1)
	if err != nil {
		return ParkedPage{}, brokerError(err)
	}
	first := afterPlace(parked, last)
	end := min(first+n, len(parked))
	out := ParkedPage{Parked: make([]ParkedView, 0, end-first)}
	for _, m := range parked[first:end] {
		out.Parked = append(out.Parked, ParkedView{ID: m.ID, Key: m.Key, Why: m.Why, At: m.At})
	}
	if end < len(parked) {
		out.Next = cursorOf(list, placeOf(&parked[end-1], end))
	}
	return out, nil
}

// placeOf is the place behind a parked message, as a cursor holds it: how many
// stood up to it, when it was parked, and a part of the hash of its id.
func placeOf(m *models.Parked, shown int) (place models.ID) {
	binary.BigEndian.PutUint32(place[:4], uint32(min(shown, math.MaxInt32))) //nolint:gosec // is not negative
	copy(place[4:], markOf(m))
	return place
}

func markOf(m *models.Parked) []byte {
	sum := sha256.Sum256([]byte(m.ID))
	return append(binary.BigEndian.AppendUint64(nil, uint64(m.At.UnixMicro())), sum[:4]...)
}

// shownOf is how many messages stood up to a place.
func shownOf(place models.ID) int { return int(binary.BigEndian.Uint32(place[:4])) }

// afterPlace finds where a list goes on after a place. Where the message there is
// gone by now, it is with the first that is not older: none is passed over.
func afterPlace(parked []models.Parked, place models.ID) int {
	if place.IsZero() {
		return 0
	}
	if i := slices.IndexFunc(parked, func(m models.Parked) bool { return string(markOf(&m)) == string(place[4:]) }); i >= 0 {
		return i + 1
	}
	at := int64(binary.BigEndian.Uint64(place[4:12])) //nolint:gosec // bits for bits
	if i := slices.IndexFunc(parked, func(m models.Parked) bool { return m.At.UnixMicro() >= at }); i >= 0 {
		return i
	}
	return len(parked)
}

// Requeue publishes a parked message again. It tells whether that changed
// something: one that was put back by an earlier order stays so.
func (s *Service) Requeue(
	ctx context.Context,
	who Caller,
	id, why string,
	r Repeat,
) (changed, replayed bool, err error) {
	return s.unpark(ctx, who, models.Requeued, id, why, r, s.broker.Unpark)
}

// Discard drops a parked message. It tells whether that changed something: one
// that was dropped by an earlier order stays so. What it was about is found again
// by the agenda, if it is still to be done.
func (s *Service) Discard(ctx context.Context, who Caller, id, why string) (changed bool, err error) {
	changed, _, err = s.unpark(ctx, who, models.Discarded, id, why, Repeat{}, s.broker.Discard)
	return changed, err
}

func (s *Service) unpark(
	ctx context.Context,
	who Caller,
	do models.CommandKind,
	id, why string,
	r Repeat,
	f func(context.Context, string) error,
) (changed, replayed bool, err error) {
	if err := who.operates(); err != nil {
		return false, false, err
	}
	type done struct{ Changed bool }
	d, replayed, err := once(ctx, s, who, r, func(ctx context.Context, _ models.Claim, older bool) (done, error) {
		parked, err := s.broker.Parked(ctx, math.MaxInt32)
		if err != nil {
			return done{}, brokerError(err)
		}
		if !slices.ContainsFunc(parked, func(p models.Parked) bool { return p.ID == id }) {
			// An earlier try under the same key got so far, or another request did.
			return done{older}, s.unparkedBefore(ctx, do, id, 0)
		}
		c := models.Command{Kind: do, Subject: id, Why: why}
		if _, err := s.order(ctx, who, &c, nil); err != nil {
			return done{}, err
		}
		err = f(ctx, id)
		if errors.Is(err, models.ErrNotFound) { // another was quicker: the same order?
			return done{}, s.unparkedBefore(ctx, do, id, c.Number)
		}
		if err != nil {
			return done{}, brokerError(err)
		}
		return done{true}, nil
	})
	return d.Changed, replayed, err
}

// unparkedBefore is nil where the journal has, below a line, the same order about a
// parked message; else there never was such a message, or something else was done
// with it: not found.
func (s *Service) unparkedBefore(ctx context.Context, do models.CommandKind, id string, below int) error {
	return s.orderedBefore(
		ctx,
		"parked message",
		below,
		func(c *models.Command) bool { return c.Kind == do && c.Subject == id },
	)
}

func brokerError(err error) error {
	if errors.Is(err, models.ErrNotFound) {
		return noSuch("parked message")
	}
	return Fail(
		Unavailable,
		"broker_unavailable",
		"The broker cannot be reached; repeat the request.",
	).After(
		5,
	).Because(
		err,
	)
}
