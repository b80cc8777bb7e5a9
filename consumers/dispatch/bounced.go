package dispatch

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// The bounds of one search for earlier bounces.
const (
	bouncedHours  = 1000     // with mail of the user, the newest first
	bouncedBytes  = 16 << 20 // of fingerprints
	bouncedChunks = 100
)

// bounced returns the recipients of a chunk that a provider suppressed because their address
// bounced before, and whose address the user's own earlier mail has found not to exist. Of
// several earlier logs the newest with an outcome decides. A log that the bounded search does
// not reach confirms nothing.
func (d *Dispatcher) bounced(ctx context.Context, c *Chunk) (models.Set, error) {
	var out models.Set
	suspects := c.View.Where(func(_ int, s *models.Status) bool {
		return s.State == models.Queued && !s.Released && s.Last.Verdict.Settled() && s.Last.Reason == models.SuppressedBounce
	})
	open := map[string][]int{} // recipients by address, while it is not decided
	for r := range suspects.All() {
		if bad, ok := d.confirmedBounces.Get(c.ID.Log(r)); ok {
			if bad {
				out.Add(r)
			}
			continue
		}
		if err := d.LoadRecipients(ctx, c); errors.Is(err, models.ErrNotFound) {
			return out, nil // the addresses were removed
		} else if err != nil {
			return out, err
		}
		address := strings.ToLower(c.Recipients[r-1].Email)
		open[address] = append(open[address], r)
	}
	if len(open) == 0 {
		return out, nil
	}
	bad, err := d.earlierBounces(ctx, c, open)
	if err != nil {
		return out, err
	}
	for address, rs := range open {
		for _, r := range rs {
			d.confirmedBounces.Add(c.ID.Log(r), bad[address])
			if bad[address] {
				out.Add(r)
			}
		}
	}
	return out, nil
}

// earlierBounces returns whether each address bounced, as far as the user's mail from before
// a chunk says.
func (d *Dispatcher) earlierBounces(ctx context.Context, c *Chunk, open map[string][]int) (map[string]bool, error) {
	decided := map[string]bool{}
	hours, err := d.store.AddressIndexHours(
		ctx,
		c.Batch.User,
		c.ID.Time().Truncate(time.Hour).Add(time.Hour),
		bouncedHours,
	)
	if err != nil {
		return nil, err
	}
	size, chunks := 0, 0
	for _, hour := range hours {
		var match []models.ID
		for index, err := range d.store.AddressIndexes(ctx, c.Batch.User, hour, models.ID{}) {
			if err != nil {
				return nil, err
			}
			size += len(index.Fingerprints)
			for address := range open {
				if index.Chunk != c.ID && index.MayContain(models.Fingerprint(address)) {
					match = append(match, index.Chunk)
					break
				}
			}
		}
		slices.SortFunc(match, func(a, b models.ID) int { return bytes.Compare(b[:], a[:]) })
		for _, id := range match {
			if chunks++; chunks > bouncedChunks || len(decided) == len(open) {
				return decided, nil
			}
			if err := d.outcomesOf(ctx, id, open, decided); err != nil {
				if _, err = d.SkipCorrupt(id, err); err != nil {
					return nil, err
				}
			}
		}
		if size > bouncedBytes {
			break
		}
	}
	return decided, nil
}

// outcomesOf adds to decided what a chunk says about addresses that are not decided yet.
func (d *Dispatcher) outcomesOf(
	ctx context.Context,
	id models.ID,
	open map[string][]int,
	decided map[string]bool,
) error {
	recipients, err := d.store.Recipients(ctx, id)
	if errors.Is(err, models.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	entries, facts, err := d.store.Record(ctx, id)
	if err != nil {
		return err
	}
	hard := map[int]bool{}
	for _, ev := range models.Events(facts) {
		if ev.Kind == models.Bounced && ev.Reason == models.MailboxInvalid && !ev.Guess {
			hard[ev.Recipient] = true
		}
	}
	view := models.Resolve(len(recipients), entries, facts)
	for i := range recipients {
		address := strings.ToLower(recipients[i].Email)
		if _, known := decided[address]; known || open[address] == nil {
			continue
		}
		if hard[i+1] {
			decided[address] = true
		} else if view.Status(i+1).State == models.Success {
			decided[address] = false
		}
	}
	return nil
}
