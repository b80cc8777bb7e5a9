package operate

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
	"github.com/safedelivr/safedelivr/service/audit"
	"github.com/safedelivr/safedelivr/service/caller"
	"github.com/safedelivr/safedelivr/service/idempotency"
	"github.com/safedelivr/safedelivr/service/intake"
	"github.com/safedelivr/safedelivr/service/people"
	"github.com/safedelivr/safedelivr/service/problem"
)

// Blocks returns the block rules, oldest first.
func (s *Installation) Blocks(ctx context.Context, who caller.Caller) ([]models.Block, error) {
	if err := who.NeedOperator(); err != nil {
		return nil, err
	}
	rules, err := s.Audit.Rules(ctx)
	if err != nil {
		return nil, err
	}
	return append([]models.Block{}, rules.Blocks()...), nil
}

// AddBlock adds a block rule and returns it. If an equal rule exists, it returns that rule instead.
func (s *Installation) AddBlock(
	ctx context.Context, who caller.Caller, b models.Block, why string, r idempotency.Repeat,
) (models.Block, bool, error) {
	if err := who.NeedOperator(); err != nil {
		return b, false, err
	}
	return idempotency.Once(ctx, s.Guard, who.User, r,
		func(ctx context.Context, c models.Claim, _ bool) (models.Block, error) {
			if err := s.checkBlock(ctx, &b, why); err != nil {
				return b, err
			}
			b.ID = c.ID.String()
			command := models.Command{Kind: models.AddBlock, Block: &b, Why: why}
			_, err := s.Audit.Append(ctx, who, &command, func(rules *control.Rules) bool {
				_, there := equalBlock(rules, &b)
				return !there
			})
			if there, ok := equalBlock(s.Audit.Known(), &b); ok && err == nil {
				b = there
			}
			return b, err
		})
}

// equalBlock returns the rule that matches the same mail as b with the same effect.
func equalBlock(rules *control.Rules, b *models.Block) (models.Block, bool) {
	for _, o := range rules.Blocks() {
		if o.Provider == b.Provider && o.User == b.User && o.Sender == b.Sender && o.Domain == b.Domain && o.Fail == b.Fail {
			return o, true
		}
	}
	return models.Block{}, false
}

// checkBlock checks a rule and the reason for it, and converts the rule to its stored form.
func (s *Installation) checkBlock(ctx context.Context, b *models.Block, why string) error {
	var f problem.Form
	audit.WrongWhy(&f, why)
	if b.Provider == "" && b.User == "" && b.Sender == "" && b.Domain == "" {
		f.Wrong("", "required", "Give at least one of provider, user, sender and domain.")
	}
	if b.Provider != "" && !s.Known[b.Provider] {
		f.Wrong("/provider", "unknown_provider", "No provider is called %s.%s", problem.Quote(b.Provider),
			intake.MeantProvider(b.Provider, s.Known))
	}
	if b.User != "" {
		u, err := s.People.Find(ctx, b.User)
		var e *problem.Error
		if errors.As(err, &e) && e.Kind != problem.NotFound {
			return err
		}
		if err != nil {
			f.Wrong("/user", "invalid_value", "There is no user %s.", problem.Quote(b.User))
		}
		b.User = u.ID
	}
	if b.Sender != "" {
		a, err := people.ParseSender(b.Sender)
		if err != nil {
			f.Wrong("/sender", "invalid_address", "sender must be an address, or @domain for a whole domain.")
		}
		b.Sender = a.Email
	}
	if b.Domain != "" {
		a, err := intake.ParseAddress("x@" + b.Domain)
		if err != nil {
			f.Wrong("/domain", "invalid_value", "%s is not a domain.", problem.Quote(b.Domain))
		}
		b.Domain = strings.TrimPrefix(a.Email, "x@")
	}
	return f.Err()
}

// RemoveBlock removes a block rule. It reports whether that changed anything: a rule that
// was removed before stays removed.
func (s *Installation) RemoveBlock(ctx context.Context, who caller.Caller, id, why string) (changed bool, err error) {
	if err := errors.Join(who.NeedOperator(), audit.CheckWhy(why)); err != nil {
		return false, err
	}
	found := false
	command := models.Command{Kind: models.RemoveBlock, Block: &models.Block{ID: id}, Why: why}
	_, err = s.Audit.Append(ctx, who, &command, func(rules *control.Rules) bool {
		there := slices.ContainsFunc(rules.Blocks(), func(b models.Block) bool { return b.ID == id })
		found = found || there
		return there
	})
	if err == nil && !found {
		err = s.Audit.Require(ctx, "block rule", 0, func(c *models.Command) bool {
			return c.Kind == models.RemoveBlock && c.Block != nil && c.Block.ID == id
		})
	}
	return found && err == nil, err
}

// Holds returns the holds in effect, oldest first.
func (s *Installation) Holds(ctx context.Context, who caller.Caller) ([]client.RestoreHold, error) {
	if err := who.NeedOperator(); err != nil {
		return nil, err
	}
	rules, err := s.Audit.Rules(ctx)
	if err != nil {
		return nil, err
	}
	out := []client.RestoreHold{}
	for _, c := range rules.Holds() {
		out = append(out, client.RestoreHold{Before: c.Before, At: c.At, By: c.By, Why: c.Why})
	}
	return out, nil
}

// LiftHolds ends all holds. The held mail goes out as the agenda finds it.
func (s *Installation) LiftHolds(
	ctx context.Context, who caller.Caller, why string, r idempotency.Repeat,
) (client.LiftResult, bool, error) {
	if err := errors.Join(who.NeedOperator(), audit.CheckWhy(why)); err != nil {
		return client.LiftResult{}, false, err
	}
	return idempotency.Once(ctx, s.Guard, who.User, r,
		func(ctx context.Context, _ models.Claim, _ bool) (client.LiftResult, error) {
			c := models.Command{Kind: models.LiftHolds, Why: why}
			changed, err := s.Audit.Append(ctx, who, &c, func(rules *control.Rules) bool { return len(rules.Holds()) > 0 })
			return client.LiftResult{Command: string(c.Kind), Changed: changed}, err
		})
}

// HoldOld holds all mail that was accepted before now.
func (s *Installation) HoldOld(ctx context.Context, who caller.Caller, why string) error {
	if err := who.NeedOperator(); err != nil {
		return err
	}
	_, err := s.Audit.Append(ctx, who, &models.Command{Kind: models.HoldOld, Before: time.Now().UTC(), Why: why}, nil)
	return err
}
