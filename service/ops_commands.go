package service

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/backlog"
	"github.com/safedelivr/safedelivr/service/operation"
)

// adminOperations are the calls with which operators add users and keys, and set what users may do.
func adminOperations(s *Service) []operation.Operation {
	senders := func(v AllowedSenders, err error) (client.Senders, error) { return client.Senders(v), err }
	return []operation.Operation{
		operation.Reading(operation.Operation{
			Name: "getUser", Route: "GET /v1/users/{id}", Tag: tagControl, Scope: models.ScopeOperate,
			Title: "Get a user", Text: "`id` is the ID or the name of a user.", Returns: "The user.",
		}, func(ctx context.Context, who Caller, in *byID) (client.User, error) {
			return s.UserView(ctx, who, in.ID)
		}),
		operation.Reading(operation.Operation{
			Name: "addUser", Route: "POST /v1/users", Tag: tagControl, Scope: models.ScopeOperate,
			Status: http.StatusCreated, Title: "Add a user", Returns: "The user.", Errors: []int{http.StatusConflict},
			Text: "The user may use any sender, until an operator sets others. The answer is 409 (`user_exists`) if another user " +
				"has the name.",
			Example: `{"name": "shop"}`,
		}, func(ctx context.Context, who Caller, in *struct{ Body client.NewUser }) (client.User, error) {
			return addUser(ctx, s, who, &in.Body)
		}),
		operation.Reading(operation.Operation{
			Name: "createKey", Route: "POST /v1/users/{id}/keys", Tag: tagControl, Scope: models.ScopeOperate,
			Status: http.StatusCreated, Title: "Create an API key of a user", Returns: "The key, with its secret.",
			Text: "`id` is the ID or the name of a user. A key cannot create a key with a scope that it lacks, nor with the scope " +
				"`operate`.",
			Example: `{"name": "shop", "scopes": ["send"], "networks": ["192.0.2.0/24"]}`,
		}, func(ctx context.Context, who Caller, in *struct {
			byID
			Body client.NewKey
		},
		) (client.CreatedKey, error) {
			return createKeyOf(ctx, s, who, in.ID, &in.Body)
		}),
		operation.Reading(operation.Operation{
			Name: "getSenders", Route: "GET /v1/users/{id}/senders", Tag: tagControl, Scope: models.ScopeOperate,
			Title: "Get the senders that a user may use", Text: "`id` is the ID or the name of a user.",
			Returns: "The senders.",
		}, func(ctx context.Context, who Caller, in *byID) (client.Senders, error) {
			return senders(s.AllowedSendersOf(ctx, who, in.ID))
		}),
		operation.Reading(operation.Operation{
			Name: "setSenders", Route: "PUT /v1/users/{id}/senders", Tag: tagControl, Scope: models.ScopeOperate,
			Title: "Set the senders that a user may use", Returns: "The senders.",
			Text:    "Replaces all senders of the user. `id` is the ID or the name of a user.",
			Example: `{"senders": ["@shop.example.com"], "why": "their domain"}`,
		}, func(ctx context.Context, who Caller, in *struct {
			byID
			Body client.SetSenders
		},
		) (client.Senders, error) {
			if in.Body.Senders == nil {
				var f Form
				f.Wrong("/senders", "required", "Add senders.")
				operation.Check(&in.Body, &f)
				return client.Senders{}, f.Err()
			}
			v, _, err := s.SetSenders(ctx, who, in.ID, in.Body.Senders, in.Body.Why, Repeat{})
			return senders(v, err)
		}),
		operation.As[client.Waiting](operation.Reading(operation.Operation{
			Name: "getWaiting", Route: "GET /v1/waiting", Tag: tagOperation, Scope: models.ScopeOperate,
			Title: "Get what the mail of all users waits for", Returns: "The mail that waits.",
			Text: "The sums are exact. What mail waits for is found out for the batches that wait longest and for the newest ones.",
		}, func(ctx context.Context, who Caller, _ *nothing) (backlog.Backlog, error) {
			v, err := Backlog(ctx, s, who)
			v.Lines = append([]backlog.Line{}, v.Lines...) // an empty list is not null
			return v, err
		})),
	}
}

// addUser adds a user with a new name.
func addUser(ctx context.Context, s *Service, who Caller, in *client.NewUser) (client.User, error) {
	if err := operation.Valid(in); err != nil {
		return client.User{}, err
	}
	u := models.User{ID: models.NewUserID(), Name: in.Name, Created: time.Now().UTC()}
	err := s.store.CreateUser(ctx, u)
	if errors.Is(err, models.ErrExists) {
		return client.User{}, Fail(Conflict, "user_exists", "There is a user %s already.", in.Name)
	}
	if err != nil {
		return client.User{}, storeError("add user", err)
	}
	return s.UserView(ctx, who, u.ID)
}

// createKeyOf creates an API key of a user. An API key cannot give away more than it may itself.
func createKeyOf(ctx context.Context, s *Service, who Caller, user string, in *client.NewKey) (client.CreatedKey, error) {
	u, err := s.User(ctx, who, user)
	if err != nil {
		return client.CreatedKey{}, err
	}
	o := models.KeyOptions{Expires: in.Expires, Networks: in.Networks}
	for _, name := range in.Scopes {
		o.Scopes = append(o.Scopes, models.Scope(name))
	}
	if who.Key != "" {
		o.Scopes = scopesOf(&models.Key{KeyOptions: o})
		who.Scopes = slices.DeleteFunc(slices.Clone(who.Scopes), func(sc models.Scope) bool { return sc == models.ScopeOperate })
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
