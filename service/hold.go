package service

import (
	"context"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
)

// Hold withholds mail that was accepted before a restore from a backup. The backup does
// not know which of this mail was sent after it was made.
type Hold struct {
	Before time.Time `json:"before"` // mail accepted before this time is held
	At     time.Time `json:"at"`
	By     string    `json:"by"`
	Why    string    `json:"why,omitempty"`
}

// Holds returns the holds in effect, oldest first.
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

// LiftResult tells what LiftHolds did.
type LiftResult struct {
	Command models.CommandKind `json:"command"`
	Changed bool               `json:"changed"` // false if nothing was held
}

// LiftHolds ends all holds. The held mail goes out as the agenda finds it.
func (s *Service) LiftHolds(ctx context.Context, who Caller, why string, r Repeat) (LiftResult, bool, error) {
	if err := who.operates(); err != nil {
		return LiftResult{}, false, err
	}
	if err := checkWhy(why); err != nil {
		return LiftResult{}, false, err
	}
	return once(ctx, s, who, r, func(ctx context.Context, _ models.Claim, _ bool) (LiftResult, error) {
		c := models.Command{Kind: models.LiftHolds, Why: why}
		changed, err := s.appendCommand(ctx, who, &c, func(rules *control.Rules) bool { return len(rules.Holds()) > 0 })
		return LiftResult{Command: c.Kind, Changed: changed}, err
	})
}

// HoldOld holds all mail that was accepted before now.
func (s *Service) HoldOld(ctx context.Context, who Caller, why string) error {
	if err := who.operates(); err != nil {
		return err
	}
	_, err := s.appendCommand(ctx, who, &models.Command{Kind: models.HoldOld, Before: time.Now().UTC(), Why: why}, nil)
	return err
}
