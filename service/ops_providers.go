package service

import (
	"context"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/operation"
)

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
		"Workers forget their findings about the provider (a refused key or quota, failed calls, silence, refused senders) and " +
			"try it with one mail. Unlike other commands this one has an effect each time. If the provider is offline, the " +
			"answer is 409 (`provider_offline`). `id` is the name of the provider.",
	},
}

type historyQuery struct {
	// Time span of the history. Default: hour.
	Range client.HistoryRange `query:"range" schema:"HistoryRange"`
}

// providerOperations are the calls about providers.
func providerOperations(s *Service) []operation.Operation {
	out := []operation.Operation{
		operation.As[client.ProviderList](operation.Reading(operation.Operation{
			Name: "listProviders", Route: "GET /v1/providers", Tag: operation.TagOperation, Scope: models.ScopeRead,
			Title: "List the providers with their health", Text: "In the order of the configuration.",
			Returns: "All providers.",
		}, func(ctx context.Context, who Caller, _ *operation.None) (map[string][]Provider, error) {
			list, err := s.Providers(ctx, who)
			return map[string][]Provider{"providers": list}, err
		})),
		operation.As[client.History](operation.Reading(operation.Operation{
			Name: "providerHistory", Route: "GET /v1/providers/history", Tag: operation.TagOperation, Scope: models.ScopeRead,
			Title: "Get the history of the providers", Returns: "The history.",
			Text: "Counts of all users together, in steps. A step is a minute for the range `hour`, 15 minutes for `day`, 2 hours " +
				"for `week`, and 6 hours for `month` (30 days).\n\n" +
				"The counts are estimates: a worker stores its counts every few seconds and loses the last of them if it crashes, " +
				"and an event that a provider posts twice counts twice. `/v1/stats` has exact counts.",
		}, func(ctx context.Context, _ Caller, in *historyQuery) (History, error) {
			return s.History(ctx, HistoryRange(in.Range))
		})),
	}
	for _, p := range providerCommands {
		out = append(out, operation.Changing(operation.Operation{
			Name: p.name, Route: "POST /v1/providers/{id}/" + p.verb, Tag: operation.TagControl, Scope: models.ScopeOperate,
			Title: p.title, Text: p.text, Returns: operation.ResultOfCommand,
		}, func(ctx context.Context, who Caller, in *operation.CommandOn, r Repeat) (client.ControlResult, bool, error) {
			if p.do == models.ProviderProbe {
				return s.ProbeProvider(ctx, who, in.ID, in.Body.Why, r)
			}
			return s.ControlProvider(ctx, who, p.do, in.ID, in.Body.Why, r)
		}))
	}
	return out
}
