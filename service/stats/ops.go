package stats

import (
	"context"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/caller"
	"github.com/safedelivr/safedelivr/service/operation"
)

// Operations returns the calls about counts.
func Operations(s *Reader) []operation.Operation {
	return []operation.Operation{
		operation.As[client.Stats](operation.Reading(operation.Operation{
			Name: "getStats", Route: "GET /v1/stats", Tag: operation.TagStats, Scope: models.ScopeRead,
			Title: "Get your counts by day", Returns: "The counts of each day in the range, and their totals.",
			Text: "A recipient is counted on the UTC day on which its batch was accepted.",
		}, func(ctx context.Context, who caller.Caller, in *Query) (Stats, error) { return s.Of(ctx, who, *in) })),
	}
}
