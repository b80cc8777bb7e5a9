package models

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"
)

// Summary has the counts of the logs of a chunk, of a batch, or of a span of a user's
// time. It is the result of counting: it is replaced, never incremented.
// Accepted = Queued + Sent + Success + Failed + Cancelled.
type Summary struct {
	// Version is the number of entries and facts that were counted. Repairs is the number of recounts at that version.
	// Both only grow. A summary never replaces one with a higher FullVersion.
	Version int64 `json:"v"`
	Repairs int64 `json:"rp,omitempty"`

	Batches   int64 `json:"b,omitempty"` // whose first chunk is counted
	Accepted  int64 `json:"n"`
	Queued    int64 `json:"q,omitempty"`
	Sent      int64 `json:"st,omitempty"`
	Success   int64 `json:"s,omitempty"`
	Failed    int64 `json:"f,omitempty"`
	Cancelled int64 `json:"c,omitempty"`

	Untried     int64 `json:"u,omitempty"`  // queued without an attempt
	Awaited     int64 `json:"aw,omitempty"` // queued, with an unknown outcome or a running call
	Unconfirmed int64 `json:"uc,omitempty"` // successes through providers without events
	Rerouted    int64 `json:"rr,omitempty"` // sent through more than one provider; see ByProvider
	MayDouble   int64 `json:"md,omitempty"` // sent again while an outcome was unknown
	Doubled     int64 `json:"db,omitempty"` // known to be delivered more than once

	Reasons   map[Reason]int64          `json:"re,omitempty"` // of failed logs
	Events    map[EventKind]int64       `json:"e,omitempty"`  // logs with an event of a kind that feeds publish
	Providers map[string]ProviderCounts `json:"a,omitempty"`

	In         []Group            `json:"in,omitempty"` // of a chunk: the groups that all its logs are in
	Groups     map[Group]*Summary `json:"g,omitempty"`  // sums of the logs in a group; of a chunk: of other groups
	MoreGroups bool               `json:"mg,omitempty"` // there are more groups
}

// ProviderCounts has the counts of logs at one provider, by their newest try there.
type ProviderCounts struct {
	Tried     int64 `json:"t,omitempty"` // logs with an attempt there
	Delivered int64 `json:"d,omitempty"`
	Refused   int64 `json:"r,omitempty"` // not accepted
	Failed    int64 `json:"f,omitempty"` // accepted, then reported as failed
	Waiting   int64 `json:"w,omitempty"` // accepted; no final event yet
	Pending   int64 `json:"p,omitempty"` // no answer yet: the call runs, or its worker stopped
	Unknown   int64 `json:"u,omitempty"` // unknown whether it was accepted
}

// Touched counts the logs that have an attempt or are finished.
func (s *Summary) Touched() int64 { return s.Accepted - s.Untried }

// Of returns the number of logs in a state.
func (s *Summary) Of(state State) int64 {
	switch state {
	case Queued:
		return s.Queued
	case Sent:
		return s.Sent
	case Success:
		return s.Success
	case Failed:
		return s.Failed
	case Cancelled:
		return s.Cancelled
	}
	return 0
}

// Open counts the logs that are queued or sent.
func (s *Summary) Open() int64 { return s.Queued + s.Sent }

// Balanced reports whether the counts add up.
func (s *Summary) Balanced() bool {
	return s.Accepted == s.Open()+s.Success+s.Failed+s.Cancelled
}

// repairBits is the number of bits of Repairs in a full version.
const repairBits = 16

// FullVersion returns a number that orders summaries of the same logs: by Version, then by Repairs. It is not negative.
func (s *Summary) FullVersion() int64 {
	return max(s.Version, 0)<<repairBits | min(max(s.Repairs, 0), 1<<repairBits-1)
}

// Unknown returns the number of unknown outcomes at all providers.
func (s *Summary) Unknown() (n int64) {
	for _, a := range s.Providers {
		n += a.Unknown
	}
	return n
}

// Add adds the counts and versions of o to s.
func (s *Summary) Add(o *Summary) {
	s.Version += o.Version
	s.Repairs += o.Repairs
	s.addCounts(o)
	s.addGroups(o)
}

// addCounts adds the counts of all logs of o to s.
func (s *Summary) addCounts(o *Summary) {
	s.Batches += o.Batches
	s.Accepted += o.Accepted
	s.Queued += o.Queued
	s.Sent += o.Sent
	s.Success += o.Success
	s.Failed += o.Failed
	s.Cancelled += o.Cancelled
	s.Untried += o.Untried
	s.Awaited += o.Awaited
	s.Unconfirmed += o.Unconfirmed
	s.Rerouted += o.Rerouted
	s.MayDouble += o.MayDouble
	s.Doubled += o.Doubled
	for k, n := range o.Reasons {
		if s.Reasons == nil {
			s.Reasons = map[Reason]int64{}
		}
		s.Reasons[k] += n
	}
	for k, n := range o.Events {
		if s.Events == nil {
			s.Events = map[EventKind]int64{}
		}
		s.Events[k] += n
	}
	for k, n := range o.Providers {
		if s.Providers == nil {
			s.Providers = map[string]ProviderCounts{}
		}
		a := s.Providers[k]
		a.Tried += n.Tried
		a.Delivered += n.Delivered
		a.Refused += n.Refused
		a.Failed += n.Failed
		a.Waiting += n.Waiting
		a.Pending += n.Pending
		a.Unknown += n.Unknown
		s.Providers[k] = a
	}
}

