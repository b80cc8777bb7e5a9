package operate

import (
	"context"
	"net/http"
	"slices"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/caller"
	"github.com/safedelivr/safedelivr/service/idempotency"
	"github.com/safedelivr/safedelivr/service/operation"
)

type command struct{ Body client.Reason }

// Operations returns the calls about what operators control.
func Operations(s *Installation) []operation.Operation {
	return slices.Concat(blockOperations(s), providerOperations(s), queueOperations(s), workerOperations(s),
		longOperations)
}

// longOperations are long work, which reports its steps.
var longOperations = []operation.Operation{
	operation.Declared[struct{ Body client.NewCheck }, string](operation.Operation{
		Name: "runCheck", Route: "POST /v1/check", Tag: operation.TagOperation, Scope: models.ScopeOperate,
		Title: "Recount sums and compare them with the stored ones", Returns: "The steps of the check.",
		Errors: noWorker, Media: "application/x-ndjson", Call: operation.ByHand,
		Text: "Recounts batches, users and days from recipients, ledger and facts. The answer is NDJSON with a " +
			"line for each step: `found` is a difference, `progress` has the counts up to there, and the last line " +
			"is `done`, or `error` if the check breaks off. It may take hours. It ends if the client closes the " +
			"connection. Mail may flow meanwhile. The answer is 409 (`no_worker_role`) from a process without the " +
			"role worker.",
	}),
	operation.Declared[struct{ Body client.NewReplay }, string](operation.Operation{
		Name: "runReplay", Route: "POST /v1/replay", Tag: operation.TagOperation, Scope: models.ScopeOperate,
		Title: "Read webhook posts again", Returns: "The steps of the replay.",
		Errors: noWorker, Media: "application/x-ndjson", Call: operation.ByHand,
		Text: "Reads the posts of the inbox again with the parsers of this version. Results that differ replace " +
			"those from before. The answer is NDJSON like that of a check: `progress`, and `done` or `error` in the " +
			"last line. The answer is 409 (`no_worker_role`) from a process without the role worker.",
	}),
}

var noWorker = []int{http.StatusNotFound, http.StatusConflict}

// blockOperations are the calls about block rules and holds.
func blockOperations(s *Installation) []operation.Operation {
	return []operation.Operation{
		operation.Reading(operation.Operation{
			Name: "listBlocks", Route: "GET /v1/blocks", Tag: operation.TagControl, Scope: models.ScopeOperate,
			Title: "List the block rules", Text: "Oldest first.", Returns: "All block rules.",
		}, func(ctx context.Context, who caller.Caller, _ *operation.None) (client.BlockList, error) {
			list, err := s.Blocks(ctx, who)
			out := client.BlockList{Blocks: make([]client.Block, len(list))}
			for i := range list {
				out.Blocks[i] = client.Block(list[i])
			}
			return out, err
		}),
		operation.Changing(operation.Operation{
			Name: "addBlock", Route: "POST /v1/blocks", Tag: operation.TagControl, Scope: models.ScopeOperate,
			Title: "Add a block rule", Returns: "The block rule.",
			Text: "A rule blocks mail that matches all of its fields. Blocked mail waits until the rule is removed; with " +
				"`fail` it fails with reason `blocked`. If an equal rule exists, that rule is returned.",
			Example: `{"sender": "@shop.example.com", "fail": true, "why": "phishing"}`,
		}, func(ctx context.Context, who caller.Caller, in *struct{ Body client.NewBlock },
			r idempotency.Repeat) (client.Block, bool, error) {
			b := &in.Body
			out, replayed, err := s.AddBlock(ctx, who, models.Block{
				Provider: b.Provider, User: b.User, Sender: b.Sender, Domain: b.Domain, Fail: b.Fail,
			}, b.Why, r)
			return client.Block(out), replayed, err
		}),
		operation.Reading(operation.Operation{
			Name: "removeBlock", Route: "DELETE /v1/blocks/{id}", Tag: operation.TagControl, Scope: models.ScopeOperate,
			Title: "Remove a block rule", Returns: operation.ResultOfCommand, Errors: []int{http.StatusUnprocessableEntity},
			Text: "If the rule was removed before, nothing changes. The answer is 404 only for a rule that never existed.",
		}, func(ctx context.Context, who caller.Caller, in *operation.Removal) (client.ControlResult, error) {
			changed, err := s.RemoveBlock(ctx, who, in.ID, in.Why)
			return operation.ResultOf(models.RemoveBlock, in.ID, changed), err
		}),
		operation.Reading(operation.Operation{
			Name: "listHolds", Route: "GET /v1/holds", Tag: operation.TagControl, Scope: models.ScopeOperate,
			Title: "List the holds after restores", Returns: "The holds in effect, oldest first.",
			Text: "`serve --after-restore` holds all mail that was accepted before the restore, because the backup does not " +
				"know which mail was sent after it was made.",
		}, func(ctx context.Context, who caller.Caller, _ *operation.None) (client.HoldList, error) {
			list, err := s.Holds(ctx, who)
			return client.HoldList{Holds: list}, err
		}),
		operation.Changing(operation.Operation{
			Name: "liftHolds", Route: "POST /v1/holds/lift", Tag: operation.TagControl, Scope: models.ScopeOperate,
			Title: "Lift all holds after restores", Returns: operation.ResultOfCommand,
			Text: "The held mail goes out. Mail that was sent after the backup was made arrives twice, so cancel the batches " +
				"that must not be sent again first.",
		}, func(ctx context.Context, who caller.Caller, in *command, r idempotency.Repeat) (client.LiftResult, bool, error) {
			return s.LiftHolds(ctx, who, in.Body.Why, r)
		}),
	}
}

