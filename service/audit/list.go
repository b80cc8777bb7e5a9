package audit

import (
	"context"
	"time"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/caller"
	"github.com/safedelivr/safedelivr/service/operation"
	"github.com/safedelivr/safedelivr/service/problem"
)

// Entry is a command as the audit trail shows it.
type Entry struct {
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

// Page is a page of the audit trail. Next is empty on the last page.
type Page struct {
	Commands []Entry `json:"commands"`
	Next     string  `json:"next_cursor"`
}

// Filter selects commands of the audit trail. The zero value selects all.
type Filter struct {
	By      func(by string) bool // nil: anybody
	Command models.CommandKind   // empty: any
	Day     string               // UTC day, like 2026-01-31; empty: any
}

const (
	auditBlock = 500
	auditScan  = 10_000 // commands that one request reads
)

// Find returns a page of the commands that a filter selects, newest first. A page may be
// short and still have a next cursor.
func (s *Trail) Find(ctx context.Context, who caller.Caller, f Filter, p operation.Page) (Page, error) {
	if err := who.NeedOperator(); err != nil {
		return Page{}, err
	}
	var q operation.Query
	const list = "audit"
	n, from, day := q.Limit(p), q.Position(p, list).Entry, q.Day("day", f.Day, time.Time{})
	if err := q.Err(); err != nil {
		return Page{}, err
	}
	rules, err := s.Newest(ctx)
	if err != nil {
		return Page{}, err
	}
	last := rules.UpTo() // number of the newest command that is not read yet
	if from > 0 {
		last = from
	}
	block := n
	if f.By != nil || f.Command != "" || !day.IsZero() {
		block = auditBlock
	}
	out := Page{Commands: []Entry{}}
	for scanned := 0; last > 0 && len(out.Commands) < n && scanned < auditScan; scanned += block {
		first := max(0, last-block)
		commands, err := s.Store.Commands(ctx, first, last-first)
		if err != nil {
			return Page{}, problem.FromStore("read command log", err)
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
				out.Commands = append(out.Commands, entryOf(c))
			}
			last = c.Number - 1
		}
	}
	if last > 0 {
		out.Next = operation.Position{Entry: last}.Cursor(list)
	}
	return out, nil
}

func (f *Filter) selects(c *models.Command, day time.Time) bool {
	return (f.By == nil || f.By(c.By)) && (f.Command == "" || c.Kind == f.Command) &&
		(day.IsZero() || c.At.Before(day.Add(24*time.Hour)))
}

func entryOf(c *models.Command) Entry {
	one, several := c.Log, []models.ID(nil)
	for r := range c.Logs.All() {
		one = models.ID{}
		several = append(several, c.Log.Log(r))
	}
	entry := Entry{
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

// Operations returns the calls about the audit trail.
func Operations(s *Trail) []operation.Operation {
	return []operation.Operation{
		operation.As[client.AuditPage](operation.Reading(operation.Operation{
			Name: "listAudit", Route: "GET /v1/audit", Tag: operation.TagOperation, Scope: models.ScopeOperate,
			Title: "List the audit trail", Returns: "A page of commands.",
			Text: "All commands with their time, author and reason, newest first.",
		}, func(ctx context.Context, who caller.Caller, in *operation.OnePage) (Page, error) {
			return s.Find(ctx, who, Filter{}, in.Page)
		})),
	}
}
