package service

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
)

// Switched is how a user or a provider is switched.
type Switched struct {
	Name    string             `json:"name"`
	Order   models.CommandKind `json:"order"`
	Changed bool               `json:"changed"` // false: it stood like that before
}

// SwitchUser pauses or resumes all batches of a user, named by id or name: one's
// own, or for an operator anybody's. What an operator paused, an operator resumes.
func (s *Service) SwitchUser(
	ctx context.Context,
	who Caller,
	do models.CommandKind,
	user, why string,
	r Repeat,
) (Switched, bool, error) {
	if who.operates() != nil {
		if err := s.isSelf(ctx, who, user); err != nil {
			return Switched{}, false, err
		}
	}
	return once(ctx, s, who, r, func(ctx context.Context, _ models.Claim, _ bool) (Switched, error) {
		u, err := s.user(ctx, user)
		if err != nil {
			return Switched{}, err
		}
		mine := true
		changed, err := s.order(ctx, who, &models.Command{Kind: do, User: u.ID, Why: why}, func(rules *control.Rules) bool {
			by := rules.PausedBy(u.ID)
			if do == models.PauseUser {
				return by == "" || by == u.ID && who.by() != u.ID // nobody takes back by himself what an operator confirms
			}
			mine = who.mayRelease(by, u.ID)
			return by != "" && mine
		})
		if err == nil && !mine {
			return Switched{}, Fail(
				Forbidden,
				"paused_by_operator",
				"An operator has paused this user, and only an operator can resume it.",
			)
		}
		if err == nil && do == models.ResumeUser {
			s.awaitPropagation(ctx) // who does not know it yet lets the announcements pass
			s.announceNewest(ctx, u.ID)
		}
		return Switched{Name: u.Name, Order: do, Changed: changed}, err
	})
}

// isSelf is nil where a name, or an id, is that of who asks, who may send.
func (s *Service) isSelf(ctx context.Context, who Caller, name string) error {
	if name != who.User {
		u, err := s.user(ctx, name)
		if err != nil || u.ID != who.User {
			return who.operates() // whether there is such a user is not for everybody
		}
	}
	return who.Need(models.ScopeSend)
}

// announceNewest announces the newest batches of a user that are not done, so that
// they go on at once; who has the agenda looks for the rest.
func (s *Service) announceNewest(ctx context.Context, user string) {
	batches, err := s.store.Batches(ctx, user, models.ID{}, maxAnnounced)
	if err != nil {
		s.log.Warn("batches of a resumed user wait for the agenda", "user_id", user, "err", err)
		return
	}
	for i := range batches {
		b := &batches[i]
		if sum, err := s.total(ctx, b); err == nil && !b.Damaged && b.StateOf(sum) != models.BatchDone {
			s.announce[b.Lane].add(b)
		}
	}
}

// maxAnnounced is how many batches are announced at a resume.
const maxAnnounced = 100

// User finds a user by id or name.
func (s *Service) User(ctx context.Context, who Caller, name string) (models.User, error) {
	if err := who.operates(); err != nil {
		return models.User{}, err
	}
	return s.user(ctx, name)
}

func (s *Service) user(ctx context.Context, name string) (models.User, error) {
	u, err := s.store.User(ctx, name)
	if errors.Is(err, models.ErrNotFound) {
		u, err = s.store.UserByName(ctx, name)
	}
	if errors.Is(err, models.ErrNotFound) {
		return u, noSuch("user")
	}
	if err != nil {
		return u, storeError("find user", err)
	}
	return u, nil
}

// SwitchProvider takes a provider offline, online, or drains it.
func (s *Service) SwitchProvider(
	ctx context.Context,
	who Caller,
	do models.CommandKind,
	provider, why string,
	r Repeat,
) (Switched, bool, error) {
	if err := who.operates(); err != nil {
		return Switched{}, false, err
	}
	return once(ctx, s, who, r, func(ctx context.Context, _ models.Claim, _ bool) (Switched, error) {
		if !s.known[provider] {
			return Switched{}, noSuch("provider")
		}
		changed, err := s.order(
			ctx,
			who,
			&models.Command{Kind: do, Provider: provider, Why: why},
			func(rules *control.Rules) bool {
				return rules.Provider(provider).Mode != do
			},
		)
		return Switched{Name: provider, Order: do, Changed: changed}, err
	})
}

