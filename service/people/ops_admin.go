package people

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/caller"
	"github.com/safedelivr/safedelivr/service/idempotency"
	"github.com/safedelivr/safedelivr/service/operation"
	"github.com/safedelivr/safedelivr/service/problem"
)

// adminOperations are the calls with which operators add users and keys, and set what users may do.
func adminOperations(s *People) []operation.Operation {
	senders := func(v AllowedSenders, err error) (client.Senders, error) { return client.Senders(v), err }
	return []operation.Operation{
		operation.Reading(operation.Operation{
			Name: "getUser", Route: "GET /v1/users/{id}", Tag: operation.TagControl, Scope: models.ScopeOperate,
			Title: "Get a user", Text: "`id` is the ID or the name of a user.", Returns: "The user.",
		}, func(ctx context.Context, who caller.Caller, in *operation.ByID) (client.User, error) {
			return s.UserView(ctx, who, in.ID)
		}),
		operation.Reading(operation.Operation{
			Name: "addUser", Route: "POST /v1/users", Tag: operation.TagControl, Scope: models.ScopeOperate,
			Status: http.StatusCreated, Title: "Add a user", Returns: "The user.", Errors: []int{http.StatusConflict},
			Text: "The user may use any sender, until an operator sets others. The answer is 409 (`user_exists`) if another " +
				"user has the name.",
			Example: `{"name": "shop"}`,
		}, func(ctx context.Context, who caller.Caller, in *struct{ Body client.NewUser }) (client.User, error) {
			return addUser(ctx, s, who, &in.Body)
		}),
		operation.Reading(operation.Operation{
			Name: "createKey", Route: "POST /v1/users/{id}/keys", Tag: operation.TagControl, Scope: models.ScopeOperate,
			Status: http.StatusCreated, Title: "Create an API key of a user", Returns: "The key, with its secret.",
			Text: "`id` is the ID or the name of a user. A key cannot create a key with a scope that it lacks, nor with the " +
				"scope `operate`.",
			Example: `{"name": "shop", "scopes": ["send"], "networks": ["192.0.2.0/24"]}`,
		}, func(ctx context.Context, who caller.Caller, in *struct {
			operation.ByID
			Body client.NewKey
		},
		) (client.CreatedKey, error) {
			return createKeyOf(ctx, s, who, in.ID, &in.Body)
		}),
		operation.Reading(operation.Operation{
			Name: "getSenders", Route: "GET /v1/users/{id}/senders", Tag: operation.TagControl, Scope: models.ScopeOperate,
			Title: "Get the senders that a user may use", Text: "`id` is the ID or the name of a user.",
			Returns: "The senders.",
		}, func(ctx context.Context, who caller.Caller, in *operation.ByID) (client.Senders, error) {
			return senders(s.AllowedSendersOf(ctx, who, in.ID))
		}),
		operation.Reading(operation.Operation{
			Name: "setSenders", Route: "PUT /v1/users/{id}/senders", Tag: operation.TagControl, Scope: models.ScopeOperate,
			Title: "Set the senders that a user may use", Returns: "The senders.",
			Text:    "Replaces all senders of the user. `id` is the ID or the name of a user.",
			Example: `{"senders": ["@shop.example.com"], "why": "their domain"}`,
		}, func(ctx context.Context, who caller.Caller, in *struct {
			operation.ByID
			Body client.SetSenders
		},
		) (client.Senders, error) {
			if in.Body.Senders == nil {
				var f problem.Form
				f.Wrong("/senders", "required", "Add senders.")
				operation.Check(&in.Body, &f)
				return client.Senders{}, f.Err()
			}
			v, _, err := s.SetSenders(ctx, who, in.ID, in.Body.Senders, in.Body.Why, idempotency.Repeat{})
			return senders(v, err)
		}),
	}
}

// addUser adds a user with a new name.
func addUser(ctx context.Context, s *People, who caller.Caller, in *client.NewUser) (client.User, error) {
	if err := operation.Valid(in); err != nil {
		return client.User{}, err
	}
	u := models.User{ID: models.NewUserID(), Name: in.Name, Created: time.Now().UTC()}
	err := s.Store.CreateUser(ctx, u)
	if errors.Is(err, models.ErrExists) {
		return client.User{}, problem.New(problem.Conflict, "user_exists", "There is a user %s already.", in.Name)
	}
	if err != nil {
		return client.User{}, problem.FromStore("add user", err)
	}
	s.Audit.Record(ctx, who, &models.Command{Kind: models.AddedUser, User: u.ID})
	return s.UserView(ctx, who, u.ID)
}

// createKeyOf creates an API key of a user. An API key cannot give away more than it may itself.
func createKeyOf(
	ctx context.Context, s *People, who caller.Caller, user string, in *client.NewKey,
) (client.CreatedKey, error) {
	u, err := s.ownerOf(ctx, who, user, "")
	if err != nil {
		return client.CreatedKey{}, err
	}
	o := models.KeyOptions{Expires: in.Expires, Networks: in.Networks}
	for _, name := range in.Scopes {
		o.Scopes = append(o.Scopes, models.Scope(name))
	}
	if who.Key != "" {
		o.Scopes = scopesOf(&models.Key{KeyOptions: o})
		who.Scopes = slices.DeleteFunc(slices.Clone(who.Scopes),
			func(sc models.Scope) bool { return sc == models.ScopeOperate })
	}
	who.By, who.User = who.Name(), u.ID
	key, secret, err := s.CreateKey(ctx, who, in.Name, o)
	return client.CreatedKey{
		Key: client.Key{
			ID: key.ID, Prefix: key.Prefix(), User: u.ID, UserName: u.Name, Name: key.Name, Created: key.Created,
			Expires: key.Expires, Scopes: texts(scopesOf(&key)), Networks: key.Networks,
		},
		Secret: secret,
	}, err
}
