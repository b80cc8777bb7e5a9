package service

import (
	"context"
	"encoding/binary"
	"errors"
	"time"
	"unicode/utf8"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
	"github.com/safedelivr/safedelivr/service/accesslog"
	"github.com/safedelivr/safedelivr/service/intake"
	"github.com/safedelivr/safedelivr/service/operation"
)

// maxWhy is the number of characters of the longest reason of a command.
const maxWhy = 500

// checkWhy returns an error if the reason of a command is not valid.
func checkWhy(why string) error {
	var f Form
	wrongWhy(&f, why)
	return f.Err()
}

// wrongWhy adds the mistake in the reason of a command, if there is one.
func wrongWhy(f *Form, why string) {
	switch {
	case !utf8.ValidString(why):
		f.Wrong("/why", "invalid_text", "why is not valid UTF-8.")
	case utf8.RuneCountInString(why) > maxWhy:
		f.Wrong("/why", "too_long", "why must have at most %d characters.", maxWhy)
	case intake.HasControls(why):
		f.Wrong("/why", "invalid_value", "why must be one line without control characters.")
	}
}

// rulesAge is the maximum age of the rules that a use case reads.
const rulesAge = 300 * time.Millisecond

// rules returns the rules that the command log makes, at most rulesAge old.
func (s *Service) rules(ctx context.Context) (*control.Rules, error) {
	if err := s.commandLog.EnsureFresh(ctx, rulesAge); err != nil {
		return nil, storeError("read command log", err)
	}
	return s.commandLog.Rules(), nil
}

// appendCommand appends a command to the command log unless wanted returns false for the
// rules at that point. It reports whether it appended the command. When it returns after a
// command that withholds mail, no worker starts a call against the command.
func (s *Service) appendCommand(
	ctx context.Context,
	who Caller,
	c *models.Command,
	wanted func(*control.Rules) bool,
) (bool, error) {
	if err := checkWhy(c.Why); err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.RetryTime)
	defer cancel()
	c.By = who.Name()
	for {
		appended, err := s.commandLog.Append(ctx, c, wanted)
		if errors.Is(err, models.ErrOutcomeUnknown) && ctx.Err() == nil && wanted != nil {
			continue // if the command was appended, it is not wanted any more
		}
		if err != nil {
			return false, Fail(Unavailable, "store_unavailable",
				"The store cannot be reached, and the command may or may not be in effect. Repeat it.").After(5).Because(err)
		}
		if appended {
			s.log.Info("command given", "command", string(c.Kind), "by", c.By,
				"batch_id", c.Batch.String(), "user_id", c.User, "provider", c.Provider)
		}
		if c.Kind.Withholds() {
			s.awaitPropagation(ctx)
		}
		return appended, nil
	}
}

// record adds what was done to the audit trail. If it cannot, what was done stands, and the log of
// the process has it.
func (s *Service) record(ctx context.Context, who Caller, c *models.Command) {
	if _, err := s.appendCommand(context.WithoutCancel(ctx), who, c, nil); err != nil {
		s.log.Error("command missing from the audit trail",
			"command", string(c.Kind), "by", who.Name(), "user_id", c.User, "subject", c.Subject, "err", err)
	}
}

// awaitPropagation returns when every worker knows all commands of the command log. A
// command that was already in effect may be a moment old, too.
func (s *Service) awaitPropagation(ctx context.Context) {
	if s.cfg.Sole {
		return
	}
	select {
	case <-time.After(control.MaxRuleAge):
	case <-ctx.Done():
	}
}

