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

// Standing is what the feed of the installation has told, as far as it decides what is to be told
// next.
type Standing struct {
	Notices     int                  `json:"notices"`               // their number
	Suspended   map[string]time.Time `json:"suspended,omitempty"`   // by provider: since when
	Failover    map[string]time.Time `json:"failover,omitempty"`    // by provider: since when
	Differences int                  `json:"differences,omitempty"` // that last
	Unknown     map[string]int64     `json:"unknown,omitempty"`     // unknown outcomes, by hour and provider
	Stalled     map[string]time.Time `json:"stalled,omitempty"`     // by queue: since when
	Quotas      map[string]time.Time `json:"quotas,omitempty"`      // by user and limit: the end of the hour or day
	Complaints  map[string]time.Time `json:"complaints,omitempty"`  // by user and day: the day
	Conditions  map[string]time.Time `json:"conditions,omitempty"`  // by condition.Condition.Key: since when
	Disabled    map[string]time.Time `json:"disabled,omitempty"`    // by endpoint and since when it failed: when told
}

// disabledFor is how long it is known that a disabled endpoint was told. A worker that was killed tells it again much
// earlier.
const disabledFor = 24 * time.Hour

// Announce appends to the feed of the installation what news returns, and the standing as news
// has changed it. It appends nothing if there is neither. If another caller has appended
// meanwhile, news is called again with the new standing. So of all callers who notice the same,
// one tells it, whichever of them stops between any two steps.
func Announce(ctx context.Context, store models.FeedStore, news func(s *Standing) []models.Notice) error {
	for {
		head, err := store.FeedHead(ctx, Installation)
		if err != nil && !errors.Is(err, models.ErrNotFound) {
			return err
		}
		s := Standing{
			Suspended:  map[string]time.Time{},
			Failover:   map[string]time.Time{},
			Stalled:    map[string]time.Time{},
			Unknown:    map[string]int64{},
			Quotas:     map[string]time.Time{},
			Complaints: map[string]time.Time{},
			Disabled:   map[string]time.Time{},
			Conditions: map[string]time.Time{},
		}
		if len(head.Standing) > 0 {
			if err := codec.UnpackJSON(head.Standing, &s); err != nil {
				return err
			}
		}
		notices := news(&s)
		for i := range notices {
			s.Notices++
			notices[i].Number = s.Notices
		}
		standing := codec.PackJSON(s)
		if len(notices) == 0 && (head.Number == 0 || bytes.Equal(standing, head.Standing)) {
			return nil
		}
		e := next(&head)
		e.Notices, e.Standing = notices, standing
		if err := store.AppendFeed(ctx, Installation, e); !errors.Is(err, models.ErrExists) {
			return err
		}
	}
}

// next returns an entry without updates that follows the newest one.
func next(head *models.FeedEntry) models.FeedEntry {
	e := models.FeedEntry{
		Number:   head.Number + 1,
		Token:    models.NewToken(),
		At:       models.LaterOf(time.Now().UTC().Truncate(time.Microsecond), head.At.Add(time.Microsecond)),
		Settled:  head.Settled,
		Standing: head.Standing,
	}
	if len(head.Chunks) == 0 && head.Settled == head.Number-1 { // nothing is to be stored of the newest entry
		e.Settled = head.Number
	}
	return e
}

// EndpointIsDisabled tells operators that an endpoint is disabled, once, and its user, at least once. user is empty if
// it is of the installation.
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
	return Announce(ctx, store, func(s *Standing) []models.Notice {
		maps.DeleteFunc(s.Disabled, func(_ string, told time.Time) bool { return now.Sub(told) > disabledFor })
		key := e.ID + " " + e.Since.Format(time.RFC3339Nano)
		if _, told := s.Disabled[key]; told {
			return nil
		}
		s.Disabled[key] = now
		return []models.Notice{n}
	})
}

// NearQuota tells that a user has used most of a limit, once in its hour or day.
func NearQuota(ctx context.Context, store models.FeedStore, n models.Notice) error {
	return Announce(ctx, store, func(s *Standing) []models.Notice {
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

// HighComplaints tells of days of users on which too much mail was reported as spam, each of which is the Since of a
// notice, once. None is before oldest, which is a day; the clocks of callers may differ by a day.
func HighComplaints(ctx context.Context, store models.FeedStore, oldest time.Time, days []models.Notice) error {
	return Announce(ctx, store, func(s *Standing) (news []models.Notice) {
		maps.DeleteFunc(s.Complaints, func(_ string, day time.Time) bool { return day.Before(oldest.AddDate(0, 0, -1)) })
		for _, n := range days {
			key := n.User + " " + n.Since.Format(time.DateOnly)
			if _, told := s.Complaints[key]; !told {
				s.Complaints[key] = n.Since
				n.Kind = models.ComplaintsHigh
				news = append(news, n)
			}
		}
		return news
	})
}
