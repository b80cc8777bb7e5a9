package service

import (
	"context"
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

// maxParked is how many parked messages are shown.
const maxParked = 500

// Parked lists parked messages, oldest first.
func (s *Service) Parked(ctx context.Context, who Caller) ([]ParkedView, error) {
	if err := who.operates(); err != nil {
		return nil, err
	}
	parked, err := s.broker.Parked(ctx, maxParked)
	if err != nil {
		return nil, brokerError(err)
	}
	out := make([]ParkedView, 0, len(parked))
	for i := range parked {
		out = append(out, ParkedView{ID: parked[i].ID, Key: parked[i].Key, Why: parked[i].Why, At: parked[i].At})
	}
	return out, nil
}

// Requeue publishes a parked message again.
func (s *Service) Requeue(ctx context.Context, who Caller, id, why string, r Repeat) (bool, error) {
	return s.unpark(ctx, who, models.Requeued, id, why, r, s.broker.Unpark)
}

// Discard drops a parked message. What it was about is found again by the
// agenda, if it is still to be done.
func (s *Service) Discard(ctx context.Context, who Caller, id, why string) error {
	_, err := s.unpark(ctx, who, models.Discarded, id, why, Repeat{}, s.broker.Discard)
	return err
}

func (s *Service) unpark(ctx context.Context, who Caller, do models.Action, id, why string, r Repeat, f func(context.Context, string) error) (bool, error) {
	if err := who.operates(); err != nil {
		return false, err
	}
	_, replayed, err := once(ctx, s, who, r, func(ctx context.Context, _ models.Claim, older bool) (struct{}, error) {
		parked, err := s.broker.Parked(ctx, math.MaxInt32)
		if err != nil {
			return struct{}{}, brokerError(err)
		}
		if !slices.ContainsFunc(parked, func(p models.Parked) bool { return p.ID == id }) {
			if older {
				return struct{}{}, nil // an earlier try got so far
			}
			return struct{}{}, notFound()
		}
		if _, err := s.order(ctx, who, &models.Control{Action: do, Subject: id, Why: why}, nil); err != nil {
			return struct{}{}, err
		}
		if err := f(ctx, id); err != nil {
			return struct{}{}, brokerError(err)
		}
		return struct{}{}, nil
	})
	return replayed, err
}

func brokerError(err error) error {
	if errors.Is(err, models.ErrNotFound) {
		return notFound()
	}
	return Fail(Unavailable, "broker_unavailable", "The broker cannot be reached; repeat the request.").After(5).Because(err)
}