// AuditEntry is a command as the audit trail shows it.
type AuditEntry struct {
	Number   int                  `json:"number"`
	At       time.Time            `json:"at"`
	By       string               `json:"by"` // a user's ID, or "cli:" and a name
	Command  models.CommandKind   `json:"command"`
	Why      string               `json:"why,omitempty"`
	BatchID  models.ID            `json:"batch_id,omitzero"`
	LogID    models.ID            `json:"log_id,omitzero"`
	LogIDs   []models.ID          `json:"log_ids,omitempty"` // if several logs were selected
	User     string               `json:"user,omitempty"`
	Provider string               `json:"provider,omitempty"`
	Senders  []string             `json:"senders,omitempty"`
	Block    *models.Block        `json:"block,omitempty"`
	Limits   models.Limits        `json:"limits,omitempty"`
	Before   time.Time            `json:"before,omitzero"`
	Subject  string               `json:"subject,omitempty"`
	Defaults *models.SendDefaults `json:"defaults,omitempty"` // of user.defaults

	*models.Schedule // of batch.reschedule
}

// AuditPage is a page of the audit trail. Next is empty on the last page.
type AuditPage struct {
	Commands []AuditEntry `json:"commands"`
	Next     string       `json:"next_cursor"`
}

// Audit returns a page of the command log, newest first.
func (s *Service) Audit(ctx context.Context, who Caller, p Page) (AuditPage, error) {
	return s.FindAudit(ctx, who, AuditFilter{}, p)
}

// AuditFilter selects commands of the audit trail. The zero value selects all.
type AuditFilter struct {
	By      func(by string) bool // nil: anybody
	Command models.CommandKind   // empty: any
	Day     string               // UTC day, like 2026-01-31; empty: any
}

const (
	auditBlock = 500
	auditScan  = 10_000 // commands that one request reads
)

// FindAudit returns a page of the commands that a filter selects, newest first. A page may be
// short and still have a next cursor.
func (s *Service) FindAudit(ctx context.Context, who Caller, f AuditFilter, p Page) (AuditPage, error) {
	if err := who.NeedOperator(); err != nil {
		return AuditPage{}, err
	}
	var q operation.Query
	const list = "audit"
	n, from, day := q.Limit(p), q.ID(p, list), q.Day("day", f.Day, time.Time{})
	if err := q.Err(); err != nil {
		return AuditPage{}, err
	}
	if err := s.commandLog.Sync(ctx); err != nil {
		return AuditPage{}, storeError("read command log", err)
	}
	last := s.commandLog.Rules().UpTo() // number of the newest command that is not read yet
	if !from.IsZero() {
		last = int(binary.BigEndian.Uint32(from[:]))
	}
	block := n
	if f.By != nil || f.Command != "" || !day.IsZero() {
		block = auditBlock
	}
	out := AuditPage{Commands: []AuditEntry{}}
	for scanned := 0; last > 0 && len(out.Commands) < n && scanned < auditScan; scanned += block {
		first := max(0, last-block)
		commands, err := s.store.Commands(ctx, first, last-first)
		if err != nil {
			return AuditPage{}, storeError("read command log", err)
		}
		if len(commands) == 0 || commands[0].Number > last {
			return out, nil // older ones were removed
		}
		for i := len(commands) - 1; i >= 0 && len(out.Commands) < n; i-- {
			c := &commands[i]
			switch {
			case c.Number > last: // it is there in place of a removed one
				continue
			case c.At.Before(day):
				return out, nil // all others are older
			case f.selects(c, day):
				out.Commands = append(out.Commands, auditEntry(c))
			}
			last = c.Number - 1
		}
	}
	if last > 0 {
		var at models.ID
		binary.BigEndian.PutUint32(at[:], uint32(last)) //nolint:gosec // a log never has so many commands
		out.Next = operation.IDCursor(list, at)
	}
	return out, nil
}

func (f *AuditFilter) selects(c *models.Command, day time.Time) bool {
	return (f.By == nil || f.By(c.By)) && (f.Command == "" || c.Kind == f.Command) &&
		(day.IsZero() || c.At.Before(day.Add(24*time.Hour)))
}

