package service

import (
	"context"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
)

// Hold keeps mail back that was accepted before a restore from a backup: the
// backup does not know what went out since it was made.
type Hold struct {
	Before time.Time `json:"before"` // mail accepted before it is held
	At     time.Time `json:"at"`
	By     string    `json:"by"`
	Why    string    `json:"why,omitempty"`
}

// Holds lists the holds that stand, oldest first.
func (s *Service) Holds(ctx context.Context, who Caller) ([]Hold, error) {
	if err := who.operates(); err != nil {
		return nil, err
	}
	rules, err := s.rules(ctx)
	if err != nil {
		return nil, err
	}
	out := []Hold{}
	for _, c := range rules.Holds() {
		out = append(out, Hold{Before: c.Before, At: c.At, By: c.By, Why: c.Why})
	}
	return out, nil
}

// Lifted is what became of an order to lift the holds.
type Lifted struct {
	Order   models.CommandKind `json:"order"`
	Changed bool               `json:"changed"` // false: nothing was held
}

// LiftHolds ends all holds: what was held goes out, as the agenda finds it.
func (s *Service) LiftHolds(ctx context.Context, who Caller, why string, r Repeat) (Lifted, bool, error) {
	if err := who.operates(); err != nil {
		return Lifted{}, false, err
	}
	return once(ctx, s, who, r, func(ctx context.Context, _ models.Claim, _ bool) (Lifted, error) {
		c := models.Command{Kind: models.LiftHolds, Why: why}
		changed, err := s.order(ctx, who, &c, func(rules *control.Rules) bool { return len(rules.Holds()) > 0 })
		return Lifted{Order: c.Kind, Changed: changed}, err
	})
}

// HoldOld holds everything that was accepted before now.
func (s *Service) HoldOld(ctx context.Context, who Caller, why string) error {
	if err := who.operates(); err != nil {
		return err
	}
	_, err := s.order(ctx, who, &models.Command{Kind: models.HoldOld, Before: time.Now().UTC(), Why: why}, nil)
	return err
}
