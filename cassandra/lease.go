package cassandra

import (
	"context"
	"time"
)

// Lease implements models.Store. The server's clock ends a lease, in whole
// seconds: never before ttl, and up to two seconds later.
func (s *Store) Lease(ctx context.Context, name, holder string, ttl time.Duration) (held bool, err error) {
	err = s.call(ctx, func() (err error) {
		held, err = lease(ctx, &s.runner, "leases", name, holder, ttl)
		return err
	}, "lease %s", name)
	return held && err == nil, err
}

// lease takes, renews or gives up a lease in a table. Asking again after a
// time-out does no harm: the answer for what was applied is a renewal.
func lease(ctx context.Context, r *runner, table, name, holder string, ttl time.Duration) (bool, error) {
	if ttl <= 0 {
		_, _, err := r.cas(ctx, plain, `DELETE holder FROM `+table+` WHERE name = ? IF holder = ?`, name, holder)
		return false, err
	}
	for {
		held, row, err := r.cas(ctx, plain, `UPDATE `+table+` USING TTL ? SET holder = ? WHERE name = ? IF holder = ?`,
			seconds(ttl), holder, name, holder)
		if err != nil || held {
			return held, err
		}
		if other, _ := row["holder"].(string); other != "" {
			return false, nil
		}
		held, row, err = r.cas(ctx, plain, `UPDATE `+table+` USING TTL ? SET holder = ? WHERE name = ? IF holder = null`,
			seconds(ttl), holder, name)
		if err != nil || held {
			return held, err
		}
		if other, _ := row["holder"].(string); other != "" && other != holder {
			return false, nil
		}
		// Taken by a try whose answer was lost, or it ended just now.
	}
}
