package service

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
)

// maxSenders bounds the senders of a user.
const maxSenders = 100

// Sending says as whom a user may send.
type Sending struct {
	User    string   `json:"user"`
	Set     bool     `json:"set"`     // false: no operator has set it; see Anyone
	Anyone  bool     `json:"anyone"`  // any sender may be used
	Senders []string `json:"senders"` // addresses, or @domain
	Changed bool     `json:"changed,omitempty"`
}

// anyone reports whether a user of whom nobody has said as whom to send may use
// any sender. Who came in through GitHub may use none: anybody could have.
func anyone(user string) bool { return !strings.HasPrefix(user, GitHubUser) }

// GitHubUser begins the ids of users that came in through GitHub.
const GitHubUser = "gh"

func sending(rules *control.Rules, user string) Sending {
	list, set := rules.Senders(user)
	if list == nil {
		list = []string{}
	}
	return Sending{User: user, Set: set, Anyone: !set && anyone(user), Senders: list}
}

// Sending says as whom the caller may send.
func (s *Service) Sending(ctx context.Context, who Caller) (Sending, error) {
	rules, err := s.rules(ctx)
	if err != nil {
		return Sending{}, err
	}
	return sending(rules, who.User), nil
}

// SendingOf says as whom a user, named by id or name, may send.
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

// SetSenders sets as whom a user may send: addresses, or @domain for all of a
// domain; an empty list means as nobody.
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
		f.Wrong("/senders", "too_many", "At most %d senders.", maxSenders)
	}
	if err := f.Err(); err != nil {
		return Sending{}, false, err
	}
	return once(ctx, s, who, r, func(ctx context.Context, _ models.Claim, _ bool) (Sending, error) {
		u, err := s.user(ctx, user)
		if err != nil {
			return Sending{}, err
		}
		changed, err := s.order(
			ctx,
			who,
			&models.Command{Kind: models.SetSenders, User: u.ID, Senders: clean, Why: why},
			func(rules *control.Rules) bool {
				list, set := rules.Senders(u.ID)
				return !set || !slices.Equal(list, clean)
			},
		)
		return Sending{User: u.ID, Set: true, Senders: clean, Changed: changed}, err
	})
}

// parseSender reads an address, or @domain for all of a domain, and returns it in
// the form that senders are compared in.
func parseSender(s string) (models.Address, error) {
	local := ""
	if strings.HasPrefix(s, "@") {
		local = "x"
	}
	a, err := ParseAddress(local + s)
	a.Email = strings.TrimPrefix(a.Email, local)
	return a, err
}

// maySend returns an error where the user may not use the sender of a batch.
func (s *Service) maySend(ctx context.Context, user string, from models.Address) error {
	rules, err := s.rules(ctx)
	if err != nil {
		return err
	}
	may := sending(rules, user)
	if may.Anyone || slices.ContainsFunc(may.Senders, func(p string) bool { return models.SenderMatches(p, from.Email) }) {
		return nil
	}
	var f Form
	if len(may.Senders) == 0 {
		f.Wrong("/from", "sender_not_allowed", "You may not send yet: an operator sets which senders you may use.")
	} else {
		f.Wrong("/from", "sender_not_allowed", "%s is none of the senders that you may use: %s.", Quote(from.Email), strings.Join(may.Senders, ", "))
	}
	return f.Err()
}
