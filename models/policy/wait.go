package policy

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// hold returns the step of a recipient whose batch is stopped or paused. It waits for the
// next reconcile; the command that resumes the batch announces it earlier.
func (p *Policy) hold(b *models.Batch, waits *models.Wait, now time.Time) Step {
	until := now.Add(p.cfg.Recheck)
	if !b.ExpiresAt.IsZero() && now.Before(b.ExpiresAt) {
		until = models.EarlierOf(until, b.ExpiresAt)
	}
	return Step{Do: Wait, Until: until, Waits: waits}
}

// awaiting returns the step of a recipient that waits for a report of a provider until a time.
func awaiting(code models.WaitCode, provider, text string, until time.Time) Step {
	w := &models.Wait{Code: code, Text: text, Until: until, Provider: provider}
	return Step{Do: Wait, Until: until, Waits: w}
}

// closed returns the wait for providers that are all offline or blocked.
func (c *Commands) closed(options []Option, blocks []*models.Block) *models.Wait {
	w := &models.Wait{Code: models.WaitProviderOffline}
	var texts []string
	for _, op := range options {
		mode := c.Rules.Provider(op.Provider)
		i := slices.IndexFunc(blocks, func(bl *models.Block) bool { return bl.Provider == op.Provider })
		switch {
		case mode.Mode == models.ProviderOffline && mode.Why != "":
			texts = append(texts, op.Provider+" is offline ("+mode.Why+")")
		case mode.Mode == models.ProviderOffline:
			texts = append(texts, op.Provider+" is offline")
		case i >= 0:
			texts = append(texts, blockText(blocks[i]))
			w.Code, w.Block = models.WaitBlockRule, cmp.Or(w.Block, blocks[i].ID)
		}
	}
	if len(options) == 1 {
		w.Provider = options[0].Provider
	}
	w.Text = strings.Join(texts, "; ")
	return w
}

// blockText says which rule withholds mail.
func blockText(bl *models.Block) string {
	var parts []string
	add := func(name, value string) {
		if value != "" {
			parts = append(parts, name+" "+value)
		}
	}
	add("provider", bl.Provider)
	add("user", bl.User)
	add("sender", bl.Sender)
	add("recipients at", bl.Domain)
	return "withheld by a block rule (" + strings.Join(parts, ", ") + "), until an operator removes it"
}
