package lists

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/drift"
)

const (
	// maxShown is how many entries are stored of a provider that we do not suppress.
	maxShown = 10_000
	// maxAddress is the length of the longest address that is taken.
	maxAddress = 320
)

// taken is the result of a page.
type taken struct {
	add    []models.Suppression // entries of everyone's list to be stored
	joined int                  // how many of them are new
	show   []drift.Entry        // what we do not suppress
	keys   []string             // of all entries of the page
}

// take stores the results of the entries of a page. It may be repeated. If again is set, entries
// that are stored already are stored again.
func (g *reading) take(
	ctx context.Context, list string, pass *drift.Pass, entries []models.Listed, again bool,
) error {
	entries = slices.DeleteFunc(entries, func(e models.Listed) bool {
		return len(e.Email) > maxAddress || !strings.Contains(e.Email, "@")
	})
	if len(entries) == 0 {
		return nil
	}
	hashes := make([]models.AddressHash, len(entries))
	for i := range entries {
		hashes[i] = models.HashAddress(entries[i].Email)
	}
	there, err := g.Store.SuppressionsOf(ctx, models.EveryonesList, hashes...)
	if err != nil {
		return err
	}
	known := map[models.AddressHash][]models.Suppression{}
	for _, s := range there {
		known[s.Hash] = append(known[s.Hash], s)
	}
	var t taken
	for i := range entries {
		g.takeEntry(&t, list, &entries[i], known, again)
	}
	if len(t.add) > 0 {
		if err := g.Suppressions.AddBeside(ctx, models.EveryonesList, there, t.add...); err != nil {
			return err
		}
	}
	if t.joined > 0 {
		g.Observer.ListsJoined(g.provider, t.joined)
		g.log.Info("addresses on a provider's suppression list are suppressed here, too",
			"provider", g.provider, "list", list, "addresses", t.joined)
	}
	return g.show(ctx, pass, &t)
}

// takeEntry decides about an entry, beside the known entries of everyone's list.
func (g *reading) takeEntry(
	t *taken, list string, e *models.Listed, known map[models.AddressHash][]models.Suppression, again bool,
) {
	now := time.Now()
	shown := drift.Entry{
		Email:    strings.ToLower(e.Email),
		Provider: g.provider,
		List:     list,
		Category: e.Category,
		Reason:   e.Reason,
		Text:     e.Text,
		At:       e.At.UTC(),
	}
	t.keys = append(t.keys, shown.Key())
	s := models.NewSuppression(e.Email, e.Reason, models.FromProvider, e.At)
	s.Category, s.By, s.Why = e.Category, g.provider, list
	if e.Text != "" {
		s.Why = models.Clip(list + ": " + e.Text)
	}
	mine := known[s.Hash]
	i := slices.IndexFunc(mine, func(o models.Suppression) bool { return o.SuppressionKey == s.SuppressionKey })
	switch {
	case e.Reason == "":
	case i < 0, !mine[i].InEffect(now) && mine[i].At.Before(s.At):
		t.add = append(t.add, s)
		t.joined++
		known[s.Hash] = append(mine, s)
		return
	case again && mine[i].InEffect(now) && mine[i].Email != "":
		t.add = append(t.add, mine[i])
	}
	if models.Strongest(mine, e.Category, now) == nil {
		t.show = append(t.show, shown)
	}
}

// show stores the entries that we do not suppress, and removes those of the page that we do.
func (g *reading) show(ctx context.Context, pass *drift.Pass, t *taken) error {
	slices.Sort(t.keys)
	there, err := drift.EntriesOf(ctx, g.Store, slices.Compact(t.keys))
	if err != nil {
		return err
	}
	var put []drift.Stored
	wanted := map[string]bool{}
	for _, e := range t.show {
		key := e.Key()
		old, found := there[key]
		e.Seen = pass.To
		switch {
		case wanted[key], !found && g.state.Shown >= maxShown:
			continue
		case !found:
			g.state.Shown++
		case old.Text == e.Text && old.Reason == e.Reason && old.At.Equal(e.At) && !old.Seen.Before(e.Seen):
			wanted[key] = true
			continue
		}
		wanted[key] = true
		put = append(put, drift.Stored{Entry: e, Version: old.Version + 1})
	}
	var drop []drift.Stored
	for key, old := range there {
		if !wanted[key] {
			drop = append(drop, old)
			g.state.Shown--
		}
	}
	if err := drift.Put(ctx, g.Store, put); err != nil {
		return err
	}
	return drift.Remove(ctx, g.Store, drop)
}
