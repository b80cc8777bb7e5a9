package service

import (
	"context"
	"net/http"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/operation"
)

// byID names one thing by the last part of a path.
type byID struct {
	// ID of what the request is about.
	ID string `path:"id"`
}

// removal names a thing that is removed, and says why.
type removal struct {
	byID
	// Reason for the audit trail.
	Why string `query:"why"`
}

// commandOn is a command about a thing.
type commandOn struct {
	byID
	Body client.Reason
}

type (
	nothing struct{}
	command struct{ Body client.Reason }
)

const (
	tagControl   = "control"
	tagOperation = "operation"

	resultOfCommand = "The result of the command."
)

// changeOf says whether a command about a thing changed anything.
func changeOf(kind models.CommandKind, name string, changed bool) client.ControlResult {
	return client.ControlResult{Name: name, Command: string(kind), Changed: changed}
}

// blockOperations are the calls about block rules and holds.
func blockOperations(s *Service) []operation.Operation {
	return []operation.Operation{
		operation.Reading(operation.Operation{
			Name: "listBlocks", Route: "GET /v1/blocks", Tag: tagControl, Scope: models.ScopeOperate,
			Title: "List the block rules", Text: "Oldest first.", Returns: "All block rules.",
		}, func(ctx context.Context, who Caller, _ *nothing) (client.BlockList, error) {
			list, err := s.Blocks(ctx, who)
			out := client.BlockList{Blocks: make([]client.Block, len(list))}
			for i := range list {
				out.Blocks[i] = client.Block(list[i])
			}
			return out, err
		}),
		operation.Changing(operation.Operation{
			Name: "addBlock", Route: "POST /v1/blocks", Tag: tagControl, Scope: models.ScopeOperate,
			Title: "Add a block rule", Returns: "The block rule.",
			Text: "A rule blocks mail that matches all of its fields. Blocked mail waits until the rule is removed; with `fail` it " +
				"fails with reason `blocked`. If an equal rule exists, that rule is returned.",
			Example: `{"sender": "@shop.example.com", "fail": true, "why": "phishing"}`,
		}, func(ctx context.Context, who Caller, in *struct{ Body client.NewBlock }, r Repeat) (client.Block, bool, error) {
			b := &in.Body
			out, replayed, err := s.AddBlock(ctx, who, models.Block{
				Provider: b.Provider, User: b.User, Sender: b.Sender, Domain: b.Domain, Fail: b.Fail,
			}, b.Why, r)
			return client.Block(out), replayed, err
		}),
		operation.Reading(operation.Operation{
			Name: "removeBlock", Route: "DELETE /v1/blocks/{id}", Tag: tagControl, Scope: models.ScopeOperate,
			Title: "Remove a block rule", Returns: resultOfCommand, Errors: []int{http.StatusUnprocessableEntity},
			Text: "If the rule was removed before, nothing changes. The answer is 404 only for a rule that never existed.",
		}, func(ctx context.Context, who Caller, in *removal) (client.ControlResult, error) {
			changed, err := s.RemoveBlock(ctx, who, in.ID, in.Why)
			return changeOf(models.RemoveBlock, in.ID, changed), err
		}),
		operation.Reading(operation.Operation{
			Name: "listHolds", Route: "GET /v1/holds", Tag: tagControl, Scope: models.ScopeOperate,
			Title: "List the holds after restores", Returns: "The holds in effect, oldest first.",
			Text: "`serve --after-restore` holds all mail that was accepted before the restore, because the backup does not know " +
				"which mail was sent after it was made.",
		}, func(ctx context.Context, who Caller, _ *nothing) (client.HoldList, error) {
			list, err := s.Holds(ctx, who)
			return client.HoldList{Holds: list}, err
		}),
		operation.Changing(operation.Operation{
			Name: "liftHolds", Route: "POST /v1/holds/lift", Tag: tagControl, Scope: models.ScopeOperate,
			Title: "Lift all holds after restores", Returns: resultOfCommand,
			Text: "The held mail goes out. Mail that was sent after the backup was made arrives twice, so cancel the batches that " +
				"must not be sent again first.",
		}, func(ctx context.Context, who Caller, in *command, r Repeat) (client.LiftResult, bool, error) {
			return s.LiftHolds(ctx, who, in.Body.Why, r)
		}),
	}
}

