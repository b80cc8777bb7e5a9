package erase

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/audit"
	"github.com/safedelivr/safedelivr/service/caller"
	"github.com/safedelivr/safedelivr/service/idempotency"
	"github.com/safedelivr/safedelivr/service/intake"
	"github.com/safedelivr/safedelivr/service/operation"
	"github.com/safedelivr/safedelivr/service/problem"
)

// Deps holds what an Eraser uses.
type Deps struct {
	Store     models.Store
	Broker    models.Broker
	Audit     *audit.Trail
	Guard     *idempotency.Guard
	Rooms     []Room
	InboxKeep time.Duration // how long webhook posts are kept
	Log       *slog.Logger
}

// Room is a place with free text or addresses outside of mail and posts. It has one of two functions that remove an
// address.
type Room struct {
	Name   string                                                // of its package
	All    func(ctx context.Context, address string) error       // for all users
	OfUser func(ctx context.Context, user, address string) error // for one user
}

// Eraser erases addresses. Its methods may be called by many goroutines at once.
type Eraser struct{ Deps }

// New returns an Eraser of the addresses in a store.
func New(d Deps) *Eraser { return &Eraser{d} }

// Address does a part of the erasure of an address, its name and variables from all stored mail. cursor is that of the
// answer before, or empty for the first part. A part takes a few seconds and may be repeated. Mail to the address that
// was not sent fails with the reason erased, and no command sends mail to it again. Mail that is accepted after the
// erasure has begun keeps the address. The audit trail names only the domain.
func (s *Eraser) Address(
	ctx context.Context, who caller.Caller, address, cursor, why string, r idempotency.Repeat,
) (client.Erasure, bool, error) {
	if err := who.NeedOperator(); err != nil {
		return client.Erasure{}, false, err
	}
	var f problem.Form
	audit.WrongWhy(&f, why)
	if strings.TrimSpace(address) == "" {
		f.Wrong("/email", "required", "Add email: a complete address like ada@example.com.")
	} else if a, err := intake.ParseAddress(address); err != nil {
		f.Wrong("/email", "invalid_address", "%s %s.", problem.Quote(address), err)
	} else {
		address = a.Email
	}
	if err := f.Err(); err != nil {
		return client.Erasure{}, false, err
	}
	return idempotency.Once(ctx, s.Guard, who.User, r,
		func(ctx context.Context, _ models.Claim, _ bool) (client.Erasure, error) {
			return s.part(ctx, who, address, cursor, why)
		})
}

func (s *Eraser) part(ctx context.Context, who caller.Caller, address, cursor, why string) (client.Erasure, error) {
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
	e := Erasure{Store: s.Store, Address: address, InboxKeep: s.InboxKeep,
		Erased: func(b *models.Batch, chunk models.ID) { // what waits for nothing else ends at once
			m := models.Message{Kind: models.BatchMessage, ID: chunk, Lane: b.Lane}
			if err := s.Broker.Publish(ctx, m); err != nil {
				s.Log.Debug("a chunk with an erased address is not announced; the agenda finds it", "err", err)
			}
		}}
	part, err := e.Part(ctx, cursor)
	switch {
	case errors.Is(err, models.ErrInvalid):
		var f problem.Form
		f.Wrong("/cursor", "invalid_value", "cursor must be the next_cursor of the part before.")
		return client.Erasure{}, f.Err()
	case err != nil:
		return client.Erasure{}, problem.FromStore("erase an address", err)
	}
	if part.Done {
		for i := range s.Rooms {
			if err := s.from(ctx, &s.Rooms[i], address); err != nil {
				return client.Erasure{}, problem.FromStore("erase an address from "+s.Rooms[i].Name, err)
			}
		}
		if err := record(models.AddressErased); err != nil {
			return client.Erasure{}, err
		}
	}
	return client.Erasure(part), nil
}

// from removes an address from a room.
func (s *Eraser) from(ctx context.Context, r *Room, address string) error {
	if r.All != nil {
		return r.All(ctx, address)
	}
	users, err := s.Store.Users(ctx)
	for i := range users {
		if err == nil {
			err = r.OfUser(ctx, users[i].ID, address)
		}
	}
	return err
}

// Operations returns the calls about erasures.
func Operations(s *Eraser) []operation.Operation {
	return []operation.Operation{
		operation.Changing(operation.Operation{
			Name: "eraseAddress", Route: "POST /v1/erasures", Tag: operation.TagControl, Scope: models.ScopeOperate,
			Title: "Erase an address", Returns: "What the part has done.",
			Text: "Removes an address, its name and variables from all stored recipients, events and webhook posts, and from " +
				"the search. The request does a part of the work, for a few seconds. Repeat it with `cursor` until `done`; a " +
				"part may be done again.\n\n" +
				"Mail to the address that was not sent fails with the reason `erased`. No command sends mail to it again. Mail " +
				"that is accepted after the first request keeps the address. The audit trail names only the domain.",
		}, func(
			ctx context.Context, who caller.Caller, in *struct{ Body client.NewErasure }, r idempotency.Repeat,
		) (client.Erasure, bool, error) {
			return s.Address(ctx, who, in.Body.Email, in.Body.Cursor, in.Body.Why, r)
		}),
	}
}
