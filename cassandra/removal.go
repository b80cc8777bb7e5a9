package cassandra

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/codec"
)

// BatchIDs implements models.Store.
func (s *Store) BatchIDs(ctx context.Context, user string, before models.ID, limit int) (ids []models.ID, err error) {
	if before.IsZero() {
		copy(before[:], bytes.Repeat([]byte{0xff}, len(before)))
	}
	err = s.call(ctx, func() error {
		ids, err = s.listedBefore(ctx, user, before, max(limit, 0))
		return err
	}, "list of %s", user)
	if err != nil {
		return nil, err
	}
	return ids, nil
}

// BatchIDsAfter implements models.Store.
func (s *Store) BatchIDsAfter(
	ctx context.Context, user string, after models.ID, limit int,
) (ids []models.ID, err error) {
	err = s.call(ctx, func() error {
		ids, err = s.listedAfter(ctx, user, after, max(limit, 0))
		return err
	}, "list of %s", user)
	if err != nil {
		return nil, err
	}
	return ids, nil
}

// Purge implements models.Store. The number of chunks is removed late, so that a repeat
// reaches all of them, and the entry of the list at last. Ledgers and the commit are
// removed by plain writes, because nothing is decided about the batch any more.
func (s *Store) Purge(ctx context.Context, user string, batch models.ID) error {
	return s.call(ctx, func() error {
		rows, err := query(ctx, &s.runner, column[int], `SELECT chunks FROM chunks WHERE chunk_id = ?`, batch[:])
		if err != nil {
			return err
		}
		chunks := 1
		for _, n := range rows {
			chunks = max(chunks, n)
		}
		if err := s.exec(ctx, plain, `DELETE head, recipients FROM chunks USING TIMESTAMP ? WHERE chunk_id = ?`,
			purgedStamp, batch[:]); err != nil {
			return err
		}
		if err := s.dropPieces(ctx, batch); err != nil {
			return err
		}
		if err := each(ctx, chunks-1, func(ctx context.Context, n int) error {
			id := batch.Chunk(n + 1)
			return s.exec(ctx, plain, `DELETE FROM chunks USING TIMESTAMP ? WHERE chunk_id = ?`, purgedStamp, id[:])
		}); err != nil {
			return err
		}
		first, last := batch.Chunk(0), batch.Chunk(models.MaxChunks-1)
		if err := s.exec(ctx, plain, `DELETE FROM summaries
			WHERE owner = ? AND second = ? AND chunk_id >= ? AND chunk_id <= ?`,
			user, batch.Time().Unix(), first[:], last[:]); err != nil {
			return err
		}
		for _, cql := range []string{
			`DELETE FROM told WHERE chunk_id = ?`,
			`DELETE FROM facts WHERE chunk_id = ?`,
			`DELETE FROM ledger WHERE chunk_id = ?`,
		} {
			if err := each(ctx, chunks, func(ctx context.Context, n int) error {
				id := batch.Chunk(n)
				return s.exec(ctx, plain, cql, id[:])
			}); err != nil {
				return err
			}
		}
		if err := s.exec(ctx, plain, `DELETE FROM batch_commits WHERE batch_id = ?`, batch[:]); err != nil {
			return err
		}
		if err := s.exec(ctx, plain, `DELETE FROM chunks USING TIMESTAMP ? WHERE chunk_id = ?`,
			purgedStamp, batch[:]); err != nil {
			return err
		}
		return s.purgeList(ctx, user, batch)
	}, "purge %s", batch)
}

// purgeList removes a batch from its user's list, and the bucket if it is empty then.
func (s *Store) purgeList(ctx context.Context, user string, batch models.ID) error {
	bucket := listBucketOf(batch)
	if err := s.exec(ctx, plain, `DELETE FROM batches_by_owner USING TIMESTAMP 2
		WHERE owner = ? AND bucket = ? AND batch_id = ?`, user, bucket, batch[:]); err != nil {
		return err
	}
	left, err := query(ctx, &s.runner, readID,
		`SELECT batch_id FROM batches_by_owner WHERE owner = ? AND bucket = ? LIMIT 1`, user, bucket)
	if err != nil || len(left) > 0 {
		return err
	}
	return s.exec(ctx, plain, `DELETE FROM owner_buckets USING TIMESTAMP 2 WHERE owner = ? AND bucket = ?`, user, bucket)
}

