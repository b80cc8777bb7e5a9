package kind

import (
	neturl "net/url"
	"slices"
	"strings"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers/internal/inspect"
)

// An Event is a kind of event, as the provider names it in its webhooks, in their settings and on its pages. Any of
// these may be empty. The first of Kinds is that of the event. The events of a Box may become each of them.
type Event struct {
	Name, Setting, Box string
	Kinds              []models.EventKind
}

// On returns an event.
func On(name, setting, box string, kinds ...models.EventKind) Event {
	return Event{name, setting, box, kinds}
}

// Events are all kinds of event that a provider reports.
type Events []Event

// Kind returns the kind of an event that concerns a log, or "".
func (e Events) Kind(name string) models.EventKind {
	for i := range e {
		if e[i].Name != "" && strings.EqualFold(e[i].Name, name) {
			return e[i].Kinds[0]
		}
	}
	return ""
}

// Boxes lists what to choose at the provider.
func (e Events) Boxes() (out []models.EventBox) {
	for i := range e {
		if e[i].Box != "" {
			out = append(out, models.EventBox{Label: e[i].Box, Kinds: e[i].Kinds})
		}
	}
	return out
}

// Inspect adds the finding whether all events are posted to a URL. on reports it of one, by its name in the settings.
func (e Events) Inspect(a *inspect.Account, url, wrong, todo string, on func(setting string) bool) {
	var off []string
	for i := range e {
		if e[i].Setting != "" && !on(e[i].Setting) && !slices.Contains(off, e[i].Setting) {
			off = append(off, e[i].Setting)
		}
	}
	a.Check("webhooks", "go to "+url, len(off) == 0, wrong+strings.Join(off, ", "), todo)
}

// A Hook is a webhook at a provider, and whether it has a secret beside one in its URL.
type Hook struct {
	URL    string
	Events []string // that it posts, by their names in the settings
	Secret bool
}

// InspectHooks adds the findings whether webhooks post all events to a URL, and whether each has a secret. todo and
// secret say what to do otherwise.
func (e Events) InspectHooks(a *inspect.Account, url string, hooks []Hook, todo, secret string) {
	hooks = slices.DeleteFunc(hooks, func(h Hook) bool { return !h.goesTo(url) })
	e.Inspect(a, url, "do not go to "+url+" for: ", todo, func(name string) bool {
		return slices.ContainsFunc(hooks, func(h Hook) bool { return slices.Contains(h.Events, name) })
	})
	if len(hooks) > 0 {
		bare := slices.ContainsFunc(hooks, func(h Hook) bool { return !h.Secret && h.URL == url })
		a.Check("webhooks", "have a secret", !bare, "have no secret, so that all are refused", secret)
	}
}

// goesTo reports whether a webhook posts to a URL. Its own may have a user name and a password.
func (h *Hook) goesTo(url string) bool {
	u, err := neturl.Parse(h.URL)
	if err != nil {
		return false
	}
	u.User = nil
	return u.String() == url
}
