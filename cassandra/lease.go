package cassandra

import (
	"context"
	"time"
)

// Lease implements models.Store. The servers' clocks end a lease, in whole seconds:
// never before ttl, and up to two seconds later.
func (s *Store) Lease(ctx context.Context, name, holder string, ttl time.Duration) (held bool, err error) {
	err = s.call(ctx, func() (err error) {
		held, err = lease(ctx, &s.runner, leaseID{"leases", name, holder}, ttl)
		return err
	}, "lease %s", name)
	return held && err == nil, err
}

// leaseID names a lease, the table that it is in, and who wants it.
type leaseID struct{ table, name, holder string }

// lease takes, renews or gives up a lease in a table. It may be repeated after a
// time-out: if the first try was applied, the repeat renews the lease.
func lease(ctx context.Context, r *runner, id leaseID, ttl time.Duration) (bool, error) {
	if ttl <= 0 {
		_, _, err := r.cas(ctx, plain, `DELETE holder FROM `+id.table+` WHERE name = ? IF holder = ?`, id.name, id.holder)
		return false, err
	}
	for {
		held, row, err := r.cas(ctx, plain, `UPDATE `+id.table+` USING TTL ? SET holder = ? WHERE name = ? IF holder = ?`,
			seconds(ttl), id.holder, id.name, id.holder)
		if err != nil || held {
			return held, err
		}
		if other, _ := row["holder"].(string); other != "" {
			return false, nil
		}
		held, row, err = r.cas(ctx, plain, `UPDATE `+id.table+` USING TTL ? SET holder = ? WHERE name = ? IF holder = null`,
			seconds(ttl), id.holder, id.name)
		if err != nil || held {
			return held, err
		}
		if other, _ := row["holder"].(string); other != "" && other != id.holder {
			return false, nil
		}
		// An earlier try whose answer was lost took it, or it has just ended.
	}
}
