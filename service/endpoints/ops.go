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
	aboutPosts = "Posts the updates of your mail that follow to `url`, as Standard Webhooks describes it. Posts have " +
		"the header fields `webhook-id`, `webhook-timestamp` and `webhook-signature`. They are signed with the `secret` of " +
		"the answer, which no later answer has.\n\n" +
		"An answer with a status from 200 to 299 within 15 seconds accepts a post. Redirects are not followed. A post is " +
		"repeated with the same `webhook-id` after 5 s, 30 s, 2 min, 10 min, 1, 3, 6, 12 and 24 h, or after the time that " +
		"`Retry-After` names, if that is longer. 410 disables the endpoint, and so do five days without an accepted post. " +
		"The address may not be in a private network, unless the operator allows it.\n\n" +
		"With `installation=true` it is an endpoint of the installation, which gets the notices for operators. These are " +
		"providers that are suspended and recover, outages, sums that differ, unknown outcomes, and limits of users that " +
		"are nearly used up. The other calls about endpoints have the parameter, too."
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
			Title: "Get the request of a post", Text: "The header fields and the body of one of the newest hundred posts.",
			Returns: "The request of the post, as it would be made now.", Errors: []int{http.StatusGone},
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
			return of(who).by("create").Create(ctx, in.owner(who), &in.Body)
		}),
		operation.Reading(operation.Operation{
			Name: "updateEndpoint", Route: "PUT /v1/endpoints/{id}", Tag: tag, Scope: models.ScopeSend,
			Title: "Change an endpoint", Text: "Replaces all its settings.", Returns: anEndpoint,
		}, func(ctx context.Context, who caller.Caller, in *change) (client.Endpoint, error) {
			return of(who).by("change").Update(ctx, in.owner(who), in.ID, &in.Body)
		}),
		operation.Reading(operation.Operation{
			Name: "removeEndpoint", Route: "DELETE /v1/endpoints/{id}", Tag: tag, Scope: models.ScopeSend,
			Title: "Remove an endpoint",
			Text:  "Posts that are being made are not ended. If it was removed before, the answer is 204 as well.",
		}, func(ctx context.Context, who caller.Caller, in *one) (operation.Nothing, error) {
			return operation.Nothing{}, of(who).by("remove").Remove(ctx, in.owner(who), in.ID)
		}),
	}
}

// verb is something that can be done with an endpoint, as its paths have it.
type verb struct{ name, title, text, returns string }

// commands are the operations that do something with an endpoint.
func commands(of func(caller.Caller) *Endpoints, guard *idempotency.Guard) []operation.Operation {
	return []operation.Operation{
		command(of, guard, verb{
			"rotate", "Give an endpoint a new secret", "Posts are signed with the old one, too, for 24 hours. " +
				"In the shapes of Mailgun and SendGrid only the new one counts.", anEndpoint,
		}, byID((*Endpoints).Rotate)),
		command(of, guard, verb{
			"disable", "Disable an endpoint", "It gets no posts until it is enabled.", anEndpoint,
		}, disable),
		command(of, guard, verb{
			"enable", "Enable an endpoint", "It gets what it missed, as long as that is kept.", anEndpoint,
		}, byID((*Endpoints).Enable)),
		command(of, guard, verb{
			"replay", "Post updates again", "With `from`: posts the updates since a time again, and then those that follow. " +
				"With `post`: makes one of the newest hundred posts again, with the same `webhook-id`. Both enable the endpoint, " +
				"and make what waits for a retry due at once.", anEndpoint,
		}, again),
		command(of, guard, verb{
			"test", "Make a test post", "Makes one post of the type `test`, which is not repeated, and returns its answer.",
			"The answer to the post.",
		}, byID((*Endpoints).Test)),
	}
}

// owned is a request about the endpoints of an owner.
type owned interface {
	owner(who caller.Caller) string
}

// command returns the operation of a verb. do gets the endpoints for what the caller does, and their owner. The audit
// trail has the verb if models/command.go has it.
func command[In owned, Out any](
	of func(caller.Caller) *Endpoints, guard *idempotency.Guard, v verb,
	do func(ctx context.Context, s *Endpoints, owner string, in *In) (Out, error),
) operation.Operation {
	return operation.Once(guard, operation.Operation{
		Name: v.name + "Endpoint", Route: "POST /v1/endpoints/{id}/" + v.name, Tag: tag, Scope: models.ScopeSend,
		Title: v.title, Text: v.text, Returns: v.returns,
	}, func(ctx context.Context, who caller.Caller, in *In) (Out, error) {
		return do(ctx, of(who).by(v.name), (*in).owner(who), in)
	})
}

// byID returns the function of a verb that needs nothing but the endpoint's ID.
func byID[Out any](
	do func(s *Endpoints, ctx context.Context, owner, id string) (Out, error),
) func(context.Context, *Endpoints, string, *one) (Out, error) {
	return func(ctx context.Context, s *Endpoints, owner string, in *one) (Out, error) {
		return do(s, ctx, owner, in.ID)
	}
}

func disable(ctx context.Context, s *Endpoints, owner string, in *disabling) (client.Endpoint, error) {
	if err := operation.Valid(&in.Body); err != nil {
		return client.Endpoint{}, err
	}
	return s.Disable(ctx, owner, in.ID, in.Body.Why)
}

func again(ctx context.Context, s *Endpoints, owner string, in *replay) (client.Endpoint, error) {
	switch {
	case in.Body.Post == "":
		return s.Replay(ctx, owner, in.ID, in.Body.From)
	case in.Body.From.IsZero():
		return s.ReplayPost(ctx, owner, in.ID, in.Body.Post)
	}
	var f problem.Form
	f.Wrong("/post", "invalid_value", "Name from or post, not both.")
	return client.Endpoint{}, f.Err()
}
