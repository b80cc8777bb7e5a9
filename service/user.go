package service

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"reflect"
	"slices"
	"time"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
	"github.com/safedelivr/safedelivr/service/intake"
)

func userView(rules *control.Rules, u *models.User) client.User {
	allowed := allowedSenders(rules, u.ID)
	v := client.User{
		ID:        u.ID,
		Name:      u.Name,
		Created:   u.Created,
		Paused:    rules.Paused(u.ID),
		AnySender: allowed.Anyone,
		Senders:   allowed.Senders,
	}
	if c := rules.Disabled(u.ID); c != nil {
		v.Disabled, v.DisabledBy, v.DisabledAt, v.DisabledWhy = true, c.By, c.At, c.Why
	}
	return v
}

// Users returns the first maxUsers users by name, and the number of all users.
func (s *Service) Users(ctx context.Context, who Caller) (list []client.User, all int, err error) {
	if err := who.NeedOperator(); err != nil {
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
	for i := range sorted[:min(len(sorted), maxUsers)] {
		list = append(list, userView(rules, &sorted[i]))
	}
	return list, len(users), nil
}

// ListUsers returns a page of all users, oldest first.
func (s *Service) ListUsers(ctx context.Context, who Caller, p Page) (client.UserPage, error) {
	if err := who.NeedOperator(); err != nil {
		return client.UserPage{}, err
	}
	var q query
	n, from := q.limit(p), q.position(p, usersCursor)
	if err := q.err(); err != nil {
		return client.UserPage{}, err
	}
	users, err := s.oldestUsers(ctx)
	if err != nil {
		return client.UserPage{}, err
	}
	rules, err := s.rules(ctx)
	if err != nil {
		return client.UserPage{}, err
	}
	out := client.UserPage{Users: []client.User{}}
	for i := from.user; i < len(users); i++ {
		if len(out.Users) == n {
			out.Next = position{user: i}.cursor(usersCursor)
			break
		}
		out.Users = append(out.Users, userView(rules, &users[i]))
	}
	return out, nil
}

// UserView returns the user with an ID or a name, as operators see it.
func (s *Service) UserView(ctx context.Context, who Caller, name string) (client.User, error) {
	u, err := s.User(ctx, who, name)
	if err != nil {
		return client.User{}, err
	}
	rules, err := s.rules(ctx)
	if err != nil {
		return client.User{}, err
	}
	return userView(rules, &u), nil
}

// oldestUsers returns all users, oldest first. Users are never deleted, so a user keeps the
// place.
func (s *Service) oldestUsers(ctx context.Context) ([]models.User, error) {
	users, err := s.store.Users(ctx)
	if err != nil {
		return nil, storeError("list users", err)
	}
	slices.SortFunc(users, func(a, b models.User) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.ID, b.ID))
	})
	return users, nil
}

