package commands

import (
	"context"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/caller"
	"github.com/safedelivr/safedelivr/service/idempotency"
	"github.com/safedelivr/safedelivr/service/operation"
)

// dryCommandOn is a command about a thing that has a dry run.
type dryCommandOn struct {
	operation.CommandOn
	operation.Dry
}

// ofOthers says which scope a command about a batch needs. Its function checks that.
const ofOthers = " Needs the scope `send`, or `operate` for the batches of other users."

// batchCommands are what can be done with a batch.
var batchCommands = []struct {
	do                      models.CommandKind
	verb, name, title, text string
}{
	{
		models.StopBatch, "stop", "stopBatch", "Stop a batch",
		"After the answer no new call to a provider starts for this batch. `in_flight` counts the recipients of calls that " +
			"have started before. If workers run in several processes, the answer takes up to a second.",
	},
	{
		models.ResumeBatch, "resume", "resumeBatch", "Resume a stopped batch",
		"Mail that was not sent yet goes out. A batch that an operator stopped can be resumed only with the scope " +
			"`operate`; otherwise the answer is 403 (`stopped_by_operator`).",
	},
	{
		models.CancelBatch, "cancel", "cancelBatch", "Cancel a batch",
		"Mail that was not handed over to a provider yet is never sent. Its logs become `cancelled`.",
	},
	{
		models.TryBatch, "try", "tryBatch", "Try waiting mail of a batch now",
		"Tries mail at once that waits for another attempt. Limits, suspensions of providers and the times of the batch " +
			"still count. If there is no such mail, nothing changes.",
	},
	{
		models.RetryBatch, "retry", "retryBatch", "Retry the failed mail of a batch",
		"Sends failed mail again if it cannot arrive twice: the outcome of each attempt is known, and no provider refused " +
			"the recipient permanently. If there is no such mail, nothing changes.",
	},
	{
		models.ReleaseBatch, "release", "releaseBatch", "Release the held mail of a batch",
		"Sends mail again that is held because its outcome is unknown. It may arrive twice, so its logs are marked " +
			"`possible_duplicate`. If no mail is held, nothing changes.",
	},
}

// Operations are the commands about batches and logs.
func Operations(s *Commands) []operation.Operation {
	out := make([]operation.Operation, 0, len(batchCommands)+2)
	for _, b := range batchCommands {
		out = append(out, operation.As[client.BatchControlResult](operation.Changing(operation.Operation{
			Name: b.name, Route: "POST /v1/batches/{id}/" + b.verb, Tag: operation.TagControl,
			Title: b.title, Text: b.text + ofOthers, Returns: operation.ResultOfCommand,
		}, func(ctx context.Context, who caller.Caller, in *dryCommandOn, r idempotency.Repeat) (Result, bool, error) {
			if in.DryRun {
				v, err := s.DryRunBatch(ctx, who, b.do, in.ID, in.Body.Why)
				return v, false, err
			}
			return s.Batch(ctx, who, b.do, in.ID, in.Body.Why, r)
		})))
	}
	return append(out,
		operation.As[client.BatchControlResult](operation.Changing(operation.Operation{
			Name: "releaseLog", Route: "POST /v1/logs/{id}/release", Tag: operation.TagControl,
			Title: "Release one log", Returns: operation.ResultOfCommand,
			Text: "Sends the mail of a failed log again. It may arrive twice. If the log has not failed, or the recipient or " +
				"the mail was refused permanently, the answer is 409 (`not_releasable`). If it is queued because it was released " +
				"before, nothing changes. Needs the scope `send`, or `operate` for the logs of other users.",
		}, func(ctx context.Context, who caller.Caller, in *dryCommandOn, r idempotency.Repeat) (Result, bool, error) {
			if in.DryRun {
				v, err := s.DryRunLog(ctx, who, in.ID, in.Body.Why)
				return v, false, err
			}
			return s.ReleaseLog(ctx, who, in.ID, in.Body.Why, r)
		})),
		operation.Changing(operation.Operation{
			Name: "releaseRange", Route: "POST /v1/release", Tag: operation.TagControl,
			Title: "Release the held mail of a time range", Returns: "The number of released batches.",
			Text: "Sends mail again that is held because its outcome is unknown, of your batches that were accepted in a time " +
				"range. With the scope `operate`, of the batches of all users. The mail may arrive twice. Needs the scope `send` " +
				"or `operate`.",
			Example: `{provider: sg, from: "2026-01-31T00:00:00Z", to: "2026-02-01T00:00:00Z", why: sg confirmed the outage}`,
		}, func(ctx context.Context, who caller.Caller, in *struct {
			operation.Dry
			Body client.Release
		}, r idempotency.Repeat,
		) (client.ReleaseResult, bool, error) {
			if in.DryRun {
				v, err := s.DryRunRange(ctx, who, in.Body)
				return v, false, err
			}
			return s.ReleaseRange(ctx, who, in.Body, r)
		}),
	)
}