// DropSums implements models.Store.
func (s *Store) DropSums(ctx context.Context, user string, t time.Time) error {
	day := models.DayOf(t)
	from, to := day.UnixMilli(), day.AddDate(0, 0, 1).UnixMilli()
	return s.call(ctx, func() error {
		for _, level := range []models.Level{models.Second, models.Minute, models.Hour} {
			length := spanBucket(level)
			buckets := (to-1)/length - from/length + 1
			if err := each(ctx, int(buckets), func(ctx context.Context, i int) error {
				return s.exec(ctx, plain, `DELETE FROM sums
					WHERE owner = ? AND level = ? AND bucket = ? AND start >= ? AND start < ?`,
					user, string(level), from/length+int64(i), from, to)
			}); err != nil {
				return err
			}
		}
		return nil
	}, "drop sums of %s", user)
}

// eraseTries is how often an erasure that another one overwrote is tried again.
const eraseTries = 10

// Erase implements models.Store.
func (s *Store) Erase(ctx context.Context, chunk models.ID, address string) (erased models.Set, err error) {
	err = s.call(ctx, func() error {
		if erased, err = s.eraseRecipients(ctx, chunk, address); err != nil {
			return err
		}
		if err := s.eraseLedger(ctx, chunk, address); err != nil {
			return err
		}
		if chunk.ChunkNumber() == 0 {
			if err := s.eraseRejections(ctx, chunk, address); err != nil {
				return err
			}
		}
		return s.eraseFacts(ctx, chunk, address)
	}, "erase an address from %s", chunk)
	if err != nil {
		return models.Set{}, err
	}
	return erased, nil
}

// An erasure changes the recipients of a chunk for much less than eraseLease.
const (
	eraseLease = time.Minute
	erasePause = 20 * time.Millisecond
)

