package service

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
	"github.com/safedelivr/safedelivr/service/audit"
	"github.com/safedelivr/safedelivr/service/intake"
)

// Blocks returns the block rules, oldest first.
func (s *Service) Blocks(ctx context.Context, who Caller) ([]models.Block, error) {
	if err := who.NeedOperator(); err != nil {
		return nil, err
	}
	rules, err := s.Audit.Rules(ctx)
	if err != nil {
		return nil, err
	}
	return append([]models.Block{}, rules.Blocks()...), nil
}

// AddBlock adds a block rule and returns it. If an equal rule exists, it returns that rule
// instead.
func (s *Service) AddBlock(
	ctx context.Context,
	who Caller,
	b models.Block,
	why string,
	r Repeat,
) (models.Block, bool, error) {
	if err := who.NeedOperator(); err != nil {
		return b, false, err
	}
	return once(ctx, s, who, r, func(ctx context.Context, c models.Claim, _ bool) (models.Block, error) {
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
func (s *Service) checkBlock(ctx context.Context, b *models.Block, why string) error {
	var f Form
	audit.WrongWhy(&f, why)
	if b.Provider == "" && b.User == "" && b.Sender == "" && b.Domain == "" {
		f.Wrong("", "required", "Give at least one of provider, user, sender and domain.")
	}
	if b.Provider != "" && !s.known[b.Provider] {
		f.Wrong("/provider", "unknown_provider", "No provider is called %s.", Quote(b.Provider))
	}
	if b.User != "" {
		u, err := s.user(ctx, b.User)
		var e *Error
		if errors.As(err, &e) && e.Kind != NotFound {
			return err
		}
		if err != nil {
			f.Wrong("/user", "invalid_value", "There is no user %s.", Quote(b.User))
		}
		b.User = u.ID
	}
	if b.Sender != "" {
		a, err := parseSender(b.Sender)
		if err != nil {
			f.Wrong("/sender", "invalid_address", "sender must be an address, or @domain for a whole domain.")
		}
		b.Sender = a.Email
	}
	if b.Domain != "" {
		a, err := intake.ParseAddress("x@" + b.Domain)
		if err != nil {
			f.Wrong("/domain", "invalid_value", "%s is not a domain.", Quote(b.Domain))
		}
		b.Domain = strings.TrimPrefix(a.Email, "x@")
	}
	return f.Err()
}

// RemoveBlock removes a block rule. It reports whether that changed anything: a rule that
// was removed before stays removed.
func (s *Service) RemoveBlock(ctx context.Context, who Caller, id, why string) (changed bool, err error) {
	if err := who.NeedOperator(); err != nil {
		return false, err
	}
	if err := audit.CheckWhy(why); err != nil {
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
func (s *Service) Holds(ctx context.Context, who Caller) ([]client.RestoreHold, error) {
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
func (s *Service) LiftHolds(ctx context.Context, who Caller, why string, r Repeat) (client.LiftResult, bool, error) {
	if err := who.NeedOperator(); err != nil {
		return client.LiftResult{}, false, err
	}
	if err := audit.CheckWhy(why); err != nil {
		return client.LiftResult{}, false, err
	}
	return once(ctx, s, who, r, func(ctx context.Context, _ models.Claim, _ bool) (client.LiftResult, error) {
		c := models.Command{Kind: models.LiftHolds, Why: why}
		changed, err := s.Audit.Append(ctx, who, &c, func(rules *control.Rules) bool { return len(rules.Holds()) > 0 })
		return client.LiftResult{Command: string(c.Kind), Changed: changed}, err
	})
}

// HoldOld holds all mail that was accepted before now.
func (s *Service) HoldOld(ctx context.Context, who Caller, why string) error {
	if err := who.NeedOperator(); err != nil {
		return err
	}
	_, err := s.Audit.Append(ctx, who, &models.Command{Kind: models.HoldOld, Before: time.Now().UTC(), Why: why}, nil)
	return err
}

// maxSenders is the number of senders that a user may have.
const maxSenders = 100

// AllowedSenders tells which senders a user may use.
type AllowedSenders struct {
	User    string   `json:"user"`
	Set     bool     `json:"set"`     // false if no operator has set the senders
	Anyone  bool     `json:"anyone"`  // the user may use any sender
	Senders []string `json:"senders"` // addresses, or @domain for a whole domain
	Changed bool     `json:"changed,omitempty"`
}

// anyone reports whether a user may use any sender as long as no operator has set the
// senders. A user who logs in through GitHub may use none, because everyone can.
func anyone(user string) bool { return !strings.HasPrefix(user, GitHubUser) }

// GitHubUser is the prefix of the IDs of users who log in through GitHub.
const GitHubUser = "gh"

func allowedSenders(rules *control.Rules, user string) AllowedSenders {
	list, set := rules.Senders(user)
	if list == nil {
		list = []string{}
	}
	return AllowedSenders{User: user, Set: set, Anyone: !set && anyone(user), Senders: list}
}

// AllowedSenders returns the senders that the caller may use.
func (s *Service) AllowedSenders(ctx context.Context, who Caller) (AllowedSenders, error) {
	rules, err := s.Audit.Rules(ctx)
	if err != nil {
		return AllowedSenders{}, err
	}
	return allowedSenders(rules, who.User), nil
}

// AllowedSendersOf returns the senders that a user, given by ID or name, may use.
func (s *Service) AllowedSendersOf(ctx context.Context, who Caller, user string) (AllowedSenders, error) {
	if err := who.NeedOperator(); err != nil {
		return AllowedSenders{}, err
	}
	u, err := s.user(ctx, user)
	if err != nil {
		return AllowedSenders{}, err
	}
	rules, err := s.Audit.Rules(ctx)
	if err != nil {
		return AllowedSenders{}, err
	}
	return allowedSenders(rules, u.ID), nil
}

// SetSenders sets the senders that a user may use: addresses, or @domain for a whole
// domain. With an empty list the user may not send.
func (s *Service) SetSenders(
	ctx context.Context,
	who Caller,
	user string,
	senders []string,
	why string,
	r Repeat,
) (AllowedSenders, bool, error) {
	if err := who.NeedOperator(); err != nil {
		return AllowedSenders{}, false, err
	}
	var f Form
	clean := make([]string, 0, len(senders))
	for i, one := range senders {
		a, err := parseSender(strings.ToLower(strings.TrimSpace(one)))
		if err != nil || a.Name != "" {
			f.Wrong("/senders/"+strconv.Itoa(i), "invalid_sender", "%s is neither an address nor @domain.", Quote(one))
		} else if !slices.Contains(clean, a.Email) {
			clean = append(clean, a.Email)
		}
	}
	if len(clean) > maxSenders {
		f.Wrong("/senders", "too_many", "A user may have at most %d senders.", maxSenders)
	}
	audit.WrongWhy(&f, why)
	if err := f.Err(); err != nil {
		return AllowedSenders{}, false, err
	}
	return once(ctx, s, who, r, func(ctx context.Context, _ models.Claim, _ bool) (AllowedSenders, error) {
		u, err := s.user(ctx, user)
		if err != nil {
			return AllowedSenders{}, err
		}
		command := models.Command{Kind: models.SetSenders, User: u.ID, Senders: clean, Why: why}
		changed, err := s.Audit.Append(ctx, who, &command, func(rules *control.Rules) bool {
			list, set := rules.Senders(u.ID)
			return !set || !slices.Equal(list, clean)
		})
		return AllowedSenders{User: u.ID, Set: true, Senders: clean, Changed: changed}, err
	})
}

// parseSender parses an address, or @domain for a whole domain. It returns the form in
// which senders are compared.
func parseSender(s string) (models.Address, error) {
	local := ""
	if strings.HasPrefix(s, "@") {
		local = "x"
	}
	a, err := intake.ParseAddress(local + s)
	a.Email = strings.TrimPrefix(a.Email, local)
	return a, err
}

// checkSender returns an error if the user may not use the sender of a batch.
func (s *Service) checkSender(ctx context.Context, user string, from models.Address) error {
	rules, err := s.Audit.Rules(ctx)
	if err != nil {
		return err
	}
	allowed := allowedSenders(rules, user)
	matches := func(sender string) bool { return models.SenderMatches(sender, from.Email) }
	if allowed.Anyone || slices.ContainsFunc(allowed.Senders, matches) {
		return nil
	}
	var f Form
	if len(allowed.Senders) == 0 {
		f.Wrong("/from", "sender_not_allowed", "You may not send yet. Ask an operator to allow your senders.")
	} else {
		f.Wrong("/from", "sender_not_allowed", "You may not send as %s. You may send as %s.",
			Quote(from.Email), strings.Join(allowed.Senders, ", "))
	}
	return f.Err()
}
