package consumers

import (
	"context"
	"encoding/json"
	"strings"
	"time"
)

// What a worker found out about a provider outlives it: a worker that begins, or begins
// again, does not find it out once more with the mail that it costs.

const (
	ailingKind = "ailing"
	// ailingKept is how long it is remembered after the provider may be tried again:
	// that is done with a probe.
	ailingKept = 10 * time.Minute
)

// ailing is what is remembered of a provider.
type ailing struct {
	Ailment
	At time.Time `json:"at"`
}

// remembered is what a worker wrote down last, by provider.
type remembered map[string]ailing

// ailingName is what a worker's finding about a provider stands under: nobody else
// writes there.
func (e *Engine) ailingName(provider string) string { return provider + " " + e.crew.name() }

// remember writes down what has changed about the providers.
func (e *Engine) remember(ctx context.Context, known remembered) error {
	now, ails := time.Now().UTC(), e.ailments()
	for _, a := range e.providers {
		was, wrote := known[a.Name]
		ail, ill := ails[a.Name]
		var err error
		switch {
		case !ill && wrote:
			err = e.store.PutTransient(ctx, ailingKind, e.ailingName(a.Name), nil, 0)
			delete(known, a.Name)
		case ill && (!wrote || news(&was, &ail, now)):
			v := ailing{ail, now}
			var raw []byte
			if raw, err = json.Marshal(v); err == nil {
				err = e.store.PutTransient(ctx, ailingKind, e.ailingName(a.Name), raw, ail.longest()+ailingKept)
			}
			known[a.Name] = v
		}
		if err != nil {
			delete(known, a.Name)
			return err
		}
	}
	return nil
}

// longest is when the last of what keeps mail away ends.
func (a *Ailment) longest() time.Duration {
	most := a.Left
	for _, left := range a.Senders {
		most = max(most, left)
	}
	return most
}

// news reports whether an ailment is another one than was written down, or lasts longer.
func news(was *ailing, is *Ailment, now time.Time) bool {
	later := func(left, before time.Duration) bool { return left > max(0, before-now.Sub(was.At))+time.Second }
	if is.State != was.State || is.Silent != was.Silent || is.Probe != was.Probe || later(is.Left, was.Left) || len(is.Senders) != len(was.Senders) {
		return true
	}
	for domain, left := range is.Senders {
		if before, ok := was.Senders[domain]; !ok || later(left, before) {
			return true
		}
	}
	return false
}

// recall takes in what earlier workers wrote down: what is left of the time that they
// left a provider alone.
func (e *Engine) recall(ctx context.Context) error {
	reports, err := e.store.Transients(ctx, ailingKind)
	now := time.Now()
	for name, raw := range reports {
		var r ailing
		provider, worker, _ := strings.Cut(name, " ")
		a := e.byName[provider]
		if a == nil || json.Unmarshal(raw, &r) != nil {
			continue
		}
		gone := max(0, now.Sub(r.At)) // not longer, whatever the clocks say
		r.Left = max(0, r.Left-gone)
		for domain, left := range r.Senders {
			r.Senders[domain] = left - gone
		}
		a.health.recall(worker, &r.Ailment)
	}
	return err
}
