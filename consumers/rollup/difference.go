package rollup

import (
	"fmt"
	"maps"
	"slices"

	"github.com/safedelivr/safedelivr/models"
)

// Difference is a stored sum that differs from its recount, or a record that cannot be
// read.
type Difference struct {
	What    string         `json:"what"` // chunk, batch, recipients, feed, or the level of a sum
	User    string         `json:"user"`
	ID      string         `json:"id"` // of the chunk or batch; the begin of a sum's span
	Shown   models.Summary `json:"shown"`
	Counted models.Summary `json:"counted"`
	Damaged string         `json:"damaged,omitempty"` // why a record or a feed is wrong; then nothing was counted
}

// String returns the difference as one line of text.
func (d Difference) String() string {
	if d.Damaged != "" {
		return fmt.Sprintf("%s %s of user %s: %s", d.What, d.ID, d.User, d.Damaged)
	}
	text := fmt.Sprintf("%s %s of user %s: shown %s; counted %s",
		d.What, d.ID, d.User, d.describe(&d.Shown), d.describe(&d.Counted))
	if ahead(&d.Shown, &d.Counted) && d.What == "chunk" {
		text += fmt.Sprintf("; shown was made from %d entries and facts, but only %d are stored",
			d.Shown.Version, d.Counted.Version)
	}
	return text
}

// describe returns the states of one of the two sums, and those other parts in which the
// sums differ.
func (d *Difference) describe(s *models.Summary) string {
	text := fmt.Sprintf("accepted %d = queued %d + sent %d + delivered %d + failed %d + cancelled %d",
		s.Accepted, s.Queued, s.Sent, s.Success, s.Failed, s.Cancelled)
	part := func(name string, n, shown, counted int64) {
		if shown != counted {
			text += fmt.Sprintf(", %s %d", name, n)
		}
	}
	part("batches", s.Batches, d.Shown.Batches, d.Counted.Batches)
	part("unconfirmed", s.Unconfirmed, d.Shown.Unconfirmed, d.Counted.Unconfirmed)
	part("rerouted", s.Rerouted, d.Shown.Rerouted, d.Counted.Rerouted)
	part("possible duplicates", s.MayDouble, d.Shown.MayDouble, d.Counted.MayDouble)
	part("doubled", s.Doubled, d.Shown.Doubled, d.Counted.Doubled)
	if !maps.Equal(d.Shown.Reasons, d.Counted.Reasons) {
		text += fmt.Sprintf(", reasons %v", s.Reasons)
	}
	if !maps.Equal(d.Shown.Providers, d.Counted.Providers) {
		text += fmt.Sprintf(", providers %+v", s.Providers)
	}
	if !maps.Equal(d.Shown.Events, d.Counted.Events) {
		text += fmt.Sprintf(", events %v", s.Events)
	}
	if !slices.Equal(d.Shown.In, d.Counted.In) {
		for _, g := range s.In {
			text += fmt.Sprintf(", in %s:%s", g.Kind, g.Name)
		}
	}
	for _, g := range slices.SortedFunc(maps.Keys(s.Groups), models.Group.Compare) {
		of := Difference{Shown: groupOf(&d.Shown, g), Counted: groupOf(&d.Counted, g)}
		if !same(&of.Shown, &of.Counted) {
			text += fmt.Sprintf(", in %s:%s %s", g.Kind, g.Name, of.describe(s.Groups[g]))
		}
	}
	return text
}

// groupOf returns the sum of a group; zero if there is none.
func groupOf(s *models.Summary, g models.Group) models.Summary {
	if of := s.Groups[g]; of != nil {
		return *of
	}
	return models.Summary{}
}

// ahead reports whether a summary was made from more entries and facts than there are, so
// that some were lost.
func ahead(shown, counted *models.Summary) bool { return shown.Version > counted.Version }

// same reports whether two sums are equal in everything that users see.
func same(a, b *models.Summary) bool {
	return a.Batches == b.Batches &&
		a.Accepted == b.Accepted &&
		a.Queued == b.Queued &&
		a.Sent == b.Sent &&
		a.Success == b.Success &&
		a.Failed == b.Failed &&
		a.Cancelled == b.Cancelled &&
		a.Unconfirmed == b.Unconfirmed &&
		a.Rerouted == b.Rerouted &&
		a.MayDouble == b.MayDouble &&
		a.Doubled == b.Doubled &&
		maps.Equal(a.Reasons, b.Reasons) &&
		maps.Equal(a.Events, b.Events) &&
		maps.Equal(a.Providers, b.Providers) &&
		sameGroups(a, b)
}

// sameGroups reports whether two sums have the same groups with the same sums.
func sameGroups(a, b *models.Summary) bool {
	return a.MoreGroups == b.MoreGroups && slices.Equal(a.In, b.In) && maps.EqualFunc(a.Groups, b.Groups, same)
}
