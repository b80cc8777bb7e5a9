package mail

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/backlog"
	"github.com/safedelivr/safedelivr/service/caller"
	"github.com/safedelivr/safedelivr/service/intake"
	"github.com/safedelivr/safedelivr/service/operation"
)

// properties select logs by what happened to them.
type properties struct {
	// Only recipients with this reason, like `mailbox_invalid`.
	Reason string `query:"reason"`
	// Only recipients that this provider was tried for.
	Provider string `query:"provider"`
	// Only recipients with this result of the newest attempt at `provider`, or at any provider.
	Result string `query:"result" enum:"delivered,refused,failed,pending,waiting,unknown"`
	// `true`: only recipients that more than one provider was tried for.
	Rerouted bool `query:"rerouted"`
	// `true`: only recipients whose mail was sent again while an outcome was unknown.
	PossibleDuplicate bool `query:"possible_duplicate"`
	// `true`: only recipients that are known to have got the mail more than once.
	Doubled bool `query:"doubled"`
}

// filter returns the logs with these properties and a state.
func (p *properties) filter(state string) LogFilter {
	return LogFilter{
		State: models.State(state), Reason: models.Reason(p.Reason), Provider: p.Provider, Result: ProviderResult(p.Result),
		Rerouted: p.Rerouted, MayDouble: p.PossibleDuplicate, Doubled: p.Doubled,
	}
}

// span selects mail by its acceptance, and whose it is.
type span struct {
	// Only mail of batches with this tag.
	Tag string `query:"tag"`
	// Only mail that was accepted at this time or later.
	From time.Time `query:"from"`
	// Only mail that was accepted before this time.
	To time.Time `query:"to"`
	operation.Whose
}

// addTo narrows a filter.
func (p *span) addTo(f LogFilter) LogFilter {
	f.Tag, f.From, f.To = p.Tag, p.From, p.To
	return f
}

type (
	batchQuery struct {
		// Only batches in this state. A batch that is stopped or cancelled has no other one here. `scheduled`: those with
		// mail whose time has not come, also if that of other recipients has.
		State string `query:"state" enum:"scheduled,queued,sending,sent,done,stopped,cancelled"`
		// Only batches whose subject has this text, in any case.
		Subject string `query:"subject"`
		// Only batches whose sender's address has this text, in any case.
		Sender string `query:"sender"`
		// ID of a user: the batches of this user. Needs the scope `operate`.
		User string `query:"user"`
		// Only batches with a recipient in this state.
		RecipientState string `query:"recipient_state" schema:"State"`
		properties
		span
		operation.Page
	}
	batchPart struct {
		operation.ByID
		operation.Page
	}
	batchLogsQuery struct {
		operation.ByID
		// Only logs in this state.
		State string `query:"state" schema:"State"`
		properties
		operation.Page
	}
	logQuery struct {
		// A complete address, in any form that a batch may give it: a name is ignored, an international domain is converted.
		// Or a domain with an @ before it. Case does not matter. Such a list has no previous cursor.
		Email string `query:"email"`
		// A part of an address, in any case. It is looked for in the mail itself, so each page searches only a part of the
		// time.
		Part string `query:"q"`
		// Only logs in this state.
		State string `query:"state" schema:"State"`
		properties
		span
		operation.Page
	}
)

// addressOf returns the address in a query, where "+" means a space. Where only the plus sign makes it an address, as
// in ?email=ann+news@example.com, it is kept.
func addressOf(email string) string {
	if _, err := intake.ParseAddress(email); err == nil {
		return email
	}
	kept := strings.ReplaceAll(strings.TrimSpace(email), " ", "+")
	if _, err := intake.ParseAddress(kept); err == nil {
		return kept
	}
	return email
}

const tagBatches = "batches"

