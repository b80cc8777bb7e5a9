package service

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
	"github.com/safedelivr/safedelivr/service/intake"
)

// maxSenders is the number of senders that a user may have.
const maxSenders = 100

// Sending tells which senders a user may use.
type Sending struct {
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

func sending(rules *control.Rules, user string) Sending {
	list, set := rules.Senders(user)
	if list == nil {
		list = []string{}
	}
	return Sending{User: user, Set: set, Anyone: !set && anyone(user), Senders: list}
}

// Sending returns the senders that the caller may use.
func (s *Service) Sending(ctx context.Context, who Caller) (Sending, error) {
	rules, err := s.rules(ctx)
	if err != nil {
		return Sending{}, err
	}
	return sending(rules, who.User), nil
}

// SendingOf returns the senders that a user, given by ID or name, may use.
func (s *Service) SendingOf(ctx context.Context, who Caller, user string) (Sending, error) {
	if err := who.operates(); err != nil {
		return Sending{}, err
	}
	u, err := s.user(ctx, user)
	if err != nil {
		return Sending{}, err
	}
	rules, err := s.rules(ctx)
	if err != nil {
		return Sending{}, err
	}
	return sending(rules, u.ID), nil
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
) (Sending, bool, error) {
	if err := who.operates(); err != nil {
		return Sending{}, false, err
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
	if err := f.Err(); err != nil {
		return Sending{}, false, err
	}
	return once(ctx, s, who, r, func(ctx context.Context, _ models.Claim, _ bool) (Sending, error) {
		u, err := s.user(ctx, user)
		if err != nil {
			return Sending{}, err
		}
		command := models.Command{Kind: models.SetSenders, User: u.ID, Senders: clean, Why: why}
		changed, err := s.appendCommand(ctx, who, &command, func(rules *control.Rules) bool {
			list, set := rules.Senders(u.ID)
			return !set || !slices.Equal(list, clean)
		})
		return Sending{User: u.ID, Set: true, Senders: clean, Changed: changed}, err
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
	rules, err := s.rules(ctx)
	if err != nil {
		return err
	}
	allowed := sending(rules, user)
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
