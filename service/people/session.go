package people

import (
	"context"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/caller"
	"github.com/safedelivr/safedelivr/service/idempotency"
	"github.com/safedelivr/safedelivr/service/problem"
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
