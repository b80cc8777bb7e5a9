package models

import (
	"cmp"
	"maps"
	"slices"
	"strings"
)

// A GroupKind is what batches are grouped by in the sums.
type GroupKind string

// The kinds of groups.
const (
	ByCategory GroupKind = "category"
	BySender   GroupKind = "sender" // by the domain of the sender
	ByTemplate GroupKind = "template"
	ByTag      GroupKind = "tag"
)

// GroupKinds lists all kinds, in the order in which groups are kept.
var GroupKinds = []GroupKind{ByCategory, BySender, ByTemplate, ByTag}

// Valid reports whether k is a kind.
func (k GroupKind) Valid() bool { return slices.Contains(GroupKinds, k) }

// Words returns the kind for people.
func (k GroupKind) Words() string {
	switch k {
	case ByCategory:
		return "Category"
	case BySender:
		return "Sender's domain"
	case ByTemplate:
		return "Template"
	case ByTag:
		return "Tag"
	}
	return string(k)
}

// A Group is what some batches have in common.
type Group struct {
	Kind GroupKind
	Name string
}

// MarshalText implements encoding.TextMarshaler.
func (g Group) MarshalText() ([]byte, error) { return []byte(string(g.Kind) + ":" + g.Name), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (g *Group) UnmarshalText(text []byte) error {
	kind, name, ok := strings.Cut(string(text), ":")
	if !ok {
		return ErrInvalid
	}
	g.Kind, g.Name = GroupKind(kind), name
	return nil
}

// Compare orders groups: those of which users have few kinds come first.
func (g Group) Compare(o Group) int {
	return cmp.Or(
		cmp.Compare(slices.Index(GroupKinds, g.Kind), slices.Index(GroupKinds, o.Kind)),
		cmp.Compare(g.Name, o.Name))
}

// GroupsOf returns the groups of a batch.
func GroupsOf(b *Batch) []Group {
	var out []Group
	add := func(kind GroupKind, name string) {
		if g := (Group{kind, name}); name != "" && !slices.Contains(out, g) {
			out = append(out, g)
		}
	}
	add(ByCategory, b.Category)
	add(BySender, b.Content.From.Email[strings.LastIndexByte(b.Content.From.Email, '@')+1:])
	if b.Template != nil {
		add(ByTemplate, b.Template.Name)
	}
	for _, tag := range b.Content.Tags {
		add(ByTag, tag)
	}
	return out
}

// MaxGroups is how many groups a sum counts apart.
const MaxGroups = 100

// addGroups adds the groups of o to s, and o itself to the groups that its logs are in. Of more
// than MaxGroups it keeps the first in their order. A group that is among the first of a sum is
// among the first of all its parts that have it, so a count that is kept is complete, in
// whatever order parts were added.
func (s *Summary) addGroups(o *Summary) {
	if len(o.Groups) == 0 && len(o.In) == 0 {
		return
	}
	if s.Groups == nil {
		s.Groups = map[Group]*Summary{}
	}
	add := func(g Group, counts *Summary) {
		if s.Groups[g] == nil {
			s.Groups[g] = &Summary{}
		}
		s.Groups[g].addCounts(counts)
	}
	for _, g := range o.In {
		add(g, o)
	}
	for g, counts := range o.Groups {
		add(g, counts)
	}
	s.MoreGroups = s.MoreGroups || o.MoreGroups
	if len(s.Groups) > MaxGroups {
		s.MoreGroups = true
		for _, g := range slices.SortedFunc(maps.Keys(s.Groups), Group.Compare)[MaxGroups:] {
			delete(s.Groups, g)
		}
	}
}