// queueOperations are the calls about queues and what is left over.
func queueOperations(s *Service) []operation.Operation {
	return []operation.Operation{
		operation.Reading(operation.Operation{
			Name: "listQueues", Route: "GET /v1/queues", Tag: tagOperation, Scope: models.ScopeOperate,
			Title: "List the queues", Text: "The number and the age of the messages in each queue.", Returns: "All queues.",
		}, func(ctx context.Context, who Caller, _ *nothing) (client.QueueList, error) {
			list, err := s.Queues(ctx, who)
			return client.QueueList{Queues: list}, err
		}),
		operation.Reading(operation.Operation{
			Name: "listParked", Route: "GET /v1/parked", Tag: tagOperation, Scope: models.ScopeOperate,
			Title: "List the parked messages", Returns: "A page of messages.",
			Text: "A parked message is one that no worker could handle. The list is ordered by age, oldest first, if the broker " +
				"can tell. With RabbitMQ each page takes longer than the one before, because RabbitMQ lists messages only from " +
				"the beginning. No message is skipped if others are requeued or discarded between two pages.",
		}, func(ctx context.Context, who Caller, in *operation.OnePage) (client.ParkedPage, error) {
			return s.Parked(ctx, who, in.Page)
		}),
		operation.Changing(operation.Operation{
			Name: "requeueParked", Route: "POST /v1/parked/{id}/requeue", Tag: tagOperation, Scope: models.ScopeOperate,
			Title: "Requeue a parked message", Returns: resultOfCommand,
			Text: "Publishes the message again. If it was requeued before, nothing changes. The answer is 404 for a message that " +
				"never existed or that was discarded.",
		}, func(ctx context.Context, who Caller, in *commandOn, r Repeat) (client.ControlResult, bool, error) {
			changed, replayed, err := s.Requeue(ctx, who, in.ID, in.Body.Why, r)
			return changeOf(models.Requeued, in.ID, changed), replayed, err
		}),
		operation.Reading(operation.Operation{
			Name: "discardParked", Route: "DELETE /v1/parked/{id}", Tag: tagOperation, Scope: models.ScopeOperate,
			Title: "Discard a parked message", Returns: resultOfCommand, Errors: []int{http.StatusUnprocessableEntity},
			Text: "If the message was discarded before, nothing changes. The answer is 404 for a message that never existed or " +
				"that was requeued. If there is still something to do for its batch, the agenda finds it.",
		}, func(ctx context.Context, who Caller, in *removal) (client.ControlResult, error) {
			changed, err := s.Discard(ctx, who, in.ID, in.Why)
			return changeOf(models.Discarded, in.ID, changed), err
		}),
		operation.Reading(operation.Operation{
			Name: "listUnmatched", Route: "GET /v1/unmatched", Tag: tagOperation, Scope: models.ScopeOperate,
			Title: "List the unmatched events", Returns: "A page of events.",
			Text: "Events of providers that name no message and fit none, or several (`logs`): then they decide nothing. Of each " +
				"worker the newest 500, newest first, while their posts are kept. `safedelivr replay` tries again, and what it " +
				"matches is no longer listed.",
		}, func(ctx context.Context, who Caller, in *operation.OnePage) (client.UnmatchedPage, error) {
			return s.Unmatched(ctx, who, in.Page)
		}),
		operation.Reading(operation.Operation{
			Name: "getUnmatched", Route: "GET /v1/unmatched/{id}", Tag: tagOperation, Scope: models.ScopeOperate,
			Title: "Get an unmatched event", Text: "With the post that it came in.", Returns: "The event.",
		}, func(ctx context.Context, who Caller, in *byID) (client.UnmatchedEvent, error) {
			return s.UnmatchedEvent(ctx, who, in.ID)
		}),
	}
}

// workerOperations are the calls about what workers report.
func workerOperations(s *Service) []operation.Operation {
	return []operation.Operation{
		operation.Reading(operation.Operation{
			Name: "listWorkers", Route: "GET /v1/workers", Tag: tagOperation, Scope: models.ScopeOperate,
			Title: "List the workers", Returns: "All workers.",
			Text: "The processes that hand mail over to providers and that reported lately.",
		}, func(ctx context.Context, who Caller, _ *nothing) (client.WorkerList, error) {
			list, err := s.Workers(ctx, who)
			return client.WorkerList{Workers: list}, err
		}),
		operation.Reading(operation.Operation{
			Name: "getCheck", Route: "GET /v1/check", Tag: tagOperation, Scope: models.ScopeOperate,
			Title: "Get the newest recount", Returns: "The result of the recount.", Errors: []int{http.StatusNotFound},
			Text: "Workers continuously recount recently accepted mail from the ledgers and compare the result with the stored " +
				"sums. If no worker has done so in the last week, the answer is 404.",
		}, func(ctx context.Context, who Caller, _ *nothing) (client.Check, error) {
			out, err := s.LastCheck(ctx, who)
			return client.Check(out), err
		}),
	}
}
