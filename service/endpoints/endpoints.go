// Package endpoints keeps the endpoints of users: the addresses of their applications to which updates of their mail
// are posted. Those of the installation have the owner feed.Installation instead of a user. Workers post.
package endpoints

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/internal/outbound"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/documents"
	"github.com/safedelivr/safedelivr/models/endpoint"
	"github.com/safedelivr/safedelivr/models/feed"
	"github.com/safedelivr/safedelivr/service/problem"
)

const (
	maxEndpoints = 20             // of a user
	maxAddresses = 20             // of the format mail
	oldSecret    = 24 * time.Hour // how long a secret is valid after its rotation
)

// Store is the part of models.Store that Endpoints need.
type Store interface {
	models.DocumentStore
	endpoint.ComposerStore
}

// Endpoints holds the endpoints of all users.
type Endpoints struct {
	store   Store
	all     *documents.Of[endpoint.Endpoint]
	compose *endpoint.Composer
	out     *outbound.Client
	mailer  endpoint.Mailer
	record  func(ctx context.Context, c *models.Command) // adds what was done to the audit trail
	kind    models.CommandKind                           // of what is done
}

// New returns the endpoints of a store. Test posts are made by out, or by mailer. A user creates endpoints only if room
// returns no error. Those of the installation always have room, because they get notices of a full disk.
func New(store Store, room documents.Room, out *outbound.Client, mailer endpoint.Mailer) *Endpoints {
	all := endpoint.In(store)
	all.Fail, all.Most = problem.About("endpoint"), maxEndpoints
	all.Full = problem.New(problem.Conflict, "too_many_endpoints",
		"You have %d endpoints, and may have no more. Remove one.", maxEndpoints)
	all.Room = func(ctx context.Context, user string) error {
		if user == feed.Installation {
			return nil
		}
		return room(ctx, user)
	}
	return &Endpoints{
		store:   store,
		all:     all,
		compose: endpoint.NewComposer(store),
		out:     out,
		mailer:  mailer,
		record:  func(context.Context, *models.Command) {},
	}
}

// RecordedBy returns the endpoints with a function that adds what is done to the audit trail.
func (s *Endpoints) RecordedBy(record func(ctx context.Context, c *models.Command)) *Endpoints {
	out := *s
	out.record = record
	return &out
}

// by returns the endpoints for a verb, as the audit trail names it.
func (s *Endpoints) by(verb string) *Endpoints {
	out := *s
	out.kind = models.CommandKind("endpoint." + verb)
	return &out
}

// done adds what was done to an endpoint to the audit trail, if that has the verb.
func (s *Endpoints) done(ctx context.Context, e *endpoint.Endpoint, why string) {
	if s.kind.Known() {
		s.record(ctx, &models.Command{Kind: s.kind, User: e.Owner, Subject: e.ID, Why: why})
	}
}

// Create creates an endpoint. It gets the updates that follow.
func (s *Endpoints) Create(ctx context.Context, user string, n *client.EndpointSettings) (client.Endpoint, error) {
	if err := check(n, user); err != nil {
		return client.Endpoint{}, err
	}
	head, err := s.head(ctx, user)
	if err != nil {
		return client.Endpoint{}, err
	}
	now := time.Now().UTC().Truncate(time.Millisecond)
	e := endpoint.Endpoint{
		ID: models.NewBatchID(now).String(), Owner: user, EndpointSettings: stored(n), Created: now,
		Secrets:    []endpoint.Secret{endpoint.NewSecret(cmp.Or(n.Signature, client.SignatureHMAC))},
		Generation: 1, Replay: &head,
	}
	if e.Everyone {
		e.Start = endpoint.Start{At: now, Generation: e.Generation}
	}
	if err := s.all.Create(ctx, user, e.ID, e); err != nil {
		return client.Endpoint{}, err
	}
	s.done(ctx, &e, "")
	v, err := s.view(ctx, &e)
	_, v.Secret, _ = e.Keys()
	return v, err
}

// stored returns settings as they are stored: the newest secret says how posts are signed.
func stored(n *client.EndpointSettings) client.EndpointSettings {
	out := *n
	out.Signature = ""
	return out
}

