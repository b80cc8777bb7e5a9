package endpoints

import (
	"net/http"
	"time"
)

// Class is the result of a post.
type Class string

// The classes of posts.
const (
	Accepted    Class = "accepted"
	Redirect    Class = "redirect"
	ClientError Class = "client_error"
	ServerError Class = "server_error"
	NoAnswer    Class = "no_answer"
)

// Classes lists the classes.
var Classes = []Class{Accepted, Redirect, ClientError, ServerError, NoAnswer}

// class returns the class of a post that was made.
func (r *result) class() Class {
	status := r.answer.Status
	switch {
	case r.err != nil:
		return NoAnswer
	case r.ok():
		return Accepted
	case status >= http.StatusInternalServerError:
		return ServerError
	case status >= http.StatusBadRequest:
		return ClientError
	}
	return Redirect
}

// backlog is what an endpoint did not get yet.
type backlog struct {
	since   time.Time // when the oldest update of it was written; zero: there is none
	failing bool      // the newest post failed
}

// add adds an update that was written at a time.
func (b *backlog) add(at time.Time) {
	if b.since.IsZero() || at.Before(b.since) {
		b.since = at
	}
}

// noteBacklog records the backlog of an endpoint that this process posts to.
func (p *Poster) noteBacklog(key string, b backlog) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.backlogs[key] = b
}

// dropBacklog forgets the backlog of an endpoint that another process posts to.
func (p *Poster) dropBacklog(key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.backlogs, key)
}

// keepBacklogs forgets the backlogs of endpoints that are not listed any more.
func (p *Poster) keepBacklogs(listed map[string]bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for key := range p.backlogs {
		if !listed[key] {
			delete(p.backlogs, key)
		}
	}
}

// Lags returns the age of the oldest update that waits to be posted by this process: to endpoints
// that accepted their newest post, and to those that did not.
func (p *Poster) Lags(now time.Time) (active, failing time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, b := range p.backlogs {
		switch {
		case b.since.IsZero():
		case b.failing:
			failing = max(failing, now.Sub(b.since))
		default:
			active = max(active, now.Sub(b.since))
		}
	}
	return active, failing
}

// backlog returns what the endpoint did not get by the end of a round. next is when the first new
// update was written that waits; zero: none does.
func (r *round) backlog(next time.Time) backlog {
	b := backlog{since: next, failing: r.state.Failures > 0}
	for i := range r.state.Retries {
		b.add(r.state.Retries[i].Since)
	}
	return b
}
