package endpoints

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models/endpoint"
	"github.com/safedelivr/safedelivr/service/problem"
)

// maxAgain is how many posts may wait to be taken over by the worker that makes them again.
const maxAgain = 100

// Attempts returns the newest attempts to post to an endpoint, newest first.
func (s *Endpoints) Attempts(ctx context.Context, user, id string) ([]client.EndpointAttempt, error) {
	_, state, err := s.stateOf(ctx, user, id)
	if err != nil {
		return nil, err
	}
	out := make([]client.EndpointAttempt, len(state.Attempts))
	for i := range state.Attempts {
		a := &state.Attempts[i]
		out[i] = client.EndpointAttempt{
			At: a.At, Post: a.Post, Updates: a.Updates, Type: string(a.Type), Log: a.Log, Tried: a.Tried,
			Status: a.Status, Answer: a.Answer, Why: a.Words(), TookMS: a.Took,
		}
	}
	return out, nil
}

// Retries returns when posts are made again, by the IDs of those that are among the newest hundred.
func (s *Endpoints) Retries(ctx context.Context, user, id string) (map[string]time.Time, error) {
	_, state, err := s.stateOf(ctx, user, id)
	if err != nil {
		return nil, err
	}
	out := map[string]time.Time{}
	for i := range state.Attempts {
		a := &state.Attempts[i]
		for _, r := range state.Retries {
			if r.Same(a.Part) {
				out[a.Post] = r.At
			}
		}
	}
	return out, nil
}

func (s *Endpoints) stateOf(ctx context.Context, user, id string) (endpoint.Endpoint, endpoint.State, error) {
	e, err := s.all.Get(ctx, user, id)
	if err != nil {
		return e, endpoint.State{}, err
	}
	state, _, err := endpoint.StateOf(ctx, s.store, &e)
	return e, state, problem.FromStore("read endpoint", err)
}

// failureRate returns which part of some attempts was not accepted.
func failureRate(attempts []endpoint.Attempt) float64 {
	failed := 0
	for i := range attempts {
		if !attempts[i].OK() {
			failed++
		}
	}
	return float64(failed) / float64(max(len(attempts), 1))
}

// ReplayPost makes one of the newest posts again, with the same ID.
func (s *Endpoints) ReplayPost(ctx context.Context, user, id, post string) (client.Endpoint, error) {
	return s.restart(ctx, user, id, func(e *endpoint.Endpoint, state *endpoint.State) error {
		a := state.Attempt(post)
		if a == nil {
			var f problem.Form
			f.Wrong("/post", "invalid_value", "post must be one of the newest hundred posts to this endpoint.")
			return f.Err()
		}
		if len(e.Again) >= maxAgain {
			return problem.New(problem.TooMany, "too_many_commands",
				fmt.Sprintf("%d posts wait to be made again. Repeat the request later.", maxAgain)).After(5)
		}
		e.Again = append(e.Again, a.Part)
		return nil
	})
}

// hiddenValue replaces secret values of header fields.
const hiddenValue = "(hidden)"

// Request returns the request of one of the newest posts. Its body is made anew, as for a retry: what was removed or
// erased meanwhile is not in it.
func (s *Endpoints) Request(ctx context.Context, user, id, post string) (client.EndpointRequest, error) {
	e, state, err := s.stateOf(ctx, user, id)
	if err != nil {
		return client.EndpointRequest{}, err
	}
	a := state.Attempt(post)
	if a == nil {
		return client.EndpointRequest{}, problem.NoSuch("post among the newest hundred of this endpoint")
	}
	p, _, err := s.compose.Again(ctx, &e, a.Part)
	if err != nil {
		return client.EndpointRequest{}, problem.FromStore("read updates", err)
	}
	if p == nil {
		return client.EndpointRequest{}, problem.New(problem.Gone, "updates_removed",
			"The updates of this post are not kept any more, or the endpoint does not ask for them now.")
	}
	out := client.EndpointRequest{Post: a.Post, At: a.At, Header: map[string]string{}, Body: string(p.Body)}
	if e.Format == client.FormatMail {
		return out, nil
	}
	e.Secrets = nil // a signature would let its reader post
	header, body := e.Request(a.Post, a.At, p.Body)
	out.Body = string(body)
	for name, values := range header {
		out.Header[name] = values[0]
	}
	for name := range e.Headers {
		out.Header[http.CanonicalHeaderKey(name)] = hiddenValue
	}
	return out, nil
}
