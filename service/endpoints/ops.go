package endpoints

import (
	"context"
	"net/http"
	"slices"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/feed"
	"github.com/safedelivr/safedelivr/service/caller"
	"github.com/safedelivr/safedelivr/service/idempotency"
	"github.com/safedelivr/safedelivr/service/operation"
	"github.com/safedelivr/safedelivr/service/problem"
)

// whose says whose endpoints a request is about.
type whose struct {
	// `true`: about the endpoints of the installation instead of yours. Needs the scope `operate` instead of another.
	Installation bool `query:"installation"`
}

func (w whose) owner(who caller.Caller) string {
	if w.Installation {
		return feed.Installation
	}
	return who.User
}

// one names an endpoint.
type one struct {
	whose
	// ID of the endpoint.
	ID string `path:"id"`
}

type (
	creation struct {
		whose
		Body client.EndpointSettings
	}
	change struct {
		one
		Body client.EndpointSettings
	}
	disabling struct {
		one
		Body client.Reason
	}
	replay struct {
		one
		Body client.Replay
	}
	onePost struct {
		one
		// ID of the post, `msg_…`.
		Post string `path:"post"`
	}
)

const (
	tag        = "endpoints"
	anEndpoint = "The endpoint."
	aboutPosts = "Posts the updates of your mail that follow to `url`, as Standard Webhooks describes it. Posts have the header " +
		"fields `webhook-id`, `webhook-timestamp` and `webhook-signature`. They are signed with the `secret` of the answer, " +
		"which no later answer has.\n\n" +
		"An answer with a status from 200 to 299 within 15 seconds accepts a post. Redirects are not followed. A post is " +
		"repeated with the same `webhook-id` after 5 s, 30 s, 2 min, 10 min, 1, 3, 6, 12 and 24 h, or after the time that " +
		"`Retry-After` names, if that is longer. 410 disables the endpoint, and so do five days without an accepted post. The " +
		"address may not be in a private network, unless the operator allows it.\n\n" +
		"With `installation=true` it is an endpoint of the installation, which gets the notices for operators. These are " +
		"providers that are suspended and recover, outages, sums that differ, unknown outcomes, and limits of users that are " +
		"nearly used up. The other calls about endpoints have the parameter, too."
)

// Operations returns the calls about endpoints. of returns the endpoints for what a caller does.
func Operations(of func(caller.Caller) *Endpoints, guard *idempotency.Guard) []operation.Operation {
	return slices.Concat(reads(of), changes(of, guard), commands(of, guard))
}

func reads(of func(caller.Caller) *Endpoints) []operation.Operation {
	return []operation.Operation{
		operation.Reading(operation.Operation{
			Name: "listEndpoints", Route: "GET /v1/endpoints", Tag: tag, Scope: models.ScopeRead,
			Title: "List your endpoints", Text: "All of them, oldest first.", Returns: "The endpoints.",
		}, func(ctx context.Context, who caller.Caller, in *whose) (client.EndpointList, error) {
			list, err := of(who).List(ctx, in.owner(who))
			return client.EndpointList{Endpoints: list}, err
		}),
		operation.Reading(operation.Operation{
			Name: "getEndpoint", Route: "GET /v1/endpoints/{id}", Tag: tag, Scope: models.ScopeRead,
			Title: "Get an endpoint", Returns: anEndpoint,
		}, func(ctx context.Context, who caller.Caller, in *one) (client.Endpoint, error) {
			return of(who).Get(ctx, in.owner(who), in.ID)
		}),
		operation.Reading(operation.Operation{
			Name: "listEndpointAttempts", Route: "GET /v1/endpoints/{id}/attempts", Tag: tag, Scope: models.ScopeRead,
			Title: "List the newest attempts to post", Text: "The newest hundred, newest first.", Returns: "The attempts.",
		}, func(ctx context.Context, who caller.Caller, in *one) (client.EndpointAttemptList, error) {
			list, err := of(who).Attempts(ctx, in.owner(who), in.ID)
			return client.EndpointAttemptList{Attempts: list}, err
		}),
		operation.Reading(operation.Operation{
			Name: "getEndpointPost", Route: "GET /v1/endpoints/{id}/posts/{post}", Tag: tag, Scope: models.ScopeRead,
			Title: "Get what was posted", Text: "The header fields and the body of one of the newest hundred posts.",
			Returns: "What was posted.", Errors: []int{http.StatusGone},
		}, func(ctx context.Context, who caller.Caller, in *onePost) (client.EndpointRequest, error) {
			return of(who).Request(ctx, in.owner(who), in.ID, in.Post)
		}),
	}
}

