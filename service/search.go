package service

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/erase"
	"github.com/safedelivr/safedelivr/service/intake"
	"github.com/safedelivr/safedelivr/service/problem"
)

// Bounds of the work of one search. A page may be short and still have a next cursor.
const (
	searchHours  = 48
	searchBytes  = 64 << 20 // of fingerprints
	searchChunks = 200
)

// FoundLog is a log that a search found.
type FoundLog struct {
	LogView
	BatchID   models.ID `json:"batch_id"`
	Subject   string    `json:"subject"`
	CreatedAt time.Time `json:"created_at"`
}

// FoundPage is a page of search results. Next is empty on the last page.
type FoundPage struct {
	Logs []FoundLog `json:"logs"`
	Next string     `json:"next_cursor"`
}

// Search returns a page of the caller's logs of an address, newest first. The address may
// have any form that a batch may give it. Search finds a log from its first attempt on,
// until its address is removed.
func (s *Service) Search(ctx context.Context, who Caller, address string, p Page) (FoundPage, error) {
	var q query
	address = q.address(address)
	list := "search " + who.User + " " + address
	n, before := q.limit(p), q.cursor(p, list)
	if err := q.err(); err != nil {
		return FoundPage{}, err
	}
	if before.IsZero() {
		copy(before[:], bytes.Repeat([]byte{0xff}, len(before)))
	}
	out, next, err := s.search(ctx, who.User, address, before, n)
	if err != nil {
		return FoundPage{}, storeError("search", err)
	}
	page := FoundPage{Logs: out}
	if !next.IsZero() {
		page.Next = cursorOf(list, next)
	}
	return page, nil
}

// address returns an address to search for as batches hold it, in lower case.
func (q *query) address(text string) string {
	if strings.TrimSpace(text) == "" {
		q.Wrong("/email", "required", "Add email: a complete address like ada@example.com.")
		return ""
	}
	a, err := intake.ParseAddress(text)
	if err != nil {
		q.bad("email", "%s %s.", problem.Quote(text), err)
	}
	return strings.ToLower(a.Email)
}

// search reads the hours from the newest to the oldest, and in each hour the chunks whose
// address index may contain the address. next is the position of the next page, or the
// zero ID on the last page.
func (s *Service) search(
	ctx context.Context,
	user, address string,
	before models.ID,
	n int,
) (logs []FoundLog, next models.ID, err error) {
	logs = []FoundLog{}
	fingerprint := models.Fingerprint(address)
	limit := time.Now().Add(48 * time.Hour) // clocks of processes differ
	if before[0] != 0xff {
		limit = before.Time().Truncate(time.Hour)
		if before != models.MinID(limit) { // otherwise that whole hour was read
			limit = limit.Add(time.Hour)
		}
	}
	read, chunks := 0, 0
	hours, err := s.store.AddressIndexHours(ctx, user, limit, searchHours)
	if err != nil {
		return nil, models.ID{}, err
	}
	for _, hour := range hours {
		var match []models.ID
		for p, err := range s.store.AddressIndexes(ctx, user, hour) {
			if err != nil {
				return nil, models.ID{}, err
			}
			read += len(p.Fingerprints)
			if p.MayContain(fingerprint) && bytes.Compare(p.Chunk[:], before[:]) < 0 {
				match = append(match, p.Chunk)
			}
		}
		slices.SortFunc(match, func(a, b models.ID) int { return bytes.Compare(b[:], a[:]) })
		for _, id := range match {
			if chunks++; chunks > searchChunks {
				return logs, before, nil
			}
			found, err := s.searchChunk(ctx, id, address)
			if err != nil {
				return nil, models.ID{}, err
			}
			if len(logs)+len(found) > n && len(logs) > 0 {
				return logs, before, nil
			}
			logs = append(logs, found...)
			before = id
		}
		before = models.MinID(hour)
		if read > searchBytes {
			return logs, before, nil
		}
	}
	if len(hours) == searchHours {
		return logs, before, nil
	}
	return logs, models.ID{}, nil
}

