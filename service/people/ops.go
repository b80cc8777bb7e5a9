package people

import (
	"context"
	"net/http"
	"reflect"
	"slices"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/accesslog"
	"github.com/safedelivr/safedelivr/service/caller"
	"github.com/safedelivr/safedelivr/service/idempotency"
	"github.com/safedelivr/safedelivr/service/operation"
)

// userCommands are what can be done with a user. A path has the ID or the name of a user as its ID.
var userCommands = []struct {
	do                      models.CommandKind
	verb, name, title, text string
	scope                   models.Scope // empty: the function checks
}{
	{
		models.PauseUser, "pause", "pauseUser", "Pause a user",
		"None of the user's mail goes out until the user is resumed. You can pause yourself with the scope `send`, and " +
			"other users with the scope `operate`.", "",
	},
	{
		models.ResumeUser, "resume", "resumeUser", "Resume a paused user",
		"You can resume yourself with the scope `send`, and other users with the scope `operate`. If an operator paused " +
			"the user, the scope `send` is not enough, and the answer is 403 (`paused_by_operator`).", "",
	},
	{
		models.DisableUser, "disable", "disableUser", "Disable a user",
		"When the answer is there, no process accepts a key of the user (403 `user_disabled`), all sessions have ended, " +
			"and the user cannot log in. Mail that was accepted still goes out; pause the user to withhold it. You cannot " +
			"disable yourself.", models.ScopeOperate,
	},
	{
		models.EnableUser, "enable", "enableUser", "Enable a disabled user",
		"The keys of the user work again. Ended sessions do not come back.", models.ScopeOperate,
	},
	{
		models.EndSessions, "end-sessions", "endSessions", "End all sessions of a user",
		"When the answer is there, no process accepts a session that began before. You can end your own sessions with the " +
			"scope `send`, and those of other users with the scope `operate`.", "",
	},
}

// keyOfUser names a key.
type keyOfUser struct {
	operation.ByID
	// ID of an API key of the user.
	Key string `path:"key"`
}

type (
	keyRemoval struct {
		keyOfUser
		// Reason for the audit trail.
		Why string `query:"why"`
	}
	requestQuery struct {
		operation.Page
		// ID of a key. Default: the key of this request.
		Key string `query:"key"`
	}
	accessQuery struct {
		operation.Page
		// Only entries of this kind.
		Kind string `query:"kind" enum:"login,login.failed,key.failed"`
	}
)

// Operations returns the calls about users, their keys and their limits.
func Operations(s *People, l *Limits) []operation.Operation {
	return slices.Concat(userOperations(s), adminOperations(s), limitOperations(l), recordOperations(s))
}

// userOperations are the calls about users and their keys.
func userOperations(s *People) []operation.Operation {
	out := []operation.Operation{
		operation.Reading(operation.Operation{
			Name: "listUsers", Route: "GET /v1/users", Tag: operation.TagControl, Scope: models.ScopeOperate,
			Title: "List the users", Text: "All users, oldest first.", Returns: "A page of users.",
		}, func(ctx context.Context, who caller.Caller, in *operation.OnePage) (client.UserPage, error) {
			return s.ListUsers(ctx, who, in.Page)
		}),
		operation.Reading(operation.Operation{
			Name: "listKeys", Route: "GET /v1/keys", Tag: operation.TagControl, Scope: models.ScopeOperate,
			Title: "List the API keys of all users", Returns: "A page of keys.",
			Text: "By user, oldest first, with revoked keys. A page may have fewer keys than its limit.",
		}, func(ctx context.Context, who caller.Caller, in *operation.OnePage) (client.KeyPage, error) {
			return s.AllKeys(ctx, who, in.Page)
		}),
		operation.Reading(operation.Operation{
			Name: "listUserKeys", Route: "GET /v1/users/{id}/keys", Tag: operation.TagControl, Scope: models.ScopeOperate,
			Title: "List the API keys of a user", Returns: "The keys.",
			Text: "Oldest first, with revoked keys. `id` is the ID or the name of a user.",
		}, func(ctx context.Context, who caller.Caller, in *operation.ByID) (client.KeyList, error) {
			list, err := s.KeysOf(ctx, who, in.ID)
			return client.KeyList{Keys: list}, err
		}),
		operation.Reading(operation.Operation{
			Name: "revokeKey", Route: "DELETE /v1/users/{id}/keys/{key}", Tag: operation.TagControl, Scope: models.ScopeOperate,
			Title: "Revoke an API key of a user", Errors: []int{http.StatusUnprocessableEntity},
			Text: "No process accepts the key a second later. If it was revoked before, the answer is 204 as well. `id` is " +
				"the ID or the name of a user.",
		}, func(ctx context.Context, who caller.Caller, in *keyRemoval) (operation.Nothing, error) {
			return operation.Nothing{}, s.RevokeKey(ctx, who, in.ID, in.Key, in.Why)
		}),
		operation.As[client.Defaults](operation.Reading(operation.Operation{
			Name: "getDefaults", Route: "GET /v1/users/{id}/defaults", Tag: operation.TagControl,
			Title: "Get the time zone and the window of a user", Returns: "The defaults.",
			Text: "They hold for batches that name none. `id` is the ID or the name of a user. Needs the scope `send` for the " +
				"caller, and `operate` for other users.",
		}, func(ctx context.Context, who caller.Caller, in *operation.ByID) (Defaults, error) {
			return s.Defaults(ctx, who, in.ID)
		})),
	}
	for _, u := range userCommands {
		out = append(out, operation.Changing(operation.Operation{
			Name: u.name, Route: "POST /v1/users/{id}/" + u.verb, Tag: operation.TagControl, Scope: u.scope,
			Title: u.title, Text: u.text + " `id` is the ID or the name of a user.", Returns: operation.ResultOfCommand,
		}, func(
			ctx context.Context, who caller.Caller, in *operation.CommandOn, r idempotency.Repeat,
		) (client.ControlResult, bool, error) {
			switch u.do { // of userCommands
			case models.PauseUser, models.ResumeUser:
				return s.Control(ctx, who, u.do, in.ID, in.Body.Why, r)
			case models.EndSessions:
				return s.EndSessions(ctx, who, in.ID, in.Body.Why, r)
			default:
				return s.Switch(ctx, who, u.do, in.ID, in.Body.Why, r)
			}
		}))
	}
	return out
}

