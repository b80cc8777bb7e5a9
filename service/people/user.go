package people

import (
	"cmp"
	"context"
	"errors"
	"reflect"
	"slices"
	"time"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
	"github.com/safedelivr/safedelivr/service/audit"
	"github.com/safedelivr/safedelivr/service/caller"
	"github.com/safedelivr/safedelivr/service/idempotency"
	"github.com/safedelivr/safedelivr/service/intake"
	"github.com/safedelivr/safedelivr/service/operation"
	"github.com/safedelivr/safedelivr/service/problem"
)

// Owners returns the IDs of the users whose mail a list has: everybody's if the caller wants
// that, else the given one's, else the caller's.
func (s *People) Owners(ctx context.Context, who caller.Caller, user string) ([]string, error) {
	if who.Everyone || user != "" && user != who.User {
		if err := who.NeedOperator(); err != nil {
			return nil, err
		}
	}
	if user != "" {
		return []string{user}, nil
	}
	out := []string{who.User}
	if !who.Everyone {
		return out, nil
	}
	users, err := s.All(ctx)
	if err != nil {
		return nil, err
	}
	for i := range users {
		if users[i].ID != who.User {
			out = append(out, users[i].ID)
		}
	}
	return out, nil
}

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

// Users returns the first MaxUsers users by name, and the number of all users.
func (s *People) Users(ctx context.Context, who caller.Caller) (list []client.User, all int, err error) {
	if err := who.NeedOperator(); err != nil {
		return nil, 0, err
	}
	users, err := s.All(ctx)
	if err != nil {
		return nil, 0, err
	}
	rules, err := s.Audit.Rules(ctx)
	if err != nil {
		return nil, 0, err
	}
	sorted := slices.SortedFunc(slices.Values(users), func(a, b models.User) int { return cmp.Compare(a.Name, b.Name) })
	for i := range sorted[:min(len(sorted), MaxUsers)] {
		list = append(list, userView(rules, &sorted[i]))
	}
	return list, len(users), nil
}

// ListUsers returns a page of all users, oldest first.
func (s *People) ListUsers(ctx context.Context, who caller.Caller, p operation.Page) (client.UserPage, error) {
	if err := who.NeedOperator(); err != nil {
		return client.UserPage{}, err
	}
	var q operation.Query
	n, from := q.Limit(p), q.Position(p, usersCursor)
	if err := q.Err(); err != nil {
		return client.UserPage{}, err
	}
	users, err := s.oldestUsers(ctx)
	if err != nil {
		return client.UserPage{}, err
	}
	rules, err := s.Audit.Rules(ctx)
	if err != nil {
		return client.UserPage{}, err
	}
	out := client.UserPage{Users: []client.User{}}
	for i := from.Entry; i < len(users); i++ {
		if len(out.Users) == n {
			out.Next = operation.Position{Entry: i}.Cursor(usersCursor)
			break
		}
		out.Users = append(out.Users, userView(rules, &users[i]))
	}
	return out, nil
}

// UserView returns the user with an ID or a name, as operators see it.
func (s *People) UserView(ctx context.Context, who caller.Caller, name string) (client.User, error) {
	u, err := s.User(ctx, who, name)
	if err != nil {
		return client.User{}, err
	}
	rules, err := s.Audit.Rules(ctx)
	if err != nil {
		return client.User{}, err
	}
	return userView(rules, &u), nil
}

// MaxUsers is the number of users that pages of operators show, or count, at most.
const MaxUsers = 1000

// usersAge is how long the list of users is cached.
const usersAge = 5 * time.Second

// oldestUsers returns all users, oldest first. Users are never deleted, so a user keeps the place.
func (s *People) oldestUsers(ctx context.Context) ([]models.User, error) {
	users, err := s.Store.Users(ctx)
	if err != nil {
		return nil, problem.FromStore("list users", err)
	}
	slices.SortFunc(users, func(a, b models.User) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.ID, b.ID))
	})
	return users, nil
}

// User returns the user with an ID or a name.
func (s *People) User(ctx context.Context, who caller.Caller, name string) (models.User, error) {
	if err := who.NeedOperator(); err != nil {
		return models.User{}, err
	}
	return s.Find(ctx, name)
}

// Find returns the user with an ID or a name to a caller who may know it.
func (s *People) Find(ctx context.Context, name string) (models.User, error) {
	return find(ctx, s.Store, name)
}

func find(ctx context.Context, store models.Store, name string) (models.User, error) {
	u, err := store.User(ctx, name)
	if errors.Is(err, models.ErrNotFound) {
		u, err = store.UserByName(ctx, name)
	}
	if errors.Is(err, models.ErrNotFound) {
		return u, problem.NoSuch("user")
	}
	if err != nil {
		return u, problem.FromStore("find user", err)
	}
	return u, nil
}

