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

// PutReport implements models.Store.
func (s *Store) PutReport(ctx context.Context, kind, name string, value []byte, ttl time.Duration) error {
	return s.call(ctx, func() error {
		if ttl <= 0 {
			return s.exec(ctx, plain, `DELETE FROM reports WHERE kind = ? AND name = ?`, kind, name)
		}
		if value == nil {
			value = []byte{}
		}
		return s.exec(ctx, plain, `INSERT INTO reports (kind, name, value) VALUES (?, ?, ?) USING TTL ?`, kind, name, value, seconds(ttl))
	}, "report %s of %s", kind, name)
}

// Reports implements models.Store.
func (s *Store) Reports(ctx context.Context, kind string) (out map[string][]byte, err error) {
	type report struct {
		name  string
		value []byte
	}
	err = s.call(ctx, func() error {
		rs, err := query(ctx, &s.runner, func(scan scanner) (r report, err error) {
			err = scan(&r.name, &r.value)
			return r, err
		}, `SELECT name, value FROM reports WHERE kind = ?`, kind)
		out = make(map[string][]byte, len(rs))
		for _, r := range rs {
			out[r.name] = append([]byte{}, r.value...)
		}
		return err
	}, "reports %s", kind)
	if err != nil {
		return nil, err
	}
	return out, nil
}

// Report implements models.Store.
func (s *Store) Report(ctx context.Context, kind, name string) (out []byte, err error) {
	err = s.call(ctx, func() error {
		value, err := single(ctx, &s.runner, column[[]byte], `SELECT value FROM reports WHERE kind = ? AND name = ?`, kind, name)
		out = append([]byte{}, value...)
		return err
	}, "report %s of %s", kind, name)
	if err != nil {
		return nil, err
	}
	return out, nil
}
