package feed

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// maxSuppressions is how many additions to suppression lists an entry has at most.
const maxSuppressions = 1000

// Suppression is an addition to a suppression list as users see it.
type Suppression struct {
	ID       string                   `json:"id"`              // the same if it is published again
	Email    string                   `json:"email,omitempty"` // empty: it was erased
	Reason   models.SuppressionReason `json:"reason"`
	Category string                   `json:"category,omitempty"` // kind of mail; empty: all
	Origin   models.SuppressionOrigin `json:"origin"`
	Log      models.ID                `json:"log_id,omitzero"` // the mail that it is about
	At       time.Time                `json:"at"`
	Expires  time.Time                `json:"expires_at,omitzero"` // zero: never
}

// Text says what was added to everyone's list, for people.
func (s *Suppression) Text() string {
	return fmt.Sprintf("%s is on everyone's suppression list: %s.", cmp.Or(s.Email, "An erased address"), s.Reason.Words())
}

// PublishSuppressions appends additions to a suppression list to the feed of its user, or of everyone's to that of the
// installation. After an error some may be published.
func PublishSuppressions(
	ctx context.Context, store models.FeedStore, list string, added []models.FeedSuppression,
) error {
	owner := list
	if list == models.EveryonesList {
		owner = Installation
	}
	for len(added) > 0 {
		head, err := store.FeedHead(ctx, owner)
		if err != nil && !errors.Is(err, models.ErrNotFound) {
			return err
		}
		e := next(&head)
		e.Suppressions = added[:min(len(added), maxSuppressions)]
		err = store.AppendFeed(ctx, owner, e)
		if err == nil {
			added = added[len(e.Suppressions):]
		} else if !errors.Is(err, models.ErrExists) { // otherwise another caller has appended
			return err
		}
	}
	return nil
}

// ListOf returns the suppression list whose additions a feed publishes.
func ListOf(owner string) string {
	if owner == Installation {
		return models.EveryonesList
	}
	return owner
}

// describeSuppressions describes additions to a suppression list. An address that was erased is left out.
func (d *Describer) describeSuppressions(ctx context.Context, list string, found []Update, out []Described) error {
	hashes := make([]models.AddressHash, len(found))
	for i := range found {
		hashes[i] = found[i].Suppression.Hash
	}
	there, err := d.store.SuppressionsOf(ctx, list, hashes...)
	if err != nil {
		return err
	}
	emails := make(map[models.SuppressionKey]string, len(there))
	for i := range there {
		emails[there[i].SuppressionKey] = there[i].Email
	}
	for i := range found {
		u, s := &found[i], found[i].Suppression
		v := &Suppression{
			ID:       s.ID(list),
			Email:    emails[s.SuppressionKey],
			Reason:   s.Reason,
			Category: s.Category,
			Origin:   s.Origin,
			Log:      s.Log,
			At:       s.At,
			Expires:  s.Expires,
		}
		out[i] = Described{Number: u.Number, Event: u.Event, At: u.At, Suppression: v}
		if list == models.EveryonesList {
			out[i].Event, out[i].Notice = "", &models.Notice{Kind: models.SuppressionAdded, Why: v.Text()}
		}
	}
	return nil
}