// Control pauses or resumes all batches of a user, given by ID or name. Callers may control themselves; operators may
// control every user. Only an operator resumes a user that an operator paused.
func (s *People) Control(
	ctx context.Context, who caller.Caller, do models.CommandKind, user, why string, r idempotency.Repeat,
) (client.ControlResult, bool, error) {
	if err := s.mayControl(ctx, who, user, why); err != nil {
		return client.ControlResult{}, false, err
	}
	return idempotency.Once(ctx, s.Guard, who.User, r,
		func(ctx context.Context, _ models.Claim, older bool) (client.ControlResult, error) {
			u, err := s.Find(ctx, user)
			if err != nil {
				return client.ControlResult{}, err
			}
			if do == models.ResumeUser && !older { // a repeat may only fetch its answer
				if err := s.Limits.TakeCommand(who, u.ID); err != nil {
					return client.ControlResult{}, err
				}
			}
			allowed := true
			command := models.Command{Kind: do, User: u.ID, Why: why}
			changed, err := s.Audit.Append(ctx, who, &command, func(rules *control.Rules) bool {
				by := rules.PausedBy(u.ID)
				if do == models.PauseUser {
					// An operator confirms a user's pause, so that the user cannot end it.
					return by == "" || by == u.ID && who.Name() != u.ID
				}
				allowed = who.MayRelease(by, u.ID)
				return by != "" && allowed
			})
			if err == nil && !allowed {
				return client.ControlResult{}, problem.New(problem.Forbidden, "paused_by_operator",
					"An operator has paused this user, and only an operator can resume it.")
			}
			if err == nil && do == models.ResumeUser {
				s.Audit.Await(ctx) // a worker that does not know the command drops the announcements
				s.Resumed(ctx, u.ID)
			}
			return client.ControlResult{Name: u.Name, Command: string(do), Changed: changed}, err
		})
}

// mayControl returns an error if the caller may not give a command about a user, given by ID or
// name, or if the reason is not valid.
func (s *People) mayControl(ctx context.Context, who caller.Caller, user, why string) error {
	if who.NeedOperator() != nil {
		if err := s.isSelf(ctx, who, user); err != nil {
			return err
		}
	}
	return audit.CheckWhy(why)
}

// ownerOf returns the user, given by ID or name, whose settings and keys the caller may change: see mayControl.
func (s *People) ownerOf(ctx context.Context, who caller.Caller, user, why string) (models.User, error) {
	if err := s.mayControl(ctx, who, user, why); err != nil {
		return models.User{}, err
	}
	return s.Find(ctx, user)
}

// isSelf returns nil if name is the ID or the name of a caller who may send.
func (s *People) isSelf(ctx context.Context, who caller.Caller, name string) error {
	if name != who.User {
		u, err := s.Find(ctx, name)
		if err != nil || u.ID != who.User {
			return who.NeedOperator() // do not reveal whether the user exists
		}
	}
	return who.Need(models.ScopeSend)
}

// Switch disables or enables a user, given by ID or name. The keys of a disabled user are
// refused, the sessions end, and the user cannot log in. Mail that was accepted goes on;
// models.PauseUser withholds it. When Switch returns, every process knows the command.
func (s *People) Switch(
	ctx context.Context, who caller.Caller, do models.CommandKind, user, why string, r idempotency.Repeat,
) (client.ControlResult, bool, error) {
	if err := errors.Join(who.NeedOperator(), audit.CheckWhy(why)); err != nil {
		return client.ControlResult{}, false, err
	}
	return idempotency.Once(ctx, s.Guard, who.User, r,
		func(ctx context.Context, _ models.Claim, _ bool) (client.ControlResult, error) {
			u, err := s.Find(ctx, user)
			if err != nil {
				return client.ControlResult{}, err
			}
			if do == models.DisableUser && u.ID == who.User {
				return client.ControlResult{}, problem.New(problem.Conflict, "own_user",
					"You cannot disable yourself. Ask another operator.")
			}
			command := models.Command{Kind: do, User: u.ID, Why: why}
			changed, err := s.Audit.Append(ctx, who, &command, func(rules *control.Rules) bool {
				return (rules.Disabled(u.ID) != nil) != (do == models.DisableUser)
			})
			if err == nil && do == models.DisableUser {
				s.Audit.Await(ctx)
				err = s.dropSessions(ctx, u.ID)
			}
			return client.ControlResult{Name: u.Name, Command: string(do), Changed: changed}, err
		})
}

// Defaults says what a batch of a user has if its request names nothing else.
type Defaults struct {
	User string `json:"user"` // ID
	models.SendDefaults
	Changed bool `json:"-"` // a command changed them
}