// User returns the user with an ID or a name.
func (s *Service) User(ctx context.Context, who Caller, name string) (models.User, error) {
	if err := who.NeedOperator(); err != nil {
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

// ControlUser pauses or resumes all batches of a user, given by ID or name. Callers may
// control themselves; operators may control every user. Only an operator resumes a user
// that an operator paused.
func (s *Service) ControlUser(
	ctx context.Context,
	who Caller,
	do models.CommandKind,
	user, why string,
	r Repeat,
) (client.ControlResult, bool, error) {
	if err := s.mayControl(ctx, who, user, why); err != nil {
		return client.ControlResult{}, false, err
	}
	return once(ctx, s, who, r, func(ctx context.Context, _ models.Claim, older bool) (client.ControlResult, error) {
		u, err := s.user(ctx, user)
		if err != nil {
			return client.ControlResult{}, err
		}
		if do == models.ResumeUser && !older { // a repeat may only fetch its answer
			if err := s.takeCommand(who, u.ID); err != nil {
				return client.ControlResult{}, err
			}
		}
		allowed := true
		command := models.Command{Kind: do, User: u.ID, Why: why}
		changed, err := s.appendCommand(ctx, who, &command, func(rules *control.Rules) bool {
			by := rules.PausedBy(u.ID)
			if do == models.PauseUser {
				// An operator confirms a user's pause, so that the user cannot end it.
				return by == "" || by == u.ID && who.Name() != u.ID
			}
			allowed = who.MayRelease(by, u.ID)
			return by != "" && allowed
		})
		if err == nil && !allowed {
			return client.ControlResult{}, Fail(Forbidden, "paused_by_operator",
				"An operator has paused this user, and only an operator can resume it.")
		}
		if err == nil && do == models.ResumeUser {
			s.awaitPropagation(ctx) // a worker that does not know the command drops the announcements
			s.announceNewest(ctx, u.ID)
		}
		return client.ControlResult{Name: u.Name, Command: string(do), Changed: changed}, err
	})
}

// mayControl returns an error if the caller may not give a command about a user, given by ID or
// name, or if the reason is not valid.
func (s *Service) mayControl(ctx context.Context, who Caller, user, why string) error {
	if who.NeedOperator() != nil {
		if err := s.isSelf(ctx, who, user); err != nil {
			return err
		}
	}
	return checkWhy(why)
}

// isSelf returns nil if name is the ID or the name of a caller who may send.
func (s *Service) isSelf(ctx context.Context, who Caller, name string) error {
	if name != who.User {
		u, err := s.user(ctx, name)
		if err != nil || u.ID != who.User {
			return who.NeedOperator() // do not reveal whether the user exists
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
		if sum, _, err := s.total(ctx, b); err == nil && !b.Damaged && b.StateOf(sum, time.Now()) != models.BatchDone {
			s.announce[b.Lane].Add(b.ID, b.Chunks, b.Lane)
		}
	}
}

// SwitchUser disables or enables a user, given by ID or name. The keys of a disabled user are
// refused, the sessions end, and the user cannot log in. Mail that was accepted goes on;
// models.PauseUser withholds it. When SwitchUser returns, every process knows the command.
func (s *Service) SwitchUser(
	ctx context.Context,
	who Caller,
	do models.CommandKind,
	user, why string,
	r Repeat,
) (client.ControlResult, bool, error) {
	if err := who.NeedOperator(); err != nil {
		return client.ControlResult{}, false, err
	}
	if err := checkWhy(why); err != nil {
		return client.ControlResult{}, false, err
	}
	return once(ctx, s, who, r, func(ctx context.Context, _ models.Claim, _ bool) (client.ControlResult, error) {
		u, err := s.user(ctx, user)
		if err != nil {
			return client.ControlResult{}, err
		}
		if do == models.DisableUser && u.ID == who.User {
			return client.ControlResult{}, Fail(Conflict, "own_user", "You cannot disable yourself. Ask another operator.")
		}
		command := models.Command{Kind: do, User: u.ID, Why: why}
		changed, err := s.appendCommand(ctx, who, &command, func(rules *control.Rules) bool {
			return (rules.Disabled(u.ID) != nil) != (do == models.DisableUser)
		})
		if err == nil && do == models.DisableUser {
			s.awaitPropagation(ctx)
			err = s.dropSessions(ctx, u.ID)
		}
		return client.ControlResult{Name: u.Name, Command: string(do), Changed: changed}, err
	})
}

// EndSessions ends all sessions of a user, given by ID or name. Callers may end their own;
// operators may end those of every user. When EndSessions returns, no process accepts a
// session that began before.
func (s *Service) EndSessions(
	ctx context.Context,
	who Caller,
	user, why string,
	r Repeat,
) (client.ControlResult, bool, error) {
	if err := s.mayControl(ctx, who, user, why); err != nil {
		return client.ControlResult{}, false, err
	}
	return once(ctx, s, who, r, func(ctx context.Context, _ models.Claim, _ bool) (client.ControlResult, error) {
		u, err := s.user(ctx, user)
		if err != nil {
			return client.ControlResult{}, err
		}
		out := client.ControlResult{Name: u.Name, Command: string(models.EndSessions)}
		used, err := s.store.Transients(ctx, SessionUseKind(u.ID))
		if err != nil {
			return out, storeError("list sessions", err)
		}
		if len(used) == 0 {
			return out, nil
		}
		command := models.Command{Kind: models.EndSessions, User: u.ID, Why: why}
		if out.Changed, err = s.appendCommand(ctx, who, &command, nil); err != nil {
			return out, err
		}
		s.awaitPropagation(ctx)
		return out, s.dropSessions(ctx, u.ID)
	})
}

// DefaultsView tells what a batch of a user has if its request names nothing else.
type DefaultsView struct {
	User string `json:"user"` // ID
	models.SendDefaults
	Changed bool `json:"-"` // a command changed them
}

// Defaults returns the defaults of a user, given by ID or name. Callers may read their own; operators those of every
// user.
func (s *Service) Defaults(ctx context.Context, who Caller, user string) (DefaultsView, error) {
	if err := s.mayControl(ctx, who, user, ""); err != nil {
		return DefaultsView{}, err
	}
	u, err := s.user(ctx, user)
	if err != nil {
		return DefaultsView{}, err
	}
	rules, err := s.rules(ctx)
	if err != nil {
		return DefaultsView{}, err
	}
	return DefaultsView{User: u.ID, SendDefaults: rules.Defaults(u.ID)}, nil
}

// SetDefaults replaces the defaults of a user, given by ID or name, by the time zone and the window of a request.
// Callers may set their own; operators those of every user. Batches that were accepted keep theirs.
func (s *Service) SetDefaults(
	ctx context.Context, who Caller, user string, times intake.Times, why string,
) (DefaultsView, error) {
	if err := s.mayControl(ctx, who, user, why); err != nil {
		return DefaultsView{}, err
	}
	u, err := s.user(ctx, user)
	if err != nil {
		return DefaultsView{}, err
	}
	to, err := times.SendDefaults()
	if err != nil {
		return DefaultsView{}, err
	}
	out := DefaultsView{User: u.ID, SendDefaults: to}
	command := models.Command{Kind: models.SetDefaults, User: u.ID, Defaults: to, Why: why}
	out.Changed, err = s.appendCommand(ctx, who, &command, func(rules *control.Rules) bool {
		return !reflect.DeepEqual(rules.Defaults(u.ID), to)
	})
	return out, err
}

// SessionKind returns the kind of the transient values that hold the sessions of a user.
func SessionKind(user string) string { return "session." + user }

// SessionUseKind returns the kind of the transient values that hold the last uses of the
// sessions of a user. A session without one has ended.
func SessionUseKind(user string) string { return "seen." + user }

// dropSessions removes the sessions of a user that a command has ended. A session that began
// after the command may be removed, too.
func (s *Service) dropSessions(ctx context.Context, user string) error {
	open, err := s.store.Transients(ctx, SessionKind(user))
	if err != nil {
		return storeError("list sessions", err)
	}
	for hash := range open {
		for _, kind := range []string{SessionKind(user), SessionUseKind(user)} {
			if err := s.store.PutTransient(ctx, kind, hash, nil, 0); err != nil {
				return storeError("end session", err)
			}
		}
	}
	return nil
}

// AdmitSession returns the number of the newest command, for a session of a user that begins
// now. It returns an error if the user is disabled.
func (s *Service) AdmitSession(ctx context.Context, user string) (upTo int, err error) {
	if err := s.commandLog.Sync(ctx); err != nil {
		return 0, storeError("read command log", err)
	}
	rules := s.commandLog.Rules()
	upTo = rules.UpTo() // read first: a command that follows ends the session
	if rules.Disabled(user) != nil {
		return 0, userDisabled()
	}
	return upTo, nil
}

// SessionEnded reports whether a command has ended a session of a user that AdmitSession
// admitted. It knows commands that are older than a moment.
func (s *Service) SessionEnded(ctx context.Context, user string, upTo int) (bool, error) {
	rules, err := s.rules(ctx)
	if err != nil {
		return false, err
	}
	return rules.Disabled(user) != nil || rules.SessionsEnded(user) > upTo, nil
}

func userDisabled() *Error {
	return Fail(Forbidden, "user_disabled", "An operator has disabled this user. Ask an operator for access.")
}

// Lists whose cursors are positions.
const (
	usersCursor = "users"
	keysCursor  = "keys"
)

// position is a place in a list that only grows: a user, and a key of the user.
type position struct{ user, key int }

func (p position) cursor(list string) string {
	var at models.ID
	binary.BigEndian.PutUint64(at[:], uint64(p.user))   //nolint:gosec // never negative
	binary.BigEndian.PutUint64(at[8:], uint64(p.key)+1) //nolint:gosec // never negative; no position is the zero ID
	return cursorOf(list, at)
}

// position returns the position in p.Cursor.
func (q *query) position(p Page, list string) position {
	at := q.cursor(p, list)
	if at.IsZero() {
		return position{}
	}
	return position{
		user: int(binary.BigEndian.Uint64(at[:])),      //nolint:gosec // cursorOf wrote it
		key:  int(binary.BigEndian.Uint64(at[8:])) - 1, //nolint:gosec // cursorOf wrote it
	}
}
