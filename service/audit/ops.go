package audit

import (
	"context"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/caller"
	"github.com/safedelivr/safedelivr/service/operation"
)

// Operations returns the calls about the audit trail.
func Operations(s *Trail) []operation.Operation {
	return []operation.Operation{
		operation.As[client.AuditPage](operation.Reading(operation.Operation{
			Name: "listAudit", Route: "GET /v1/audit", Tag: operation.TagOperation, Scope: models.ScopeOperate,
			Title: "List the audit trail", Returns: "A page of commands.",
			Text: "All commands with their time, author and reason, newest first.",
		}, func(ctx context.Context, who caller.Caller, in *operation.OnePage) (Page, error) {
			return s.List(ctx, who, in.Page)
		})),
	}
}