// Defaults returns the defaults of a user, given by ID or name. Callers may read their own; operators those of every
// user.
func (s *People) Defaults(ctx context.Context, who caller.Caller, user string) (Defaults, error) {
	u, err := s.ownerOf(ctx, who, user, "")
	if err != nil {
		return Defaults{}, err
	}
	rules, err := s.Audit.Rules(ctx)
	if err != nil {
		return Defaults{}, err
	}
	return Defaults{User: u.ID, SendDefaults: rules.Defaults(u.ID)}, nil
}

// SetDefaults replaces the defaults of a user, given by ID or name, by the time zone and the window of a request.
// Callers may set their own; operators those of every user. Batches that were accepted keep theirs.
func (s *People) SetDefaults(
	ctx context.Context, who caller.Caller, user string, times intake.Times, why string,
) (Defaults, error) {
	u, err := s.ownerOf(ctx, who, user, why)
	if err != nil {
		return Defaults{}, err
	}
	to, err := times.SendDefaults()
	if err != nil {
		return Defaults{}, err
	}
	out := Defaults{User: u.ID, SendDefaults: to}
	command := models.Command{Kind: models.SetDefaults, User: u.ID, Defaults: to, Why: why}
	out.Changed, err = s.Audit.Append(ctx, who, &command, func(rules *control.Rules) bool {
		return !reflect.DeepEqual(rules.Defaults(u.ID), to)
	})
	return out, err
}

func userDisabled() *problem.Error {
	return problem.New(problem.Forbidden, "user_disabled",
		"An operator has disabled this user. Ask an operator for access.")
}

// Lists whose cursors are positions.
const (
	usersCursor = "users"
	keysCursor  = "keys"
)

// EndSessions ends all sessions of a user, given by ID or name. Callers may end their own; operators may end those of
// every user. When EndSessions returns, no process accepts a session that began before.
func (s *People) EndSessions(
	ctx context.Context, who caller.Caller, user, why string, r idempotency.Repeat,
) (client.ControlResult, bool, error) {
	if err := s.mayControl(ctx, who, user, why); err != nil {
		return client.ControlResult{}, false, err
	}
	return idempotency.Once(ctx, s.Guard, who.User, r,
		func(ctx context.Context, _ models.Claim, _ bool) (client.ControlResult, error) {
			u, err := s.Find(ctx, user)
			if err != nil {
				return client.ControlResult{}, err
			}
			out := client.ControlResult{Name: u.Name, Command: string(models.EndSessions)}
			used, err := s.Store.Transients(ctx, SessionUseKind(u.ID))
			if err != nil {
				return out, problem.FromStore("list sessions", err)
			}
			if len(used) == 0 {
				return out, nil
			}
			command := models.Command{Kind: models.EndSessions, User: u.ID, Why: why}
			if out.Changed, err = s.Audit.Append(ctx, who, &command, nil); err != nil {
				return out, err
			}
			s.Audit.Await(ctx)
			return out, s.dropSessions(ctx, u.ID)
		})
}

// SessionKind returns the kind of the transient values that hold the sessions of a user.
func SessionKind(user string) string { return "session." + user }

// SessionUseKind returns the kind of the transient values that hold the last uses of the
// sessions of a user. A session without one has ended.
func SessionUseKind(user string) string { return "seen." + user }

// dropSessions removes the sessions of a user that a command has ended. A session that began
// after the command may be removed, too.
func (s *People) dropSessions(ctx context.Context, user string) error {
	open, err := s.Store.Transients(ctx, SessionKind(user))
	if err != nil {
		return problem.FromStore("list sessions", err)
	}
	for hash := range open {
		for _, kind := range []string{SessionKind(user), SessionUseKind(user)} {
			if err := s.Store.PutTransient(ctx, kind, hash, nil, 0); err != nil {
				return problem.FromStore("end session", err)
			}
		}
	}
	return nil
}

// AdmitSession returns the number of the newest command, for a session of a user that begins
// now. It returns an error if the user is disabled.
func (s *People) AdmitSession(ctx context.Context, user string) (upTo int, err error) {
	rules, err := s.Audit.Newest(ctx)
	if err != nil {
		return 0, err
	}
	upTo = rules.UpTo() // read first: a command that follows ends the session
	if rules.Disabled(user) != nil {
		return 0, userDisabled()
	}
	return upTo, nil
}

// SessionEnded reports whether a command has ended a session of a user that AdmitSession
// admitted. It knows commands that are older than a moment.
func (s *People) SessionEnded(ctx context.Context, user string, upTo int) (bool, error) {
	rules, err := s.Audit.Rules(ctx)
	if err != nil {
		return false, err
	}
	return rules.Disabled(user) != nil || rules.SessionsEnded(user) > upTo, nil
}
