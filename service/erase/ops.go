package erase

import (
	"context"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/caller"
	"github.com/safedelivr/safedelivr/service/idempotency"
	"github.com/safedelivr/safedelivr/service/operation"
)

// Operations returns the calls about erasures.
func Operations(s *Eraser) []operation.Operation {
	return []operation.Operation{
		operation.Changing(operation.Operation{
			Name: "eraseAddress", Route: "POST /v1/erasures", Tag: operation.TagControl, Scope: models.ScopeOperate,
			Title: "Erase an address", Returns: "What the part has done.",
			Text: "Removes an address, its name and variables from all stored recipients, events and webhook posts, and from the " +
				"search. The request does a part of the work, for a few seconds. Repeat it with `cursor` until `done`; a part may " +
				"be done again.\n\n" +
				"Mail to the address that was not sent fails with the reason `erased`. No command sends mail to it again. Mail " +
				"that is accepted after the first request keeps the address. The audit trail names only the domain.",
		}, func(ctx context.Context, who caller.Caller, in *struct{ Body client.NewErasure }, r idempotency.Repeat) (client.Erasure, bool, error) {
			return s.Address(ctx, who, in.Body.Email, in.Body.Cursor, in.Body.Why, r)
		}),
	}
}