func auditEntry(c *models.Command) AuditEntry {
	one, several := c.Log, []models.ID(nil)
	for r := range c.Logs.All() {
		one = models.ID{}
		several = append(several, c.Log.Log(r))
	}
	entry := AuditEntry{
		Number:   c.Number,
		At:       c.At,
		By:       c.By,
		Command:  c.Kind,
		Why:      c.Why,
		BatchID:  c.Batch,
		LogID:    one,
		LogIDs:   several,
		User:     c.User,
		Provider: c.Provider,
		Senders:  c.Senders,
		Block:    c.Block,
		Limits:   c.Limits,
		Before:   c.Before,
		Subject:  c.Subject,
		Schedule: c.Schedule,
	}
	if c.Kind == models.SetDefaults {
		entry.Defaults = &c.Defaults
	}
	return entry
}

// AccessEntry is a login, or a refused login or key, as the audit trail shows it.
type AccessEntry struct {
	ID      models.ID      `json:"id"`
	At      time.Time      `json:"at"`      // the first time
	LastAt  time.Time      `json:"last_at"` // the last time, within an hour
	Count   int            `json:"count"`
	Kind    accesslog.Kind `json:"kind"`
	Reason  string         `json:"reason"`
	User    string         `json:"user,omitempty"` // ID
	Login   string         `json:"github_login,omitempty"`
	Key     string         `json:"key,omitempty"`     // ID
	Address string         `json:"address,omitempty"` // or an IPv6 network; empty: many
}

// AccessPage is a page of the access log. Next is empty on the last page.
type AccessPage struct {
	Entries []AccessEntry `json:"entries"`
	Next    string        `json:"next_cursor"`
}

// AccessLog returns a page of the access log, newest first. An empty kind selects all.
func (s *Service) AccessLog(ctx context.Context, who Caller, kind accesslog.Kind, p Page) (AccessPage, error) {
	if err := who.NeedOperator(); err != nil {
		return AccessPage{}, err
	}
	var q operation.Query
	list := "access " + string(kind)
	n, from := q.Limit(p), q.ID(p, list)
	if kind != "" && !kind.Valid() {
		q.Bad("kind", "kind must be login, login.failed or key.failed.")
	}
	if err := q.Err(); err != nil {
		return AccessPage{}, err
	}
	entries, err := s.access.List(ctx, kind, from, n+1)
	if err != nil {
		return AccessPage{}, storeError("read access log", err)
	}
	out := AccessPage{Entries: []AccessEntry{}}
	for i := range entries[:min(len(entries), n)] {
		e := &entries[i]
		out.Entries = append(out.Entries, AccessEntry{
			ID:      e.ID,
			At:      e.First,
			LastAt:  e.Last,
			Count:   e.Count,
			Kind:    e.Kind,
			Reason:  e.Reason,
			User:    e.User,
			Login:   e.Login,
			Key:     e.Key,
			Address: e.Address,
		})
	}
	if len(entries) > n {
		out.Next = operation.IDCursor(list, entries[n-1].ID)
	}
	return out, nil
}

// RecordAccess adds a login, or a refused one, to the access log. A login is stored when
// RecordAccess returns nil.
func (s *Service) RecordAccess(ctx context.Context, e accesslog.Event) error {
	s.access.Add(e)
	if e.Kind != accesslog.Login {
		return nil
	}
	if err := s.access.Write(ctx); err != nil {
		return storeError("write access log", err)
	}
	return nil
}

// commandPage is the number of commands that are read at a time.
const commandPage = 500

// requireCommand returns nil if the command log has a command that matches is, with a
// number below the given one (0: any number). Otherwise it returns the error that there is
// no such thing. It reads backwards from the newest command, because a command is usually
// repeated soon.
func (s *Service) requireCommand(ctx context.Context, thing string, below int, is func(*models.Command) bool) error {
	if below == 0 {
		if err := s.commandLog.Sync(ctx); err != nil {
			return storeError("read command log", err)
		}
		below = s.commandLog.Rules().UpTo() + 1
	}
	for last := below - 1; last > 0; last -= commandPage {
		first := max(0, last-commandPage)
		commands, err := s.store.Commands(ctx, first, last-first)
		if err != nil {
			return storeError("read command log", err)
		}
		for i := range commands {
			if is(&commands[i]) {
				return nil
			}
		}
	}
	return noSuch(thing)
}
