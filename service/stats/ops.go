package stats

import (
	"context"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/caller"
	"github.com/safedelivr/safedelivr/service/operation"
)

// wanted is a request for counts.
type wanted struct {
	operation.Whose
	// First day. Default: 29 days before `to`.
	From string `query:"from" format:"date"`
	// Last day. Default: today. The range may have at most 400 days.
	To string `query:"to" format:"date"`
	// Count the mail of each provider, category, sender (the domain of `from`), template or tag apart, too.
	By string `query:"by" enum:"provider,category,sender,template,tag"`
	// With `by`: count in `days` and `totals` only the mail of this provider, category, sender, template or tag.
	Name string `query:"name"`
}

// Operations returns the calls about counts.
func Operations(s *Reader) []operation.Operation {
	return []operation.Operation{
		operation.As[client.Stats](operation.Reading(operation.Operation{
			Name: "getStats", Route: "GET /v1/stats", Tag: operation.TagStats, Scope: models.ScopeRead,
			Title: "Get your counts by day", Returns: "The counts of each day in the range, and their totals.",
			Text: "A recipient is counted on the UTC day on which its batch was accepted.",
		}, func(ctx context.Context, who caller.Caller, in *wanted) (Stats, error) {
			return s.Of(ctx, who, Query{From: in.From, To: in.To, By: in.By, Name: in.Name})
		})),
	}
}