// ChunkSummary is the stored summary of one chunk.
type ChunkSummary struct {
	User    string
	Chunk   ID
	Summary Summary
}

// Level is a level of the tree of sums. A node is the sum of its children; the leaves are chunk summaries.
type Level string

// The levels. A second's children are the chunk summaries of its batches.
const (
	Second Level = "second"
	Minute Level = "minute"
	Hour   Level = "hour"
	Day    Level = "day"
)

// Levels lists the levels from the leaves up.
var Levels = [...]Level{Second, Minute, Hour, Day}

// Length returns the length of a span of this level, or 0 for an unknown level.
func (l Level) Length() time.Duration {
	switch l {
	case Second:
		return time.Second
	case Minute:
		return time.Minute
	case Hour:
		return time.Hour
	case Day:
		return 24 * time.Hour
	}
	return 0
}

// Child returns the level below, or "" below Second.
func (l Level) Child() Level {
	switch l {
	case Minute:
		return Second
	case Hour:
		return Minute
	case Day:
		return Hour
	case Second:
	}
	return ""
}

// Span is one node of a user's tree of sums. Spans are aligned to UTC.
type Span struct {
	User  string
	Level Level
	Start time.Time
}

// DayOf returns the beginning of the UTC day that contains t.
func DayOf(t time.Time) time.Time { return t.UTC().Truncate(24 * time.Hour) }

// SpanOf returns the span of a level that contains t.
func SpanOf(user string, l Level, t time.Time) Span {
	return Span{User: user, Level: l, Start: t.UTC().Truncate(l.Length())}
}

// Node is a stored sum.
type Node struct {
	Span    Span
	Summary Summary
}

// A GroupKind is what logs are grouped by in the sums.
type GroupKind string

// The kinds of groups. All logs of a batch are in the same groups, except those of ByProvider. There a log is in the
// group of the provider that decided its state, or else of the newest one that was tried. Events count for the provider
// that reported them. Rerouted are the logs that were tried there and are in the group of another provider, so that
// those tried are Accepted and Rerouted.
const (
	ByProvider GroupKind = "provider"
	byCategory GroupKind = "category"
	BySender   GroupKind = "sender" // by the domain of the sender
	byTemplate GroupKind = "template"
	ByTag      GroupKind = "tag"
)

// GroupKinds lists all kinds, in the order in which groups are kept.
var GroupKinds = []GroupKind{ByProvider, byCategory, BySender, byTemplate, ByTag}

// Valid reports whether k is a kind.
func (k GroupKind) Valid() bool { return slices.Contains(GroupKinds, k) }

var groupWords = map[GroupKind]string{
	ByProvider: "Provider",
	byCategory: "Category",
	BySender:   "Sender's domain",
	byTemplate: "Template",
	ByTag:      "Tag",
}

// Words returns the kind for people.
func (k GroupKind) Words() string { return cmp.Or(groupWords[k], string(k)) }

// A Group is what some logs have in common.
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

// Compare orders groups: those with few names come first.
func (g Group) Compare(o Group) int {
	return cmp.Or(
		cmp.Compare(slices.Index(GroupKinds, g.Kind), slices.Index(GroupKinds, o.Kind)),
		cmp.Compare(g.Name, o.Name))
}

// SetGroups sets the groups of a batch by its other fields.
func (b *Batch) SetGroups() {
	b.Groups = nil
	add := func(kind GroupKind, name string) {
		if g := (Group{kind, name}); name != "" && !slices.Contains(b.Groups, g) {
			b.Groups = append(b.Groups, g)
		}
	}
	add(byCategory, b.Category)
	add(BySender, b.Content.From.Email[strings.LastIndexByte(b.Content.From.Email, '@')+1:])
	if b.Template != nil {
		add(byTemplate, b.Template.Name)
	}
	for _, tag := range b.Content.Tags {
		add(ByTag, tag)
	}
}

// maxGroups is how many groups a sum counts apart.
const maxGroups = 100

// addGroups adds the groups of o to s, and o itself to the groups that its logs are in. Of more than maxGroups it keeps
// the first in their order. A group that is among the first of a sum is among the first of all its parts that have it.
// So a count that is kept is complete, with any order of the additions.
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
	if len(s.Groups) > maxGroups {
		s.MoreGroups = true
		for _, g := range slices.SortedFunc(maps.Keys(s.Groups), Group.Compare)[maxGroups:] {
			delete(s.Groups, g)
		}
	}
}
