package dashboard

import (
	"context"
	"math"
	"strconv"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/service"
)

// The providers are looked at once a second, for all pages and users, so
// that a page that opens knows the last minutes.
const (
	sampleEvery = time.Second
	sampleKeep  = 180 // samples per provider
)

// sample is what a provider had done at a moment.
type sample struct {
	at       time.Time
	accepted int64
	rate     float64 // recipients accepted per second
}

// tracker remembers the last minutes of every provider.
type tracker struct {
	service *service.Service

	mu        sync.Mutex
	providers []service.Provider
	err       error
	history   map[string][]sample
}

// run samples until ctx ends.
func (t *tracker) run(ctx context.Context) {
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	for {
		t.sample(ctx, time.Now())
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (t *tracker) sample(ctx context.Context, now time.Time) {
	providers, err := t.service.Providers(ctx, service.Caller{Operator: true})
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err = err; err != nil {
		return
	}
	t.providers = providers
	for i := range providers {
		w := providers[i].Worker
		if w == nil {
			continue
		}
		h := t.history[providers[i].Name]
		if n := len(h); n > 0 && w.Accepted < h[n-1].accepted {
			h = nil // a worker has left, and took its counters along
		}
		if h = append(h, sample{at: now, accepted: w.Accepted, rate: providers[i].RateUsed}); len(h) > sampleKeep {
			h = h[len(h)-sampleKeep:]
		}
		t.history[providers[i].Name] = h
	}
}

// providerNow is a provider and what flows through it.
type providerNow struct {
	service.Provider
	Info ProviderInfo
	Rate float64 // recipients per second, over the last seconds
	Hue  int     // of its colour, from 1

	// Hook is the address to paste at the provider; Unheard says that no
	// verified post has come from there, although mail was taken a while ago.
	Hook    string
	Unheard bool
}

// unheardAfter is how long ago a provider must have taken mail before the want
// of any post means something.
const unheardAfter = time.Minute

// unheard reports whether a provider should have posted by now and never did.
func unheard(a *service.Provider, info *ProviderInfo, h []sample) bool {
	if !info.Webhooks || !a.LastWebhook.IsZero() {
		return false
	}
	for i := range h {
		if h[i].accepted > 0 {
			return h[len(h)-1].at.Sub(h[i].at) >= unheardAfter
		}
	}
	return false
}

// UsedShare is how much of the provider's rate is used, in percent; 0 where it
// has no limit.
func (a *providerNow) UsedShare() int {
	if a.Provider.Rate <= 0 {
		return 0
	}
	return min(100, int(100*a.Rate/a.Provider.Rate+.5))
}

// Answers is how long calls usually take; Reported is how soon nine of ten mails
// are delivered or otherwise reported on. 0: not known.
func (a *providerNow) Answers() time.Duration {
	return time.Duration(a.AnswerMS * float64(time.Millisecond))
}

func (a *providerNow) Reported() time.Duration {
	return time.Duration(a.ReportedMS * float64(time.Millisecond))
}

// now returns all providers as they were seen last.
func (d *Dashboard) providersNow() ([]providerNow, error) {
	t := d.tracker
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err != nil {
		return nil, t.err
	}
	out := make([]providerNow, len(t.providers))
	for i := range t.providers {
		a := t.providers[i]
		h := t.history[a.Name]
		out[i] = providerNow{
			Provider: a,
			Info:     d.info(a.Name),
			Rate:     a.RateUsed,
			Hue:      d.hue(a.Name),
			Hook:     d.public.String() + "/webhooks/" + a.Name,
		}
		out[i].Unheard = unheard(&a, &out[i].Info, h)
	}
	return out, nil
}

// flow returns the mails accepted per second by each provider, over the last
// minutes.
func (d *Dashboard) flow(names []string) chart {
	t := d.tracker
	t.mu.Lock()
	defer t.mu.Unlock()
	c := chart{Kind: "area", X: []float64{}, Unit: "per second"}
	var times []time.Time
	for _, h := range t.history {
		if len(h) > len(times) {
			times = times[:0]
			for _, s := range h {
				times = append(times, s.at)
			}
		}
	}
	for _, at := range times {
		c.X = append(c.X, float64(at.UnixMilli())/1000)
	}
	for _, name := range names {
		h := t.history[name]
		values := make([]float64, len(c.X))
		for i := range h {
			at := i + len(c.X) - len(h) // histories end together
			if at >= 0 {
				values[at] = math.Round(h[i].rate)
			}
		}
		c.Series = append(c.Series, series{Label: name, Color: d.colour(name), Values: values})
	}
	return c
}

// info is what is known of a provider beyond its health.
func (d *Dashboard) info(name string) ProviderInfo {
	for _, a := range d.configured {
		if a.Name == name {
			return a
		}
	}
	return ProviderInfo{Name: name, Title: name}
}

const hues = 6 // of the style sheet

// hue numbers the colour of a provider.
func (d *Dashboard) hue(name string) int {
	for i, a := range d.configured {
		if a.Name == name {
			return i%hues + 1
		}
	}
	return hues
}

func (d *Dashboard) colour(name string) string { return "--p" + strconv.Itoa(d.hue(name)) }
