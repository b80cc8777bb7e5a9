package main

import (
	"context"
	"encoding/json"
	"net/http"
	"time"
)

// awayFor is how long a server stays away after it was missed first.
const awayFor = 3 * time.Second

// away shuts the way to a server until it was missed, and again a while later.
func away(gate func(*drill) *gate, missed func(context.Context, *drill) error) func(context.Context, *drill) error {
	return func(ctx context.Context, d *drill) error {
		g := gate(d)
		g.shut()
		d.broken()
		err := d.until(ctx, "connections are turned away", func() bool { return g.turnedAway() >= 5 })
		if err == nil {
			err = missed(ctx, d)
		}
		if err == nil {
			err = idle(ctx, awayFor)
		}
		if err == nil {
			d.missedAt = d.unanswered.Load()
			err = missed(ctx, d)
		}
		g.open()
		d.mended()
		return err
	}
}

// idle lets time pass in which something must not happen.
func idle(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// storeMissed waits until requests went unanswered since it broke.
func storeMissed(ctx context.Context, d *drill) error {
	return d.until(ctx, "the store was missed", func() bool { return d.unanswered.Load() >= d.missedAt+2 })
}

// brokerMissed waits until the API says that the broker is away, and accepted
// batches all the same.
func brokerMissed(ctx context.Context, d *drill) error {
	if err := d.until(ctx, "the broker was missed", func() bool { return d.away(ctx, "broker") }); err != nil {
		return err
	}
	accepted := len(d.all())
	return d.until(ctx, "mail is accepted without a broker", func() bool { return len(d.all()) >= accepted+5 })
}

// away reports whether the API says that a part is not there.
func (d *drill) away(ctx context.Context, part string) bool {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, d.client.base+"/readyz", nil)
	if err != nil {
		return false
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return false
	}
	defer func() { _ = resp.Body.Close() }()
	var ready struct {
		Checks map[string]string `json:"checks"`
	}
	if json.NewDecoder(resp.Body).Decode(&ready) != nil {
		return false
	}
	state, known := ready.Checks[part]
	return known && state != "ok"
}
