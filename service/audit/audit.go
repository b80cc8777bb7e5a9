// Package audit gives commands: it appends them to the command log, which is also the audit trail.
package audit

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
	"github.com/safedelivr/safedelivr/service/caller"
	"github.com/safedelivr/safedelivr/service/operation"
	"github.com/safedelivr/safedelivr/service/problem"
)

// Deps holds what a Trail uses.
type Deps struct {
	Store     models.Store
	Follower  *control.Follower // of the process
	Sole      bool              // no other process uses the store, so workers know commands at once
	RetryTime time.Duration     // how long a write with an unknown outcome is retried
	Log       *slog.Logger
}

// Trail is the command log. Its methods may be called by many goroutines at once.
type Trail struct{ Deps }

// New returns the command log of a store.
func New(d Deps) *Trail { return &Trail{d} }

// Known returns the rules that the known commands make.
func (s *Trail) Known() *control.Rules { return s.Follower.Rules() }

// Newest returns the rules that all commands make.
func (s *Trail) Newest(ctx context.Context) (*control.Rules, error) {
	if err := s.Follower.Sync(ctx); err != nil {
		return nil, problem.FromStore("read command log", err)
	}
	return s.Known(), nil
}

// CheckWhy returns an error if the reason of a command is not valid.
func CheckWhy(why string) error { return operation.Valid(&client.Reason{Why: why}) }

// WrongWhy adds the mistake in the reason of a command, if there is one.
func WrongWhy(f *problem.Form, why string) { operation.Check(&client.Reason{Why: why}, f) }

// rulesAge is the maximum age of the rules that a use case reads.
const rulesAge = 300 * time.Millisecond

// Rules returns the rules that the command log makes, at most rulesAge old.
func (s *Trail) Rules(ctx context.Context) (*control.Rules, error) {
	if err := s.Follower.EnsureFresh(ctx, rulesAge); err != nil {
		return nil, problem.FromStore("read command log", err)
	}
	return s.Known(), nil
}

// Append appends a command to the command log unless wanted returns false for the
// rules at that point. It reports whether it appended the command. When it returns after a
// command that withholds mail, no worker starts a call against the command.
func (s *Trail) Append(
	ctx context.Context, who caller.Caller, c *models.Command, wanted func(*control.Rules) bool,
) (bool, error) {
	if err := CheckWhy(c.Why); err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(ctx, s.RetryTime)
	defer cancel()
	c.By = who.Name()
	for {
		appended, err := s.Follower.Append(ctx, c, wanted)
		if errors.Is(err, models.ErrOutcomeUnknown) && ctx.Err() == nil && wanted != nil {
			continue // if the command was appended, it is not wanted any more
		}
		if err != nil {
			return false, problem.New(problem.Unavailable, "store_unavailable",
				"The store cannot be reached, and the command may or may not be in effect. Repeat it.").After(5).Because(err)
		}
		if appended {
			s.Log.Info("command given", "command", string(c.Kind), "by", c.By,
				"batch_id", c.Batch.String(), "user_id", c.User, "provider", c.Provider)
		}
		if c.Kind.Withholds() {
			s.Await(ctx)
		}
		return appended, nil
	}
}

// Record adds what was done to the audit trail. If it cannot, what was done stands, and the log of the process has it.
func (s *Trail) Record(ctx context.Context, who caller.Caller, c *models.Command) {
	if _, err := s.Append(context.WithoutCancel(ctx), who, c, nil); err != nil {
		s.Log.Error("command missing from the audit trail",
			"command", string(c.Kind), "by", who.Name(), "user_id", c.User, "subject", c.Subject, "err", err)
	}
}

// Await returns when every worker knows all commands of the command log. A
// command that was already in effect may be a moment old, too.
func (s *Trail) Await(ctx context.Context) {
	if s.Sole {
		return
	}
	select {
	case <-time.After(control.MaxRuleAge):
	case <-ctx.Done():
	}
}

// commandPage is the number of commands that are read at a time.
const commandPage = 500

// Require returns nil if the command log has a command that matches is, with a number below the given one (0: any
// number). Otherwise it returns the error that there is no such thing. It reads backwards from the newest command,
// because a command is usually repeated soon.
func (s *Trail) Require(ctx context.Context, thing string, below int, is func(*models.Command) bool) error {
	if below == 0 {
		rules, err := s.Newest(ctx)
		if err != nil {
			return err
		}
		below = rules.UpTo() + 1
	}
	for last := below - 1; last > 0; last -= commandPage {
		first := max(0, last-commandPage)
		commands, err := s.Store.Commands(ctx, first, last-first)
		if err != nil {
			return problem.FromStore("read command log", err)
		}
		for i := range commands {
			if is(&commands[i]) {
				return nil
			}
		}
	}
	return problem.NoSuch(thing)
}
