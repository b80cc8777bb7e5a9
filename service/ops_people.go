package service

import (
	"context"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/operation"
)

// erasureOperations are the calls about erasures.
func erasureOperations(s *Service) []operation.Operation {
	return []operation.Operation{
		operation.Changing(operation.Operation{
			Name: "eraseAddress", Route: "POST /v1/erasures", Tag: operation.TagControl, Scope: models.ScopeOperate,
			Title: "Erase an address", Returns: "What the part has done.",
			Text: "Removes an address, its name and variables from all stored recipients, events and webhook posts, and from the " +
				"search. The request does a part of the work, for a few seconds. Repeat it with `cursor` until `done`; a part may " +
				"be done again.\n\n" +
				"Mail to the address that was not sent fails with the reason `erased`. No command sends mail to it again. Mail " +
				"that is accepted after the first request keeps the address. The audit trail names only the domain.",
		}, func(ctx context.Context, who Caller, in *struct{ Body client.NewErasure }, r Repeat) (client.Erasure, bool, error) {
			return s.Erase(ctx, who, in.Body.Email, in.Body.Cursor, in.Body.Why, r)
		}),
	}
}
