package sqlite

import (
	"context"
	"database/sql/driver"
	"fmt"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// replayKeep is for how much longer than posts replay guards are kept: 48 hours
// after a post that was as old as can be when it was recorded, and a day more,
// because guards are dropped by the day.
const replayKeep = (48 + 24) * time.Hour

// GuardReplays implements models.Store.
func (s *Store) GuardReplays(ctx context.Context, ms ...models.ReplayMark) ([]string, error) {
	if len(ms) == 0 {
		return nil, nil
	}
	size := 0
	for i := range ms {
		size += len(ms[i].Key) + len(ms[i].Digest) + 50
	}
	today, firsts := dayOf(s.now()), make([]string, len(ms))
	err := s.write(ctx, size, func(c *conn) error {
		for i := range ms {
			m := &ms[i]
			_, err := c.exec(`INSERT INTO replay_guards (key, post, digest, day) VALUES (?, ?, ?, ?)
				ON CONFLICT DO UPDATE SET day = max(day, excluded.day), post = min(post, excluded.post),
					digest = iif(excluded.post < post, excluded.digest, digest)
				WHERE excluded.post < post OR excluded.day > day`,
				m.Key, m.Entry, m.Digest, max(dayOf(m.Entry.Time()), today))
			if err != nil {
				return err
			}
		}
		for i := range ms {
			err := c.query(`SELECT digest FROM replay_guards WHERE key = ?`, func(row []driver.Value) error {
				firsts[i] = row[0].(string)
				return nil
			}, ms[i].Key)
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("guard %d posts against replay, the first of entry %s: %w", len(ms), ms[0].Entry, err)
	}
	return firsts, nil
}

func dayOf(t time.Time) int64 { return t.Unix() / int64(24*time.Hour/time.Second) }