// ProbeProvider has a provider tried at once that mail keeps away from because it was
// refused, slow, silent or down: what is held against it is forgotten, and one mail
// shows how it is. It says for which provider, and does so each time.
func (s *Service) ProbeProvider(
	ctx context.Context,
	who Caller,
	provider, why string,
	r Repeat,
) (Switched, bool, error) {
	if err := who.operates(); err != nil {
		return Switched{}, false, err
	}
	return once(ctx, s, who, r, func(ctx context.Context, _ models.Claim, _ bool) (Switched, error) {
		if !s.known[provider] {
			return Switched{}, noSuch("provider")
		}
		offline := false
		changed, err := s.order(
			ctx,
			who,
			&models.Command{Kind: models.ProviderProbe, Provider: provider, Why: why},
			func(rules *control.Rules) bool {
				offline = rules.Provider(provider).Mode == models.ProviderOffline
				return !offline
			},
		)
		if err == nil && offline {
			return Switched{}, Fail(
				Conflict,
				"provider_offline",
				"The provider is offline, so that nothing can show how it is: bring it online first.",
			)
		}
		return Switched{Name: provider, Order: models.ProviderProbe, Changed: changed}, err
	})
}

// Switches tells how all providers are switched.
func (s *Service) Switches(ctx context.Context) (map[string]control.ProviderSwitch, error) {
	rules, err := s.rules(ctx)
	if err != nil {
		return nil, err
	}
	out := map[string]control.ProviderSwitch{}
	for name := range s.known {
		out[name] = rules.Provider(name)
	}
	return out, nil
}

// Blocks lists the block rules, oldest first.
func (s *Service) Blocks(ctx context.Context, who Caller) ([]models.Block, error) {
	if err := who.operates(); err != nil {
		return nil, err
	}
	rules, err := s.rules(ctx)
	if err != nil {
		return nil, err
	}
	return append([]models.Block{}, rules.Blocks()...), nil
}

// AddBlock sets up a block rule. One that is there already, with the same words
// in all fields that choose mail, is returned instead.
func (s *Service) AddBlock(
	ctx context.Context,
	who Caller,
	b models.Block,
	why string,
	r Repeat,
) (models.Block, bool, error) {
	if err := who.operates(); err != nil {
		return b, false, err
	}
	return once(ctx, s, who, r, func(ctx context.Context, c models.Claim, _ bool) (models.Block, error) {
		if err := s.checkBlock(ctx, &b); err != nil {
			return b, err
		}
		b.ID = c.ID.String()
		_, err := s.order(
			ctx,
			who,
			&models.Command{Kind: models.AddBlock, Block: &b, Why: why},
			func(rules *control.Rules) bool {
				_, there := sameBlock(rules, &b)
				return !there
			},
		)
		if there, ok := sameBlock(s.journal.Rules(), &b); ok && err == nil {
			b = there
		}
		return b, err
	})
}

func sameBlock(rules *control.Rules, b *models.Block) (models.Block, bool) {
	for _, o := range rules.Blocks() {
		if o.Provider == b.Provider && o.User == b.User && o.Sender == b.Sender && o.Domain == b.Domain && o.Fail == b.Fail {
			return o, true
		}
	}
	return models.Block{}, false
}

// checkBlock checks a rule and brings it into its stored form.
func (s *Service) checkBlock(ctx context.Context, b *models.Block) error {
	var f Form
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
			f.Wrong("/sender", "invalid_address", "sender is an address, or @domain for all of a domain.")
		}
		b.Sender = a.Email
	}
	if b.Domain != "" {
		a, err := ParseAddress("x@" + b.Domain)
		if err != nil {
			f.Wrong("/domain", "invalid_value", "%s is not a domain.", Quote(b.Domain))
		}
		b.Domain = strings.TrimPrefix(a.Email, "x@")
	}
	return f.Err()
}

// RemoveBlock ends a block rule. It tells whether that changed something: a rule
// that was ended by an earlier order stays so.
func (s *Service) RemoveBlock(ctx context.Context, who Caller, id, why string) (changed bool, err error) {
	if err := who.operates(); err != nil {
		return false, err
	}
	found := false
	_, err = s.order(
		ctx,
		who,
		&models.Command{Kind: models.RemoveBlock, Block: &models.Block{ID: id}, Why: why},
		func(rules *control.Rules) bool {
			there := slices.ContainsFunc(rules.Blocks(), func(b models.Block) bool { return b.ID == id })
			found = found || there
			return there
		},
	)
	if err == nil && !found {
		err = s.orderedBefore(ctx, "block rule", 0, func(c *models.Command) bool {
			return c.Kind == models.RemoveBlock && c.Block != nil && c.Block.ID == id
		})
	}
	return found && err == nil, err
}