// queueOperations are the calls about queues and what is left over.
func queueOperations(s *Installation) []operation.Operation {
	return []operation.Operation{
		operation.Reading(operation.Operation{
			Name: "listQueues", Route: "GET /v1/queues", Tag: operation.TagOperation, Scope: models.ScopeOperate,
			Title: "List the queues", Text: "The number and the age of the messages in each queue.", Returns: "All queues.",
		}, func(ctx context.Context, who caller.Caller, _ *operation.None) (client.QueueList, error) {
			list, err := s.Queues(ctx, who)
			return client.QueueList{Queues: list}, err
		}),
		operation.Reading(operation.Operation{
			Name: "listParked", Route: "GET /v1/parked", Tag: operation.TagOperation, Scope: models.ScopeOperate,
			Title: "List the parked messages", Returns: "A page of messages.",
			Text: "A parked message is one that no worker could handle. The list is ordered by age, oldest first, if the " +
				"broker can tell. With RabbitMQ each page takes longer than the one before, because RabbitMQ lists messages only " +
				"from the beginning. No message is skipped if others are requeued or discarded between two pages.",
		}, func(ctx context.Context, who caller.Caller, in *operation.OnePage) (client.ParkedPage, error) {
			return s.Parked(ctx, who, in.Page)
		}),
		operation.Changing(operation.Operation{
			Name: "requeueParked", Route: "POST /v1/parked/{id}/requeue", Tag: operation.TagOperation,
			Scope: models.ScopeOperate, Title: "Requeue a parked message", Returns: operation.ResultOfCommand,
			Text: "Publishes the message again. If it was requeued before, nothing changes. The answer is 404 for a message " +
				"that never existed or that was discarded.",
		}, func(
			ctx context.Context, who caller.Caller, in *operation.CommandOn, r idempotency.Repeat,
		) (client.ControlResult, bool, error) {
			changed, replayed, err := s.Requeue(ctx, who, in.ID, in.Body.Why, r)
			return operation.ResultOf(models.Requeued, in.ID, changed), replayed, err
		}),
		operation.Reading(operation.Operation{
			Name: "discardParked", Route: "DELETE /v1/parked/{id}", Tag: operation.TagOperation, Scope: models.ScopeOperate,
			Title: "Discard a parked message", Returns: operation.ResultOfCommand, Errors: []int{http.StatusUnprocessableEntity},
			Text: "If the message was discarded before, nothing changes. The answer is 404 for a message that never existed " +
				"or that was requeued. If there is still something to do for its batch, the agenda finds it.",
		}, func(ctx context.Context, who caller.Caller, in *operation.Removal) (client.ControlResult, error) {
			changed, err := s.Discard(ctx, who, in.ID, in.Why)
			return operation.ResultOf(models.Discarded, in.ID, changed), err
		}),
		operation.Reading(operation.Operation{
			Name: "listUnmatched", Route: "GET /v1/unmatched", Tag: operation.TagOperation, Scope: models.ScopeOperate,
			Title: "List the unmatched events", Returns: "A page of events.",
			Text: "Events of providers that name no message and fit none, or several (`logs`): then they decide nothing. Of " +
				"each worker the newest 500, newest first, while their posts are kept. `safedelivr replay` tries again, and what " +
				"it matches is no longer listed.",
		}, func(ctx context.Context, who caller.Caller, in *operation.OnePage) (client.UnmatchedPage, error) {
			return s.Unmatched(ctx, who, in.Page)
		}),
		operation.Reading(operation.Operation{
			Name: "getUnmatched", Route: "GET /v1/unmatched/{id}", Tag: operation.TagOperation, Scope: models.ScopeOperate,
			Title: "Get an unmatched event", Text: "With the post that it came in.", Returns: "The event.",
		}, func(ctx context.Context, who caller.Caller, in *operation.ByID) (client.UnmatchedEvent, error) {
			return s.UnmatchedEvent(ctx, who, in.ID)
		}),
	}
}

