package sqlite

import (
	"bytes"
	"context"
	"database/sql/driver"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// Claim implements models.Store.
func (s *Store) Claim(ctx context.Context, key string, claim models.Claim, ttl time.Duration) (models.Claim, error) {
	now := s.now()
	var found models.Claim
	err := s.decide(ctx, 200, func(c *conn) error {
		_, err := c.exec(`INSERT INTO claims (key, id, hash, at, until) VALUES (?, ?, ?, ?, ?)
			ON CONFLICT (key) DO UPDATE SET id = excluded.id, hash = excluded.hash, at = excluded.at,
			answer = NULL, until = excluded.until
			WHERE claims.until <= ?`, key, claim.ID, claim.Hash, claim.At.UnixMilli(), now.Add(ttl).UnixMilli(), now.UnixMilli())
		if err != nil {
			return err
		}
		found, err = claimed(c, key, 0)
		return err
	})
	if err != nil {
		return models.Claim{}, fmt.Errorf("claim: %w", err)
	}
	return found, nil
}

// Claimed implements models.Store.
func (s *Store) Claimed(ctx context.Context, key string) (found models.Claim, err error) {
	now := s.now().UnixMilli()
	err = s.read(ctx, func(c *conn) (err error) {
		found, err = claimed(c, key, now)
		return err
	})
	if err == nil && found.ID.IsZero() {
		err = models.ErrNotFound
	}
	if err != nil {
		return models.Claim{}, fmt.Errorf("claimed: %w", err)
	}
	return found, nil
}

// claimed reads the claim of a key that has not ended by a time; zero: found is none.
func claimed(c *conn, key string, by int64) (found models.Claim, err error) {
	err = c.query(`SELECT id, hash, at, answer FROM claims WHERE key = ? AND until > ?`, func(row []driver.Value) error {
		found = models.Claim{ID: idOf(row[0]), Hash: row[1].(string), At: timeOf(row[2])}
		if row[3] != nil {
			found.Answer = bytes.Clone(blob(row[3]))
		}
		return nil
	}, key, by)
	return found, err
}

// PutAnswer implements models.Store.
func (s *Store) PutAnswer(ctx context.Context, key string, id models.ID, answer []byte, ttl time.Duration) error {
	until := s.now().Add(ttl).UnixMilli()
	err := s.write(ctx, len(answer)+100, func(c *conn) error {
		_, err := c.exec(`UPDATE claims SET answer = ?, until = max(until, ?) WHERE key = ? AND id = ?`, answer, until, key,
			id)
		return err
	})
	if err != nil {
		return fmt.Errorf("answer to a claim: %w", err)
	}
	return nil
}

// Unclaim implements models.Store.
func (s *Store) Unclaim(ctx context.Context, key string, id models.ID) error {
	err := s.write(ctx, 100, func(c *conn) error {
		_, err := c.exec(`DELETE FROM claims WHERE key = ? AND id = ?`, key, id)
		return err
	})
	if err != nil {
		return fmt.Errorf("unclaim: %w", err)
	}
	return nil
}

// leases are kept in memory and end by the monotonic clock. Only this process can
// use the data folder, so no holder from before it was opened can be alive.
type leases struct {
	mu   sync.Mutex
	held map[string]lease
}

type lease struct {
	holder string
	until  time.Time
}

// Lease implements models.Store.
func (s *Store) Lease(ctx context.Context, name, holder string, ttl time.Duration) (bool, error) {
	if err := s.enter(ctx); err != nil {
		return false, fmt.Errorf("lease %s: %w", name, err)
	}
	defer s.running.Done()
	return s.leases.take(name, holder, ttl), nil
}

// take takes, renews or gives up a lease, and reports whether holder has it.
func (l *leases) take(name, holder string, ttl time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if there, ok := l.held[name]; ok && there.holder != holder && now.Before(there.until) {
		return false
	}
	if ttl <= 0 {
		if l.held[name].holder == holder {
			delete(l.held, name)
		}
		return false
	}
	if l.held == nil {
		l.held = map[string]lease{}
	}
	l.held[name] = lease{holder, now.Add(ttl)}
	return true
}

// dropEnded drops the leases that have ended.
func (l *leases) dropEnded() {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(l.held, func(_ string, there lease) bool { return !now.Before(there.until) })
}
