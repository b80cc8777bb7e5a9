package endpoints

import (
	"net/url"
	"slices"
	"strings"

	updates "github.com/safedelivr/safedelivr/models/feed"
)

// eventGroup is a group of types of updates in the form of an endpoint, with a box that chooses all of them.
type eventGroup struct {
	Name, Title string
	Types       []updates.Type
}

// All reports whether all types of the group are chosen.
func (g eventGroup) All(chosen map[updates.Type]bool) bool {
	return !slices.ContainsFunc(g.Types, func(t updates.Type) bool { return !chosen[t] })
}

// eventNoun is a group with the first parts of the names of its types.
type eventNoun struct {
	name, title string
	nouns       []string
}

var eventNouns = []eventNoun{
	{"messages", "Messages", []string{"log"}},
	{"providers", "Providers", []string{"provider", "failover", "sending", "webhooks"}},
	{"users", "Users", []string{"quota", "complaints"}},
	{"installation", "Installation", []string{"acceptance", "queue", "check", "outcome"}},
	{"rest", "Batches, suppression lists and endpoints", []string{"batch", "suppression", "endpoint"}},
}

// eventGroups puts types into groups. A type of no group is in the last one.
func eventGroups(types []updates.Type) (out []eventGroup) {
	of := make([][]updates.Type, len(eventNouns))
	for _, t := range types {
		noun, _, _ := strings.Cut(string(t), ".")
		at := len(eventNouns) - 1
		for i := range eventNouns {
			if slices.Contains(eventNouns[i].nouns, noun) {
				at = i
			}
		}
		of[at] = append(of[at], t)
	}
	for i, list := range of {
		if len(list) > 0 {
			out = append(out, eventGroup{eventNouns[i].name, eventNouns[i].title, list})
		}
	}
	return out
}

// chosenEvents returns the types that a form chooses: one by one, and by groups. field is the name of their boxes.
func chosenEvents(form url.Values, field string, types []updates.Type) []string {
	out := slices.Clone(form[field])
	for _, g := range eventGroups(types) {
		if !slices.Contains(form[field+"-group"], g.Name) {
			continue
		}
		for _, t := range g.Types {
			if !slices.Contains(out, string(t)) {
				out = append(out, string(t))
			}
		}
	}
	return out
}