// head returns the position behind the newest update of a user.
func (s *Endpoints) head(ctx context.Context, user string) (feed.Position, error) {
	head, err := s.store.FeedHead(ctx, user)
	if errors.Is(err, models.ErrNotFound) {
		err = nil
	}
	if err != nil {
		return feed.Position{}, problem.FromStore("read feed", err)
	}
	return feed.Position{Entry: head.Number}, nil
}

// List returns the endpoints of a user, oldest first.
func (s *Endpoints) List(ctx context.Context, user string) ([]client.Endpoint, error) {
	list, err := s.all.List(ctx, user)
	if err != nil {
		return nil, err
	}
	out := make([]client.Endpoint, len(list))
	for i := range list {
		if out[i], err = s.view(ctx, &list[i]); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Get returns an endpoint of a user.
func (s *Endpoints) Get(ctx context.Context, user, id string) (client.Endpoint, error) {
	e, err := s.all.Get(ctx, user, id)
	if err != nil {
		return client.Endpoint{}, err
	}
	return s.view(ctx, &e)
}

// errUnchanged says that an endpoint is already as a verb would make it.
var errUnchanged = errors.New("unchanged")

// do changes an endpoint by f, and adds that to the audit trail, unless f returns errUnchanged. The answer has the secret
// if it is new.
func (s *Endpoints) do(
	ctx context.Context, user, id, why string, f func(e *endpoint.Endpoint) error,
) (client.Endpoint, error) {
	var key []byte // of the newest secret until now
	same := false
	e, err := s.all.Change(ctx, user, id, func(e *endpoint.Endpoint) error {
		key = e.Secrets[0].Key
		err := f(e)
		if same = errors.Is(err, errUnchanged); same {
			return nil
		}
		return err
	})
	if err != nil {
		return client.Endpoint{}, err
	}
	if !same {
		s.done(ctx, &e, why)
	}
	v, err := s.view(ctx, &e)
	if !bytes.Equal(e.Secrets[0].Key, key) {
		_, v.Secret, _ = e.Keys()
	}
	return v, err
}

// Update replaces the settings of an endpoint.
func (s *Endpoints) Update(ctx context.Context, user, id string, n *client.EndpointSettings) (client.Endpoint, error) {
	if err := check(n, user); err != nil {
		return client.Endpoint{}, err
	}
	return s.do(ctx, user, id, "", func(e *endpoint.Endpoint) error {
		if e.Everyone != n.Everyone {
			var f problem.Form
			f.Wrong("/everyone", "invalid_value", "This cannot be changed. Add another endpoint.")
			return f.Err()
		}
		e.EndpointSettings = stored(n)
		kind := n.Signature
		if n.Shape == client.ShapeMailgun || n.Shape == client.ShapeResend {
			kind = client.SignatureHMAC
		}
		if kind != "" && kind != e.Secrets[0].Signature {
			e.Rotate(endpoint.NewSecret(kind), time.Now().Add(oldSecret))
		}
		return nil
	})
}

// Remove removes an endpoint. Removing one that does not exist does nothing.
func (s *Endpoints) Remove(ctx context.Context, user, id string) error {
	e, err := endpoint.In(s.store).Get(ctx, user, id)
	if errors.Is(err, models.ErrNotFound) {
		return nil
	}
	if err == nil {
		err = endpoint.Remove(ctx, s.store, &e)
	}
	if err != nil {
		return problem.FromStore("remove endpoint", err)
	}
	s.done(ctx, &e, "")
	return nil
}

// Rotate gives an endpoint a new secret. Posts are signed with the old one, too, for a day.
func (s *Endpoints) Rotate(ctx context.Context, user, id string) (client.Endpoint, error) {
	return s.do(ctx, user, id, "", func(e *endpoint.Endpoint) error {
		e.Rotate(endpoint.NewSecret(e.Secrets[0].Signature), time.Now().Add(oldSecret))
		return nil
	})
}

// Enable lets posts to an endpoint go on that was disabled. It gets what it missed, as long as that is kept.
func (s *Endpoints) Enable(ctx context.Context, user, id string) (client.Endpoint, error) {
	nothing := func(*endpoint.Endpoint, *endpoint.State) error { return nil }
	return s.restart(ctx, user, id, nothing)
}

// Replay posts the updates since a time again.
func (s *Endpoints) Replay(ctx context.Context, user, id string, from time.Time) (client.Endpoint, error) {
	if from.IsZero() || from.After(time.Now()) {
		var f problem.Form
		f.Wrong("/from", "invalid_value", "from must be a time in the past.")
		return client.Endpoint{}, f.Err()
	}
	at, err := feed.Find(ctx, s.store, user, from)
	if err != nil && !errors.Is(err, models.ErrNotFound) { // nothing was published yet
		return client.Endpoint{}, problem.FromStore("read feed", err)
	}
	return s.restart(ctx, user, id, func(e *endpoint.Endpoint, _ *endpoint.State) error {
		if e.Replay = &at; e.Everyone {
			e.Start = endpoint.Start{At: from.UTC(), Generation: e.Generation + 1}
		}
		return nil
	})
}

// restart enables an endpoint, and lets f choose the posts to repeat.
func (s *Endpoints) restart(
	ctx context.Context, user, id string, f func(e *endpoint.Endpoint, state *endpoint.State) error,
) (client.Endpoint, error) {
	return s.do(ctx, user, id, "", func(e *endpoint.Endpoint) error {
		state, _, err := endpoint.StateOf(ctx, s.store, e)
		if err != nil {
			return problem.FromStore("read endpoint", err)
		}
		if state.Generation == e.Generation { // otherwise an earlier replay is still pending
			e.Replay, e.Again = nil, nil
		}
		if err := f(e, &state); err != nil {
			return err
		}
		e.Disabled = nil
		e.Generation++
		return nil
	})
}

// Disable ends the posts to an endpoint until it is enabled.
func (s *Endpoints) Disable(ctx context.Context, user, id, why string) (client.Endpoint, error) {
	return s.do(ctx, user, id, why, func(e *endpoint.Endpoint) error {
		if e.Disabled != nil {
			return errUnchanged
		}
		e.Disabled = &endpoint.Disabled{At: time.Now().UTC(), Why: why}
		return nil
	})
}

// Test makes a post of the type test, which is not repeated.
func (s *Endpoints) Test(ctx context.Context, user, id string) (client.EndpointTest, error) {
	e, err := s.all.Get(ctx, user, id)
	if err != nil {
		return client.EndpointTest{}, err
	}
	now := time.Now().UTC()
	const text = "This is a test post of Safedelivr."
	body, err := e.Body(&endpoint.Message{
		Type: endpoint.Test, Timestamp: now, Data: map[string]string{"message": text}, Text: text,
	})
	if err != nil {
		return client.EndpointTest{}, err
	}
	post := "msg_" + models.NewBatchID(now).String()
	var out client.EndpointTest
	if e.Format == client.FormatMail {
		out.Status = http.StatusAccepted
		out.Answer, err = s.mailer(ctx, &e, post, body)
	} else {
		var a outbound.Answer
		header, body := e.Request(post, now, body)
		a, err = s.out.Post(ctx, e.URL, header, body)
		out = client.EndpointTest{Status: a.Status, Answer: models.Clip(a.Body), TookMS: a.Took.Milliseconds()}
	}
	if err != nil {
		out.Status, out.Answer = 0, models.Clip(err.Error())
	}
	return out, ctx.Err()
}

func (s *Endpoints) view(ctx context.Context, e *endpoint.Endpoint) (client.Endpoint, error) {
	state, _, err := endpoint.StateOf(ctx, s.store, e)
	if err != nil {
		return client.Endpoint{}, problem.FromStore("read endpoint", err)
	}
	v := client.Endpoint{
		ID:               e.ID,
		EndpointSettings: e.EndpointSettings,
		HeaderNames:      slices.Sorted(maps.Keys(e.Headers)),
		FailingSince:     state.FailingSince,
		Posted:           state.Posted,
		GivenUp:          state.GivenUp,
		Retrying:         len(state.Retries),
		FailureRate:      failureRate(state.Attempts),
		CreatedAt:        e.Created,
	}
	v.Headers, v.Shape = nil, cmp.Or(v.Shape, client.ShapeStandard)
	v.Signature, _, v.PublicKey = e.Keys()
	v.State, v.Why = e.State(&state)
	return v, nil
}
