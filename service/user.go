package service

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
)

// UserView is a user as operators see it.
type UserView struct {
	ID      string
	Name    string
	Created time.Time
	Paused  bool // none of the user's mail goes out
	Sending AllowedSenders
}

// Users returns the first maxUsers users by name, and the number of all users.
func (s *Service) Users(ctx context.Context, who Caller) (list []UserView, all int, err error) {
	if err := who.operates(); err != nil {
		return nil, 0, err
	}
	users, err := s.users.get(usersAge, func() ([]models.User, error) { return s.store.Users(ctx) })
	if err != nil {
		return nil, 0, storeError("list users", err)
	}
	rules, err := s.rules(ctx)
	if err != nil {
		return nil, 0, err
	}
	sorted := slices.SortedFunc(slices.Values(users), func(a, b models.User) int { return cmp.Compare(a.Name, b.Name) })
	for _, u := range sorted[:min(len(sorted), maxUsers)] {
		list = append(list, UserView{
			ID:      u.ID,
			Name:    u.Name,
			Created: u.Created,
			Paused:  rules.Paused(u.ID),
			Sending: allowedSenders(rules, u.ID),
		})
	}
	return list, len(users), nil
}

// User returns the user with an ID or a name.
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

// ControlResult tells what a command about a user or a provider did.
type ControlResult struct {
	Name    string             `json:"name"`
	Command models.CommandKind `json:"command"`
	Changed bool               `json:"changed"` // false if the command was already in effect
}

// ControlUser pauses or resumes all batches of a user, given by ID or name. Callers may
// control themselves; operators may control every user. Only an operator resumes a user
// that an operator paused.
func (s *Service) ControlUser(
	ctx context.Context,
	who Caller,
	do models.CommandKind,
	user, why string,
	r Repeat,
) (ControlResult, bool, error) {
	if who.operates() != nil {
		if err := s.isSelf(ctx, who, user); err != nil {
			return ControlResult{}, false, err
		}
	}
	if err := checkWhy(why); err != nil {
		return ControlResult{}, false, err
	}
	return once(ctx, s, who, r, func(ctx context.Context, _ models.Claim, older bool) (ControlResult, error) {
		u, err := s.user(ctx, user)
		if err != nil {
			return ControlResult{}, err
		}
		if do == models.ResumeUser && !older { // a repeat may only fetch its answer
			if err := s.takeCommand(who, u.ID); err != nil {
				return ControlResult{}, err
			}
		}
		allowed := true
		command := models.Command{Kind: do, User: u.ID, Why: why}
		changed, err := s.appendCommand(ctx, who, &command, func(rules *control.Rules) bool {
			by := rules.PausedBy(u.ID)
			if do == models.PauseUser {
				// An operator confirms a user's pause, so that the user cannot end it.
				return by == "" || by == u.ID && who.by() != u.ID
			}
			allowed = who.mayRelease(by, u.ID)
			return by != "" && allowed
		})
		if err == nil && !allowed {
			return ControlResult{}, Fail(Forbidden, "paused_by_operator",
				"An operator has paused this user, and only an operator can resume it.")
		}
		if err == nil && do == models.ResumeUser {
			s.awaitPropagation(ctx) // a worker that does not know the command drops the announcements
			s.announceNewest(ctx, u.ID)
		}
		return ControlResult{Name: u.Name, Command: do, Changed: changed}, err
	})
}

// isSelf returns nil if name is the ID or the name of a caller who may send.
func (s *Service) isSelf(ctx context.Context, who Caller, name string) error {
	if name != who.User {
		u, err := s.user(ctx, name)
		if err != nil || u.ID != who.User {
			return who.operates() // do not reveal whether the user exists
		}
	}
	return who.Need(models.ScopeSend)
}

// maxAnnounced is the number of batches that are announced when a user is resumed.
const maxAnnounced = 100

// announceNewest announces the newest unfinished batches of a user, so that they go out at
// once. The agenda finds the others.
func (s *Service) announceNewest(ctx context.Context, user string) {
	batches, err := s.store.Batches(ctx, user, models.ID{}, maxAnnounced)
	if err != nil {
		s.log.Warn("cannot announce the batches of a resumed user; the agenda announces them later",
			"user_id", user, "err", err)
		return
	}
	for i := range batches {
		b := &batches[i]
		if sum, err := s.total(ctx, b); err == nil && !b.Damaged && b.StateOf(sum) != models.BatchDone {
			s.announce[b.Lane].Add(b.ID, b.Chunks, b.Lane)
		}
	}
}
