package endpoints

import (
	"context"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// wakeTime bounds how long a wake is tried to be sent.
const wakeTime = time.Second

// setOwners sets which users have endpoints.
func (p *Poster) setOwners(users map[string]bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.owners = users
}

// Grown has the workers woken that post to the endpoints of users whose feeds have grown. It does not wait. It
// forgets users without an endpoint, and those beyond models.MaxWoken: their feeds are polled anyway.
func (p *Poster) Grown(users []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, user := range users {
		if p.owners[user] && len(p.grown) < models.MaxWoken {
			p.grown[user] = true
		}
	}
	if len(p.grown) > 0 {
		select {
		case p.send <- struct{}{}:
		default:
		}
	}
}

// sendWakes sends one wake for all users that were noted since the last one, until ctx ends.
func (p *Poster) sendWakes(ctx context.Context) {
	for {
		select {
		case <-p.send:
		case <-ctx.Done():
			return
		}
		p.mu.Lock()
		users := make([]string, 0, len(p.grown))
		for user := range p.grown {
			users = append(users, user)
		}
		clear(p.grown)
		p.mu.Unlock()
		if len(users) == 0 {
			continue
		}
		sending, cancel := context.WithTimeout(ctx, wakeTime)
		if err := p.broker.Wake(sending, users...); err != nil {
			p.log.Debug("cannot send a wake; feeds are polled", "err", err)
		}
		cancel()
	}
}

// woken has the feeds of users read to whose endpoints this process posts.
func (p *Poster) woken(users []string) {
	for _, user := range users {
		p.tails.Wake(user)
	}
}
