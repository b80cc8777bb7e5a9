package service

import (
	"context"
	"errors"
	"strings"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/drift"
	"github.com/safedelivr/safedelivr/service/audit"
	"github.com/safedelivr/safedelivr/service/erase"
	"github.com/safedelivr/safedelivr/service/intake"
)

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
) (client.Erasure, bool, error) {
	if err := who.NeedOperator(); err != nil {
		return client.Erasure{}, false, err
	}
	var f Form
	audit.WrongWhy(&f, why)
	if strings.TrimSpace(address) == "" {
		f.Wrong("/email", "required", "Add email: a complete address like ada@example.com.")
	} else if a, err := intake.ParseAddress(address); err != nil {
		f.Wrong("/email", "invalid_address", "%s %s.", Quote(address), err)
	} else {
		address = a.Email
	}
	if err := f.Err(); err != nil {
		return client.Erasure{}, false, err
	}
	return once(ctx, s, who, r, func(ctx context.Context, _ models.Claim, _ bool) (client.Erasure, error) {
		return s.erase(ctx, who, address, cursor, why)
	})
}

func (s *Service) erase(ctx context.Context, who Caller, address, cursor, why string) (client.Erasure, error) {
	record := func(kind models.CommandKind) error {
		_, err := s.Audit.Append(ctx, who,
			&models.Command{Kind: kind, Subject: "@" + models.DomainOf(address), Why: why}, nil)
		return err
	}
	if cursor == "" {
		if err := record(models.EraseAddress); err != nil {
			return client.Erasure{}, err
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
		return client.Erasure{}, f.Err()
	case err != nil:
		return client.Erasure{}, storeError("erase an address", err)
	}
	if part.Done {
		if err := s.Suppressions.Erase(ctx, address); err != nil {
			return client.Erasure{}, err
		}
		if err := drift.Forget(ctx, s.store, address, func(*drift.Entry) bool { return true }); err != nil {
			return client.Erasure{}, storeError("erase an address on lists of providers", err)
		}
		if err := s.eraseDrafts(ctx, address); err != nil {
			return client.Erasure{}, err
		}
		if err := record(models.AddressErased); err != nil {
			return client.Erasure{}, err
		}
	}
	return client.Erasure(part), nil
}

// eraseDrafts removes an address from the drafts of all users.
func (s *Service) eraseDrafts(ctx context.Context, address string) error {
	users, err := s.store.Users(ctx)
	if err != nil {
		return storeError("read users", err)
	}
	for i := range users {
		if err := s.drafts.Erase(ctx, users[i].ID, address); err != nil {
			return err
		}
	}
	return nil
}