// limitsIn returns the limits that a request names.
func limitsIn(in *client.NewLimits) models.Limits {
	out, v := models.Limits{}, reflect.ValueOf(in).Elem()
	for name, field := range operation.Pointers(v.Addr()) {
		if n, ok := field.(**int64); ok && *n != nil {
			out[models.Limit(name)] = **n
		}
	}
	return out
}

// limitOperations are the calls about limits.
func limitOperations(s *Limits) []operation.Operation {
	const (
		text = "How much of the limits is used, too. `id` is the ID or the name of a user."
		sets = "Replaces all limits that were set. Limits that are not given take their defaults: those of the " +
			"configuration for a user, none for a key. `id` is the ID or the name of a user. An hour or day whose limit " +
			"changes begins anew."
		now = "The limits that are in effect now."
	)
	return []operation.Operation{
		operation.Reading(operation.Operation{
			Name: "getUsage", Route: "GET /v1/usage", Tag: operation.TagStats, Scope: models.ScopeRead,
			Title: "Get your limits and how much of them is used", Returns: "The limits.",
			Text: "The limits of the user that the API key belongs to. Answers to all requests with a key also have the " +
				"headers `RateLimit-Policy` and `RateLimit` (draft-ietf-httpapi-ratelimit-headers), which include the limits of " +
				"the key.",
		}, func(ctx context.Context, who caller.Caller, _ *operation.None) (client.Limits, error) {
			return s.Usage(ctx, who)
		}),
		operation.Reading(operation.Operation{
			Name: "getUserLimits", Route: "GET /v1/users/{id}/limits", Tag: operation.TagOperation, Scope: models.ScopeOperate,
			Title: "Get the limits of a user", Text: text, Returns: "The limits.",
		}, func(ctx context.Context, who caller.Caller, in *operation.ByID) (client.Limits, error) {
			return s.LimitsOf(ctx, who, in.ID, "")
		}),
		operation.Reading(operation.Operation{
			Name: "getKeyLimits", Route: "GET /v1/users/{id}/keys/{key}/limits", Tag: operation.TagOperation,
			Scope: models.ScopeOperate, Title: "Get the limits of an API key", Text: text, Returns: "The limits.",
		}, func(ctx context.Context, who caller.Caller, in *keyOfUser) (client.Limits, error) {
			return s.LimitsOf(ctx, who, in.ID, in.Key)
		}),
		operation.Reading(operation.Operation{
			Name: "setUserLimits", Route: "PUT /v1/users/{id}/limits", Tag: operation.TagOperation, Scope: models.ScopeOperate,
			Title: "Set the limits of a user", Text: sets, Returns: now,
		}, func(ctx context.Context, who caller.Caller, in *struct {
			operation.ByID
			Body client.NewLimits
		},
		) (client.Limits, error) {
			return s.SetLimits(ctx, who, in.ID, "", limitsIn(&in.Body), in.Body.Why)
		}),
		operation.Reading(operation.Operation{
			Name: "setKeyLimits", Route: "PUT /v1/users/{id}/keys/{key}/limits", Tag: operation.TagOperation,
			Scope: models.ScopeOperate, Title: "Set the limits of an API key", Text: sets, Returns: now,
		}, func(ctx context.Context, who caller.Caller, in *struct {
			keyOfUser
			Body client.NewLimits
		},
		) (client.Limits, error) {
			return s.SetLimits(ctx, who, in.ID, in.Key, limitsIn(&in.Body), in.Body.Why)
		}),
	}
}

// recordOperations are the calls about what was recorded of keys and logins.
func recordOperations(s *People) []operation.Operation {
	return []operation.Operation{
		operation.Reading(operation.Operation{
			Name: "listRequests", Route: "GET /v1/requests", Tag: operation.TagOperation, Scope: models.ScopeRead,
			Title: "List the requests of an API key", Returns: "A page of requests.", Errors: []int{http.StatusNotFound},
			Text: "The requests of the last 7 days that had the key, with those that failed, newest first. A request is " +
				"listed when it was answered. The newest may be missing after a crash. Of a key that makes more than 5,000 " +
				"requests in an hour, some are only counted (`omitted`). For keys of others the request needs the scope `operate`.",
		}, func(ctx context.Context, who caller.Caller, in *requestQuery) (client.RequestPage, error) {
			return s.Requests(ctx, who, in.Key, in.Page)
		}),
		operation.Reading(operation.Operation{
			Name: "listAccess", Route: "GET /v1/audit/access", Tag: operation.TagOperation, Scope: models.ScopeOperate,
			Title: "List logins, and refused logins and keys", Returns: "A page of entries.",
			Text: "Equal events of an hour are one entry with a count, newest first. Entries are kept for 90 days. If too " +
				"many clients cause the same refusals, the later ones share an entry without an address.",
		}, func(ctx context.Context, who caller.Caller, in *accessQuery) (client.AccessPage, error) {
			return s.AccessLog(ctx, who, accesslog.Kind(in.Kind), in.Page)
		}),
	}
}