// Operations are the calls that read batches and logs.
func Operations(s *Reader) []operation.Operation {
	return []operation.Operation{
		operation.As[client.Waiting](operation.Reading(operation.Operation{
			Name: "getWaiting", Route: "GET /v1/waiting", Tag: operation.TagOperation, Scope: models.ScopeOperate,
			Title: "Get what the mail of all users waits for", Returns: "The mail that waits.",
			Text: "The sums are exact. The reasons are those of the batches that wait longest and of the newest ones.",
		}, func(ctx context.Context, who caller.Caller, _ *operation.None) (backlog.Backlog, error) {
			v, err := s.Backlog(ctx, who)
			v.Lines = append([]backlog.Line{}, v.Lines...) // an empty list is not null
			return v, err
		})),
		operation.Declared[batchPart, client.RejectedPage](operation.Operation{
			Name: "listRejected", Route: "GET /v1/batches/{id}/rejected", Tag: tagBatches, Scope: models.ScopeRead,
			Title: "List the recipients that were left out of a batch", Returns: "A page of rejected recipients.",
			Errors: []int{http.StatusConflict}, Media: "text/csv", Call: operation.ByHand,
			Text: "Those with mistakes that a request with `mode=permissive` had, in its order; each with its " +
				"first mistake. With `Accept: text/csv` all of them, as `/v1/batches/{id}/rejected.csv` answers. The " +
				"list is removed with the content of the batch (`content_removed`).",
		}),
		operation.Declared[operation.ByID, string](operation.Operation{
			Name: "exportRejected", Route: "GET /v1/batches/{id}/rejected.csv", Tag: tagBatches, Scope: models.ScopeRead,
			Title: "Export the recipients that were left out of a batch", Returns: "The list.",
			Errors: []int{http.StatusConflict}, Media: "text/csv", Call: operation.ByHand,
			Text: "All of them, with the columns `index`, `row`, `column`, `pointer`, `code` and `detail`. If " +
				"they cannot be read to their end, the connection is closed before the end of the answer.",
		}),
		operation.As[client.BatchPage](operation.Reading(operation.Operation{
			Name: "listBatches", Route: "GET /v1/batches", Tag: tagBatches, Scope: models.ScopeRead,
			Title: "List your batches", Returns: "A page of batches.", Call: operation.ByHand,
			Text: "Newest first; with `state=scheduled` in the order of time, next first. Without filters, all of them. A " +
				"batch is selected if for each of the properties of recipients it has a recipient with that property. A page may " +
				"be short or empty and still have a next cursor.",
		}, func(ctx context.Context, who caller.Caller, in *batchQuery) (BatchPage, error) {
			f := BatchFilter{State: in.State, Subject: in.Subject, Sender: in.Sender, User: in.User}
			f.Logs = in.addTo(in.filter(in.RecipientState))
			return s.FindBatches(ctx, who, f, in.Page)
		})),
		operation.As[client.Batch](operation.Reading(operation.Operation{
			Name: "getBatch", Route: "GET /v1/batches/{id}", Tag: tagBatches, Scope: models.ScopeRead,
			Title: "Get a batch with its counts", Returns: "The batch.", Call: "Batch",
			Text: "With the scope `operate` you can get the batches of other users, too.",
		}, func(ctx context.Context, who caller.Caller, in *operation.ByID) (BatchView, error) {
			return s.Batch(ctx, who, in.ID)
		})),
		operation.As[client.LogPage](operation.Reading(operation.Operation{
			Name: "listLogs", Route: "GET /v1/batches/{id}/logs", Tag: tagBatches, Scope: models.ScopeRead,
			Title: "List the logs of a batch", Returns: "A page of logs.", Call: operation.ByHand,
			Text: "In the order of its recipients. A page may be short or empty and still have a next cursor.",
		}, func(ctx context.Context, who caller.Caller, in *batchLogsQuery) (LogPage, error) {
			return s.Logs(ctx, who, in.ID, in.filter(in.State), in.Page)
		})),
		operation.As[client.FoundLogPage](operation.Reading(operation.Operation{
			Name: "searchLogs", Route: "GET /v1/logs", Tag: tagBatches, Scope: models.ScopeRead,
			Title: "Find your logs in all batches", Returns: "A page of logs.", Call: operation.ByHand,
			Text: "Newest first. Without filters, all of them. By its address a log is found from its first attempt on, until " +
				"its address is removed; by what happened to it, a second or so later. A page may be short or empty and still " +
				"have a next cursor.",
		}, func(ctx context.Context, who caller.Caller, in *logQuery) (FoundPage, error) {
			f := in.addTo(in.filter(in.State))
			f.Email, f.Part = addressOf(in.Email), in.Part
			return s.FindLogs(ctx, who, f, in.Page)
		})),
		operation.As[client.Log](operation.Reading(operation.Operation{
			Name: "getLog", Route: "GET /v1/logs/{id}", Tag: tagBatches, Scope: models.ScopeRead,
			Title: "Get a log with its timeline", Returns: "The log.", Call: "Log",
			Text: "The log says what happened to one recipient, and why.",
		}, func(ctx context.Context, who caller.Caller, in *operation.ByID) (LogStory, error) {
			return s.Log(ctx, who, in.ID)
		})),
		operation.As[client.Message](operation.Reading(operation.Operation{
			Name: "getMessage", Route: "GET /v1/messages/{id}", Tag: tagBatches, Scope: models.ScopeRead,
			Title: "Get a message by your own id", Returns: "The message.", Call: "Message",
			Text: "The log of the message as it is now, and its history. `id` is your id of the message, escaped.",
		}, func(ctx context.Context, who caller.Caller, in *operation.ByID) (MessageView, error) {
			return s.Message(ctx, who, in.ID)
		})),
	}
}
