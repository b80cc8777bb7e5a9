package people

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
	"github.com/safedelivr/safedelivr/service/audit"
	"github.com/safedelivr/safedelivr/service/caller"
	"github.com/safedelivr/safedelivr/service/idempotency"
	"github.com/safedelivr/safedelivr/service/intake"
	"github.com/safedelivr/safedelivr/service/problem"
)

// maxSenders is the number of senders that a user may have.
const maxSenders = 100

// AllowedSenders says which senders a user may use.
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
func (s *People) AllowedSenders(ctx context.Context, who caller.Caller) (AllowedSenders, error) {
	rules, err := s.Audit.Rules(ctx)
	if err != nil {
		return AllowedSenders{}, err
	}
	return allowedSenders(rules, who.User), nil
}

// AllowedSendersOf returns the senders that a user, given by ID or name, may use.
func (s *People) AllowedSendersOf(ctx context.Context, who caller.Caller, user string) (AllowedSenders, error) {
	u, err := s.User(ctx, who, user)
	if err != nil {
		return AllowedSenders{}, err
	}
	return s.AllowedSenders(ctx, caller.Caller{User: u.ID})
}

// SetSenders sets the senders that a user may use: addresses, or @domain for a whole
// domain. With an empty list the user may not send.
func (s *People) SetSenders(
	ctx context.Context, who caller.Caller, user string, senders []string, why string, r idempotency.Repeat,
) (AllowedSenders, bool, error) {
	if err := who.NeedOperator(); err != nil {
		return AllowedSenders{}, false, err
	}
	var f problem.Form
	clean := make([]string, 0, len(senders))
	for i, one := range senders {
		a, err := ParseSender(strings.ToLower(strings.TrimSpace(one)))
		if err != nil || a.Name != "" {
			f.Wrong("/senders/"+strconv.Itoa(i), "invalid_sender", "%s is neither an address nor @domain.", problem.Quote(one))
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
	return idempotency.Once(ctx, s.Guard, who.User, r,
		func(ctx context.Context, _ models.Claim, _ bool) (AllowedSenders, error) {
			u, err := s.Find(ctx, user)
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

// ParseSender parses an address, or @domain for a whole domain. It returns the form in which senders are compared.
func ParseSender(s string) (models.Address, error) {
	local := ""
	if strings.HasPrefix(s, "@") {
		local = "x"
	}
	a, err := intake.ParseAddress(local + s)
	a.Email = strings.TrimPrefix(a.Email, local)
	return a, err
}

// CheckSender returns an error if the user may not use the sender of a batch.
func (s *People) CheckSender(ctx context.Context, user string, from models.Address) error {
	rules, err := s.Audit.Rules(ctx)
	if err != nil {
		return err
	}
	allowed := allowedSenders(rules, user)
	if allowed.Anyone || slices.ContainsFunc(allowed.Senders, from.Matches) {
		return nil
	}
	var f problem.Form
	if len(allowed.Senders) == 0 {
		f.Wrong("/from", "sender_not_allowed", "You may not send yet. Ask an operator to allow your senders.")
	} else {
		f.Wrong("/from", "sender_not_allowed", "You may not send as %s. You may send as %s.",
			problem.Quote(from.Email), strings.Join(allowed.Senders, ", "))
	}
	return f.Err()
}
