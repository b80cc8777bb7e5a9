package events

import (
	"context"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/softbounce"
)

// softBounce reports whether an event says that a mail was not delivered for a reason that may
// pass, and that may be one of the address. A guess does not.
func softBounce(ev *models.Event) bool {
	if ev.Guess || ev.Kind != models.Bounced && ev.Kind != models.Blocked {
		return false
	}
	switch ev.Reason { // all others are final, or about the mail, the sender or the account
	case models.MailboxFull, models.DeliveryTimeout, models.DNSOrConnect, models.BounceUnknown:
		return true
	}
	return false
}

// softBounces collects soft bounces by user and address.
type softBounces struct {
	mu     sync.Mutex
	byUser map[string]map[models.AddressHash][]softbounce.Bounce
}

func (s *softBounces) add(user, address string, log models.ID, ev *models.Event) {
	h := models.HashAddress(address)
	b := softbounce.Bounce{
		Log:      log,
		At:       ev.At.UTC().Truncate(time.Millisecond),
		Provider: ev.Provider,
		Reason:   ev.Reason,
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byUser == nil {
		s.byUser = map[string]map[models.AddressHash][]softbounce.Bounce{}
	}
	if s.byUser[user] == nil {
		s.byUser[user] = map[models.AddressHash][]softbounce.Bounce{}
	}
	s.byUser[user][h] = append(s.byUser[user][h], b)
}

// noteSoftBounces adds soft bounces to the records of their addresses.
func (s *suppressor) noteSoftBounces(ctx context.Context, soft *softBounces) error {
	for user, bounces := range soft.byUser {
		if err := softbounce.Note(ctx, s.store, user, s.soft, bounces); err != nil {
			return err
		}
	}
	return nil
}
