package cluster

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/consumers/provider"
)

// Findings about providers are persisted, so that a worker that starts need not find
// them out again at the cost of mail.

const (
	// findingKind is the kind of the transient values that findings are.
	findingKind = "finding"
	// findingTTL is how long a finding is kept after the provider may be tried again.
	// The provider is then probed.
	findingTTL = 10 * time.Minute
)

// savedFinding is a stored finding about a provider.
type savedFinding struct {
	provider.Finding
	At time.Time `json:"at"`
}

// persisted holds the findings that this member wrote last, by provider.
type persisted map[string]savedFinding

// findingName returns the name of this member's stored finding about a provider. No
// other member writes there.
func (c *Cluster) findingName(name string) string { return name + " " + c.Name() }

// persist writes the findings that changed since they were last written.
func (c *Cluster) persist(ctx context.Context, written persisted) error {
	now, findings := time.Now().UTC(), c.providers.Findings()
	for _, p := range c.providers.All() {
		last, wrote := written[p.Name]
		found, any := findings[p.Name]
		var err error
		switch {
		case !any && wrote:
			err = c.store.PutTransient(ctx, findingKind, c.findingName(p.Name), nil, 0)
			delete(written, p.Name)
		case any && (!wrote || changed(&last, &found, now)):
			saved := savedFinding{found, now}
			var raw []byte
			if raw, err = json.Marshal(saved); err == nil {
				err = c.store.PutTransient(ctx, findingKind, c.findingName(p.Name), raw, found.Longest()+findingTTL)
			}
			written[p.Name] = saved
		}
		if err != nil {
			delete(written, p.Name)
			return err
		}
	}
	return nil
}

// changed reports whether a finding differs from the one that was written, or lasts
// longer.
func changed(last *savedFinding, now *provider.Finding, at time.Time) bool {
	longer := func(left, before time.Duration) bool { return left > max(0, before-at.Sub(last.At))+time.Second }
	if now.State != last.State || now.Source != last.Source || now.Probe != last.Probe ||
		now.Most != last.Most || longer(now.MostLeft, last.MostLeft) ||
		longer(now.Left, last.Left) || len(now.Senders) != len(last.Senders) {
		return true
	}
	for domain, left := range now.Senders {
		if before, ok := last.Senders[domain]; !ok || longer(left, before) {
			return true
		}
	}
	return false
}

// Restore merges the findings of earlier workers, for as long as they are still valid.
func (c *Cluster) Restore(ctx context.Context) error {
	saved, err := c.store.Transients(ctx, findingKind)
	now := time.Now()
	for key, raw := range saved {
		var s savedFinding
		name, worker, _ := strings.Cut(key, " ")
		p := c.providers.Get(name)
		if p == nil || json.Unmarshal(raw, &s) != nil {
			continue
		}
		gone := max(0, now.Sub(s.At)) // never negative, if clocks differ
		s.Left, s.MostLeft = max(0, s.Left-gone), max(0, s.MostLeft-gone)
		for domain, left := range s.Senders {
			s.Senders[domain] = left - gone
		}
		p.Health.Restore(worker, &s.Finding)
	}
	return err
}