// searchChunk returns the logs of an address in a chunk.
func (s *Service) searchChunk(ctx context.Context, id models.ID, address string) ([]FoundLog, error) {
	b, err := s.store.Batch(ctx, id.Batch())
	if errors.Is(err, models.ErrNotFound) || err == nil && b.Redacted {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	recipients, view, _, err := s.chunk(ctx, &b, id)
	if err != nil {
		return nil, err
	}
	w, err := s.waiting(ctx)
	if err != nil {
		return nil, err
	}
	waits := w.logs(&b, view, recipients)
	var out []FoundLog
	for i := range recipients {
		if strings.EqualFold(recipients[i].Email, address) {
			out = append(out, FoundLog{
				viewLog(id.Log(i+1), &recipients[i], view, waits[i]),
				b.ID,
				b.Content.Subject,
				b.Created(),
			})
		}
	}
	return out, nil
}

// Erasure tells what a part of an erasure has done.
type Erasure struct {
	Done       bool   `json:"done"`
	Next       string `json:"next_cursor"` // of the next part; empty: the erasure is done
	Batches    int    `json:"batches"`     // read
	Recipients int    `json:"recipients"`  // that have lost the address
	Posts      int    `json:"posts"`       // webhook posts that named the address
	Unreadable int    `json:"unreadable"`  // damaged batches: the address may be in them
}

// Erase does a part of the erasure of an address, its name and variables from all stored
// mail: the first one, or that of the next cursor of the part before. A part takes a few
// seconds and may be repeated. Mail to the address that was not sent fails with the reason
// erased, and no command sends mail to it again. Mail that is accepted after the erasure has
// begun keeps the address. The audit trail names only the domain.
func (s *Service) Erase(
	ctx context.Context,
	who Caller,
	address, cursor, why string,
	r Repeat,
) (Erasure, bool, error) {
	if err := who.operates(); err != nil {
		return Erasure{}, false, err
	}
	var f Form
	wrongWhy(&f, why)
	if strings.TrimSpace(address) == "" {
		f.Wrong("/email", "required", "Add email: a complete address like ada@example.com.")
	} else if a, err := intake.ParseAddress(address); err != nil {
		f.Wrong("/email", "invalid_address", "%s %s.", Quote(address), err)
	} else {
		address = a.Email
	}
	if err := f.Err(); err != nil {
		return Erasure{}, false, err
	}
	return once(ctx, s, who, r, func(ctx context.Context, _ models.Claim, _ bool) (Erasure, error) {
		return s.erase(ctx, who, address, cursor, why)
	})
}

func (s *Service) erase(ctx context.Context, who Caller, address, cursor, why string) (Erasure, error) {
	record := func(kind models.CommandKind) error {
		_, err := s.appendCommand(ctx, who,
			&models.Command{Kind: kind, Subject: "@" + models.DomainOf(address), Why: why}, nil)
		return err
	}
	if cursor == "" {
		if err := record(models.EraseAddress); err != nil {
			return Erasure{}, err
		}
	}
	e := erase.Erasure{Store: s.store, Address: address, InboxKeep: s.cfg.InboxKeep,
		Erased: func(b *models.Batch, chunk models.ID) { // what waits for nothing else ends at once
			m := models.Message{Kind: models.BatchMessage, ID: chunk, Lane: b.Lane}
			if err := s.broker.Publish(ctx, m); err != nil {
				s.log.Debug("a chunk with an erased address is not announced; the agenda finds it", "err", err)
			}
		}}
	part, err := e.Part(ctx, cursor)
	switch {
	case errors.Is(err, models.ErrInvalid):
		var f Form
		f.Wrong("/cursor", "invalid_value", "cursor must be the next_cursor of the part before.")
		return Erasure{}, f.Err()
	case err != nil:
		return Erasure{}, storeError("erase an address", err)
	}
	if part.Done {
		if err := record(models.AddressErased); err != nil {
			return Erasure{}, err
		}
	}
	return Erasure(part), nil
}