func changes(of func(caller.Caller) *Endpoints, guard *idempotency.Guard) []operation.Operation {
	return []operation.Operation{
		operation.Once(guard, operation.Operation{
			Name: "createEndpoint", Route: "POST /v1/endpoints", Tag: tag, Scope: models.ScopeSend, Status: http.StatusCreated,
			Title: "Post updates to an address", Returns: anEndpoint,
			Example: `{"url": "https://example.com/hooks/mail", "events": ["log.failed"], "batch": true}`,
			Text:    aboutPosts,
		}, func(ctx context.Context, who caller.Caller, in *creation) (client.Endpoint, error) {
			return of(who).Create(ctx, in.owner(who), &in.Body)
		}),
		operation.Reading(operation.Operation{
			Name: "updateEndpoint", Route: "PUT /v1/endpoints/{id}", Tag: tag, Scope: models.ScopeSend,
			Title: "Change an endpoint", Text: "Replaces all its settings.", Returns: anEndpoint,
		}, func(ctx context.Context, who caller.Caller, in *change) (client.Endpoint, error) {
			return of(who).Update(ctx, in.owner(who), in.ID, &in.Body)
		}),
		operation.Reading(operation.Operation{
			Name: "removeEndpoint", Route: "DELETE /v1/endpoints/{id}", Tag: tag, Scope: models.ScopeSend,
			Title: "Remove an endpoint",
			Text:  "Posts that are being made are not ended. If it was removed before, the answer is 204 as well.",
		}, func(ctx context.Context, who caller.Caller, in *one) (operation.Nothing, error) {
			return operation.Nothing{}, of(who).Remove(ctx, in.owner(who), in.ID)
		}),
	}
}

// commands are the operations that do something with an endpoint.
func commands(of func(caller.Caller) *Endpoints, guard *idempotency.Guard) []operation.Operation {
	return []operation.Operation{
		operation.Once(guard, operation.Operation{
			Name: "rotateEndpoint", Route: "POST /v1/endpoints/{id}/rotate", Tag: tag, Scope: models.ScopeSend,
			Title: "Give an endpoint a new secret", Text: "Posts are signed with the old one, too, for 24 hours.", Returns: anEndpoint,
		}, func(ctx context.Context, who caller.Caller, in *one) (client.Endpoint, error) {
			return of(who).Rotate(ctx, in.owner(who), in.ID)
		}),
		operation.Once(guard, operation.Operation{
			Name: "disableEndpoint", Route: "POST /v1/endpoints/{id}/disable", Tag: tag, Scope: models.ScopeSend,
			Title: "Disable an endpoint", Text: "It gets no posts until it is enabled.", Returns: anEndpoint,
		}, func(ctx context.Context, who caller.Caller, in *disabling) (client.Endpoint, error) {
			if err := operation.Valid(&in.Body); err != nil {
				return client.Endpoint{}, err
			}
			return of(who).Disable(ctx, in.owner(who), in.ID, in.Body.Why)
		}),
		operation.Once(guard, operation.Operation{
			Name: "enableEndpoint", Route: "POST /v1/endpoints/{id}/enable", Tag: tag, Scope: models.ScopeSend,
			Title: "Enable an endpoint", Text: "It gets what it missed, as long as that is kept.", Returns: anEndpoint,
		}, func(ctx context.Context, who caller.Caller, in *one) (client.Endpoint, error) {
			return of(who).Enable(ctx, in.owner(who), in.ID)
		}),
		operation.Once(guard, operation.Operation{
			Name: "replayEndpoint", Route: "POST /v1/endpoints/{id}/replay", Tag: tag, Scope: models.ScopeSend,
			Title: "Post updates again", Returns: anEndpoint,
			Text: "With `from`: posts the updates since a time again, and then those that follow. With `post`: makes one of the " +
				"newest hundred posts again, with the same `webhook-id`. Both enable the endpoint, and make what waits for a retry " +
				"due at once.",
		}, func(ctx context.Context, who caller.Caller, in *replay) (client.Endpoint, error) {
			switch e := of(who); {
			case in.Body.Post == "":
				return e.Replay(ctx, in.owner(who), in.ID, in.Body.From)
			case in.Body.From.IsZero():
				return e.ReplayPost(ctx, in.owner(who), in.ID, in.Body.Post)
			}
			var f problem.Form
			f.Wrong("/post", "invalid_value", "Name from or post, not both.")
			return client.Endpoint{}, f.Err()
		}),
		operation.Once(guard, operation.Operation{
			Name: "testEndpoint", Route: "POST /v1/endpoints/{id}/test", Tag: tag, Scope: models.ScopeSend,
			Title: "Make a test post", Text: "Makes one post of the type `test`, which is not repeated, and returns its answer.",
			Returns: "The answer to the post.",
		}, func(ctx context.Context, who caller.Caller, in *one) (client.EndpointTest, error) {
			return of(who).Test(ctx, in.owner(who), in.ID)
		}),
	}
}
