package feed

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/codec"
)

// Installation is the owner of the feed of the installation, in place of a user.
const Installation = "installation"

// Status is the part of the published state of the installation that decides which notices come next.
type Status struct {
	Notices     int                  `json:"notices"`               // their number
	Suspended   map[string]time.Time `json:"suspended,omitempty"`   // by provider: since when
	Failover    map[string]time.Time `json:"failover,omitempty"`    // by provider: since when
	Differences int                  `json:"differences,omitempty"` // that last
	Unknown     map[string]int64     `json:"unknown,omitempty"`     // unknown outcomes, by hour and provider
	Stalled     map[string]time.Time `json:"stalled,omitempty"`     // by queue: since when
	Quotas      map[string]time.Time `json:"quotas,omitempty"`      // by user and limit: the end of the hour or day
	Complaints  map[string]time.Time `json:"complaints,omitempty"`  // by user and day: the day
	Conditions  map[string]time.Time `json:"conditions,omitempty"`  // by condition.Condition.Key: since when
	Disabled    map[string]time.Time `json:"disabled,omitempty"`    // by endpoint and since when it failed: when published
}

// disabledFor is how long it is known that the notice of a disabled endpoint was published. A worker that was killed
// publishes it again much earlier.
const disabledFor = 24 * time.Hour

// Announce appends the notices that changes returns to the feed of the installation, with the status that changes has
// set. It appends nothing if both are as before. If another caller has appended meanwhile, it calls changes again with
// the new status. So if several callers notice the same, exactly one publishes it, even if some of them stop.
func Announce(ctx context.Context, store models.FeedStore, changes func(s *Status) []models.Notice) error {
	for {
		head, err := store.FeedHead(ctx, Installation)
		if err != nil && !errors.Is(err, models.ErrNotFound) {
			return err
		}
		s := Status{
			Suspended:  map[string]time.Time{},
			Failover:   map[string]time.Time{},
			Stalled:    map[string]time.Time{},
			Unknown:    map[string]int64{},
			Quotas:     map[string]time.Time{},
			Complaints: map[string]time.Time{},
			Disabled:   map[string]time.Time{},
			Conditions: map[string]time.Time{},
		}
		if len(head.Status) > 0 {
			if err := codec.UnpackJSON(head.Status, &s); err != nil {
				return err
			}
		}
		notices := changes(&s)
		for i := range notices {
			s.Notices++
			notices[i].Number = s.Notices
		}
		status := codec.PackJSON(s)
		if len(notices) == 0 && (head.Number == 0 || bytes.Equal(status, head.Status)) {
			return nil
		}
		e := next(&head)
		e.Notices, e.Status = notices, status
		if err := store.AppendFeed(ctx, Installation, e); !errors.Is(err, models.ErrExists) {
			return err
		}
	}
}

// next returns an entry without updates that follows the newest one.
func next(head *models.FeedEntry) models.FeedEntry {
	e := models.FeedEntry{
		Number:  head.Number + 1,
		Token:   models.NewToken(),
		At:      models.LaterOf(time.Now().UTC().Truncate(time.Microsecond), head.At.Add(time.Microsecond)),
		Settled: head.Settled,
		Status:  head.Status,
	}
	if len(head.Chunks) == 0 && head.Settled == head.Number-1 { // the newest entry changes no stored state
		e.Settled = head.Number
	}
	return e
}

// EndpointIsDisabled publishes that an endpoint is disabled: for operators once, and for its user at least once. user
// is empty if the endpoint belongs to the installation.
func EndpointIsDisabled(
	ctx context.Context, store models.FeedStore, user string, e models.FailedEndpoint,
) error {
	n := models.Notice{Kind: models.EndpointDisabled, Number: 1, User: user, Since: e.Since, Endpoint: &e}
	for user != "" {
		head, err := store.FeedHead(ctx, user)
		if err != nil && !errors.Is(err, models.ErrNotFound) {
			return err
		}
		entry := next(&head)
		entry.Notices = []models.Notice{n}
		if err = store.AppendFeed(ctx, user, entry); err == nil {
			break
		}
		if !errors.Is(err, models.ErrExists) { // otherwise another caller has appended
			return err
		}
	}
	now := time.Now().UTC()
	return Announce(ctx, store, func(s *Status) []models.Notice {
		maps.DeleteFunc(s.Disabled, func(_ string, published time.Time) bool { return now.Sub(published) > disabledFor })
		key := e.ID + " " + e.Since.Format(time.RFC3339Nano)
		if _, published := s.Disabled[key]; published {
			return nil
		}
		s.Disabled[key] = now
		return []models.Notice{n}
	})
}

// NearQuota publishes that a user has used most of a limit, once in its hour or day.
func NearQuota(ctx context.Context, store models.FeedStore, n models.Notice) error {
	return Announce(ctx, store, func(s *Status) []models.Notice {
		maps.DeleteFunc(s.Quotas, func(_ string, end time.Time) bool { return end.Before(n.Since) })
		key := n.User + " " + string(n.Limit)
		if s.Quotas[key].Equal(n.Until) {
			return nil
		}
		s.Quotas[key] = n.Until
		n.Kind = models.QuotaNear
		return []models.Notice{n}
	})
}

// HighComplaints publishes a notice, once, for each day of a user on which too much mail was reported as spam. The
// day is the Since of the notice. None is before oldest, which is a day; the clocks of callers may differ by a day.
func HighComplaints(ctx context.Context, store models.FeedStore, oldest time.Time, days []models.Notice) error {
	return Announce(ctx, store, func(s *Status) (out []models.Notice) {
		maps.DeleteFunc(s.Complaints, func(_ string, day time.Time) bool { return day.Before(oldest.AddDate(0, 0, -1)) })
		for _, n := range days {
			key := n.User + " " + n.Since.Format(time.DateOnly)
			if _, published := s.Complaints[key]; !published {
				s.Complaints[key] = n.Since
				n.Kind = models.ComplaintsHigh
				out = append(out, n)
			}
		}
		return out
	})
}