// keepErasing takes the lease that keeps erasures of the same chunk apart: one would write
// back what the other has erased.
func (s *Store) keepErasing(ctx context.Context, chunk models.ID) (end func(), err error) {
	id := leaseID{"leases", "erase " + chunk.String(), models.NewUserID()}
	for {
		held, err := lease(ctx, &s.runner, id, eraseLease)
		if err != nil {
			return nil, err
		}
		if held {
			return func() { _, _ = lease(context.WithoutCancel(ctx), &s.runner, id, 0) }, nil // else it ends by itself
		}
		if models.Pause(ctx, erasePause); ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
}

// eraseRecipients erases the recipients of a chunk that have an address. The timestamp of
// the new value grows with the number of erased recipients. The value is read again before
// and after it is written.
func (s *Store) eraseRecipients(ctx context.Context, chunk models.ID, address string) (erased models.Set, err error) {
	var end func()
	defer func() {
		if end != nil {
			end()
		}
	}()
	for range eraseTries {
		raw, err := single(ctx, &s.runner, column[[]byte], `SELECT recipients FROM chunks WHERE chunk_id = ?`, chunk[:])
		if errors.Is(err, models.ErrNotFound) || err == nil && raw == nil {
			return erased, nil
		}
		if err != nil {
			return erased, err
		}
		rs, err := codec.DecodeRecipients(raw)
		if err != nil {
			return erased, damaged(err)
		}
		found := models.EraseRecipients(rs, address)
		if found.Empty() {
			return erased, nil
		}
		if end == nil {
			if end, err = s.keepErasing(ctx, chunk); err != nil {
				return erased, err
			}
			continue
		}
		erased = erased.Or(found)
		if err := s.exec(ctx, plain, `UPDATE chunks USING TIMESTAMP ? SET recipients = ? WHERE chunk_id = ?`,
			erasedStamp+int64(models.ErasedRecipients(rs).Len()), codec.EncodeRecipients(rs), chunk[:]); err != nil {
			return erased, err
		}
	}
	return erased, fmt.Errorf("%w: other addresses of the chunk are being erased", models.ErrUnavailable)
}

// eraseRejections replaces the pieces of the rejections of a batch that name an address, as
// eraseRecipients replaces a chunk.
func (s *Store) eraseRejections(ctx context.Context, batch models.ID, address string) error {
	numbers, err := query(ctx, &s.runner, column[int], `SELECT number FROM pieces WHERE batch_id = ? AND sha256 = ?`,
		batch[:], models.RejectedPieces)
	if err != nil || len(numbers) == 0 {
		return err
	}
	end := func() {}
	defer func() { end() }()
	held := false
	erase := func(number int) (done bool, err error) {
		raw, err := single(ctx, &s.runner, column[[]byte], `SELECT piece FROM pieces
			WHERE batch_id = ? AND sha256 = ? AND number = ?`, batch[:], models.RejectedPieces, number)
		if errors.Is(err, models.ErrNotFound) {
			return true, nil
		}
		if err == nil {
			raw, err = codec.Unpack(raw)
			err = damaged(err)
		}
		if err != nil {
			return false, err
		}
		text := models.EraseText(string(raw), address)
		switch {
		case text == string(raw):
			return true, nil
		case !held:
			if end, err = s.keepErasing(ctx, batch); err != nil {
				end = func() {}
			}
			held = err == nil
			return false, err
		}
		return false, s.exec(ctx, plain, `UPDATE pieces USING TIMESTAMP ? SET piece = ?
			WHERE batch_id = ? AND sha256 = ? AND number = ?`,
			erasedStamp+int64(strings.Count(text, models.ErasedAddress)), codec.Pack([]byte(text)),
			batch[:], models.RejectedPieces, number)
	}
	for _, n := range numbers {
		done := false
		for try := 0; !done; try++ {
			if try == eraseTries {
				return fmt.Errorf("%w: other addresses of the batch are being erased", models.ErrUnavailable)
			}
			if done, err = erase(n); err != nil {
				return err
			}
		}
	}
	return nil
}

// eraseLedger replaces entries by compare-and-set on their value.
func (s *Store) eraseLedger(ctx context.Context, chunk models.ID, address string) error {
	type entry struct {
		number int
		raw    []byte
	}
	rows, err := query(ctx, &s.runner, func(scan scanner) (e entry, err error) {
		err = scan(&e.number, &e.raw)
		return e, err
	}, `SELECT number, value FROM ledger WHERE chunk_id = ?`, chunk[:])
	if err != nil {
		return err
	}
	for _, row := range rows {
		e, err := codec.DecodeEntry(row.raw)
		if err != nil {
			return damaged(err)
		}
		if !e.Erase(address) {
			continue
		}
		// If it was not applied, another call has erased an address of it: the caller repeats.
		applied, now, err := s.cas(
			ctx,
			settling,
			`UPDATE ledger SET value = ? WHERE chunk_id = ? AND number = ? IF value = ?`,
			codec.EncodeEntry(&e),
			chunk[:],
			row.number,
			row.raw,
		)
		if err != nil {
			return err
		}
		if applied {
			continue
		}
		value, _ := now["value"].([]byte)
		if e, err = codec.DecodeEntry(value); err != nil {
			return damaged(err)
		}
		if e.Erase(address) {
			return fmt.Errorf("%w: other addresses of the chunk are being erased", models.ErrUnavailable)
		}
	}
	return nil
}

// rewriteAge is subtracted from the servers' time for the timestamp of a rewritten fact:
// that is higher than the falling timestamps of facts, and lower than that of a removal.
const rewriteAge = 100 * 24 * time.Hour

// eraseFacts replaces facts.
func (s *Store) eraseFacts(ctx context.Context, chunk models.ID, address string) error {
	facts, err := s.facts(ctx, chunk)
	if err != nil {
		return err
	}
	for i := range facts {
		if !facts[i].Erase(address) {
			continue
		}
		now, err := s.clock.time(ctx)
		if err != nil {
			return err
		}
		if err := s.exec(ctx, plain, `INSERT INTO facts (chunk_id, key, value) VALUES (?, ?, ?) USING TIMESTAMP ?`,
			chunk[:], facts[i].Key, codec.EncodeFact(&facts[i]), now.Add(-rewriteAge).UnixMicro()); err != nil {
			return err
		}
	}
	return nil
}

// EraseInbox implements models.Store. The new value ends when the old one would have.
func (s *Store) EraseInbox(ctx context.Context, id models.ID, address string) (changed bool, err error) {
	err = s.call(ctx, func() error {
		left := 0
		in, err := single(ctx, &s.runner, func(scan scanner) (in models.Inbox, err error) {
			var (
				raw    []byte
				replay string
			)
			if err := scan(&replay, &raw, &left); err != nil {
				return in, err
			}
			in.Posts, err = codec.DecodePosts(replay, raw)
			return in, damaged(err)
		}, `SELECT replay, body, TTL(body) FROM inbox WHERE post_id = ?`, id[:])
		if errors.Is(err, models.ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		if changed = in.Erase(address); !changed {
			return nil
		}
		replay, body := codec.EncodePosts(in.Posts)
		return s.exec(ctx, plain, `UPDATE inbox USING TTL ? SET replay = ?, body = ? WHERE post_id = ?`,
			max(left, 1), replay, body, id[:])
	}, "erase an address from post %s", id)
	return changed && err == nil, err
}