// workerOperations are the calls about what workers report.
func workerOperations(s *Installation) []operation.Operation {
	return []operation.Operation{
		operation.Reading(operation.Operation{
			Name: "listWorkers", Route: "GET /v1/workers", Tag: operation.TagOperation, Scope: models.ScopeOperate,
			Title: "List the workers", Returns: "All workers.",
			Text: "The processes that hand mail over to providers and that reported lately.",
		}, func(ctx context.Context, who caller.Caller, _ *operation.None) (client.WorkerList, error) {
			list, err := s.Workers(ctx, who)
			return client.WorkerList{Workers: list}, err
		}),
		operation.Reading(operation.Operation{
			Name: "getCheck", Route: "GET /v1/check", Tag: operation.TagOperation, Scope: models.ScopeOperate,
			Title: "Get the newest recount", Returns: "The result of the recount.", Errors: []int{http.StatusNotFound},
			Text: "Workers continuously recount recently accepted mail from the ledgers and compare the result with the " +
				"stored sums. If no worker has done so in the last week, the answer is 404.",
		}, func(ctx context.Context, who caller.Caller, _ *operation.None) (client.Check, error) {
			out, err := s.LastCheck(ctx, who)
			return client.Check(out), err
		}),
	}
}

// providerCommands are what operators can do with a provider. A path has the name of a provider as its ID.
var providerCommands = []struct {
	do                      models.CommandKind
	verb, name, title, text string
}{
	{
		models.ProviderOffline, "offline", "providerOffline", "Take a provider offline",
		"No call goes to the provider until it is online again. `id` is its name.",
	},
	{
		models.ProviderOnline, "online", "providerOnline", "Bring a provider online",
		"Ends `offline` and `drain`. `id` is the name of the provider.",
	},
	{
		models.ProviderDrain, "drain", "providerDrain", "Drain a provider",
		"The provider gets only mail that may use no other provider. `id` is its name.",
	},
	{
		models.ProviderProbe, "probe", "providerProbe", "Probe a suspended provider at once",
		"Workers forget their findings about the provider (a refused key or quota, failed calls, silence, refused senders) " +
			"and try it with one mail. Unlike other commands this one has an effect each time. If the provider is offline, " +
			"the answer is 409 (`provider_offline`). `id` is the name of the provider.",
	},
}

type historyQuery struct {
	// Time span of the history. Default: hour.
	Range client.HistoryRange `query:"range" schema:"HistoryRange"`
}

// providerOperations are the calls about providers.
func providerOperations(s *Installation) []operation.Operation {
	out := []operation.Operation{
		operation.As[client.ProviderList](operation.Reading(operation.Operation{
			Name: "listProviders", Route: "GET /v1/providers", Tag: operation.TagOperation, Scope: models.ScopeRead,
			Title: "List the providers with their health", Text: "In the order of the configuration.",
			Returns: "All providers.",
		}, func(ctx context.Context, who caller.Caller, _ *operation.None) (map[string][]Provider, error) {
			list, err := s.Providers(ctx, who)
			return map[string][]Provider{"providers": list}, err
		})),
		operation.As[client.History](operation.Reading(operation.Operation{
			Name: "providerHistory", Route: "GET /v1/providers/history", Tag: operation.TagOperation, Scope: models.ScopeRead,
			Title: "Get the history of the providers", Returns: "The history.",
			Text: "Counts of all users together, in steps. A step is a minute for the range `hour`, 15 minutes for `day`, 2 " +
				"hours for `week`, and 6 hours for `month` (30 days).\n\n" +
				"The counts are estimates: a worker stores its counts every few seconds and loses the last of them if it " +
				"crashes, and an event that a provider posts twice counts twice. `/v1/stats` has exact counts.",
		}, func(ctx context.Context, _ caller.Caller, in *historyQuery) (History, error) {
			return s.History(ctx, in.Range)
		})),
	}
	for _, p := range providerCommands {
		out = append(out, operation.Changing(operation.Operation{
			Name: p.name, Route: "POST /v1/providers/{id}/" + p.verb, Tag: operation.TagControl, Scope: models.ScopeOperate,
			Title: p.title, Text: p.text, Returns: operation.ResultOfCommand,
		}, func(ctx context.Context, who caller.Caller, in *operation.CommandOn,
			r idempotency.Repeat) (client.ControlResult, bool, error) {
			if p.do == models.ProviderProbe {
				return s.ProbeProvider(ctx, who, in.ID, in.Body.Why, r)
			}
			return s.ControlProvider(ctx, who, p.do, in.ID, in.Body.Why, r)
		}))
	}
	return out
}
