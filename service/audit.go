package service

import (
	"context"
	"encoding/binary"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// AuditEntry is one order as it is shown.
type AuditEntry struct {
	Number   int                `json:"number"`
	At       time.Time          `json:"at"`
	By       string             `json:"by"` // a user's id, or "cli:" and a name
	Order    models.CommandKind `json:"order"`
	Why      string             `json:"why,omitempty"`
	BatchID  models.ID          `json:"batch_id,omitzero"`
	LogID    models.ID          `json:"log_id,omitzero"`
	User     string             `json:"user,omitempty"`
	Provider string             `json:"provider,omitempty"`
	Senders  []string           `json:"senders,omitempty"`
	Block    *models.Block      `json:"block,omitempty"`
	Before   time.Time          `json:"before,omitzero"`
	Subject  string             `json:"subject,omitempty"`
}

// AuditPage is a part of the audit trail; Next is empty on the last one.
type AuditPage struct {
	Orders []AuditEntry `json:"orders"`
	Next   string       `json:"next_cursor"`
}

// Audit reads the journal of orders, newest first.
func (s *Service) Audit(ctx context.Context, who Caller, p Page) (AuditPage, error) {
	if err := who.operates(); err != nil {
		return AuditPage{}, err
	}
	var q Query
	const list = "audit"
	n, from := q.limit(p), q.cursor(p, list)
	if err := q.Err(); err != nil {
		return AuditPage{}, err
	}
	if err := s.journal.Sync(ctx); err != nil {
		return AuditPage{}, storeError("read orders", err)
	}
	last := s.journal.Rules().UpTo() // the page ends below it
	if !from.IsZero() {
		last = int(binary.BigEndian.Uint32(from[:]))
	}
	first := max(0, last-n)
	lines, err := s.store.Commands(ctx, first, last-first)
	if err != nil {
		return AuditPage{}, storeError("read orders", err)
	}
	out := AuditPage{Orders: []AuditEntry{}}
	for i := len(lines) - 1; i >= 0; i-- {
		c := &lines[i]
		out.Orders = append(
			out.Orders,
			AuditEntry{Number: c.Number, At: c.At, By: c.By, Order: c.Kind, Why: c.Why, BatchID: c.Batch, LogID: c.Log,
				User: c.User, Provider: c.Provider, Senders: c.Senders, Block: c.Block, Before: c.Before, Subject: c.Subject},
		)
	}
	if first > 0 {
		var at models.ID
		binary.BigEndian.PutUint32(at[:], uint32(first)) //nolint:gosec // people do not give that many orders
		out.Next = cursorOf(list, at)
	}
	return out, nil
}

// journalPage is how many lines of the journal are searched at a time.
const journalPage = 500

// orderedBefore is nil where the journal has an order that is looked for, below a
// line (0: anywhere); where it has none, what it would be about is not found. It reads from the newest
// line back: who repeats an order whose answer was lost does so soon.
func (s *Service) orderedBefore(ctx context.Context, about string, below int, is func(*models.Command) bool) error {
	if below == 0 {
		if err := s.journal.Sync(ctx); err != nil {
			return storeError("read orders", err)
		}
		below = s.journal.Rules().UpTo() + 1
	}
	for last := below - 1; last > 0; last -= journalPage {
		first := max(0, last-journalPage)
		lines, err := s.store.Commands(ctx, first, last-first)
		if err != nil {
			return storeError("read orders", err)
		}
		for i := range lines {
			if is(&lines[i]) {
				return nil
			}
		}
	}
	return noSuch(about)
}
