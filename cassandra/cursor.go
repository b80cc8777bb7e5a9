package cassandra

import (
	"context"
	"iter"

	"github.com/safedelivr/safedelivr/models"
)

// readAhead is how many partitions a cursor reads at the same time.
const readAhead = 8

// partitions is a range of partitions, both ends included.
type partitions struct{ first, last int64 }

// cursor yields the rows of partitions in order, from the first to the last. find reads a
// partition page by page. The first pages of the next partitions are read together.
// Between reads the cursor holds nothing, so its reader may call the store or stop,
// and the store may be closed meanwhile.
func cursor[T any](
	ctx context.Context, s *Store, parts partitions,
	find func(ctx context.Context, partition int64, state []byte) (rows []T, next []byte, err error),
	what string,
) iter.Seq2[T, error] {
	type head struct {
		rows []T
		next []byte
	}
	walk := func(yield func(T, error) bool) error {
		for from := parts.first; from <= parts.last; from += readAhead {
			heads := make([]head, min(readAhead, parts.last-from+1))
			err := s.call(ctx, func() error {
				return each(ctx, len(heads), func(ctx context.Context, i int) (err error) {
					heads[i].rows, heads[i].next, err = find(ctx, from+int64(i), nil)
					return err
				})
			}, "%s", what)
			if err != nil {
				return err
			}
			for i, h := range heads {
				for {
					for _, v := range h.rows {
						if !yield(v, nil) {
							return nil
						}
					}
					if len(h.next) == 0 {
						break
					}
					err := s.call(ctx, func() (err error) {
						h.rows, h.next, err = find(ctx, from+int64(i), h.next)
						return err
					}, "%s", what)
					if err != nil {
						return err
					}
				}
				heads[i] = head{}
			}
		}
		return nil
	}
	return func(yield func(T, error) bool) {
		if err := walk(yield); err != nil {
			var none T
			yield(none, err)
		}
	}
}

// empty returns a cursor without rows. It still yields the error of a closed store or an
// ended context.
func empty[T any](ctx context.Context, s *Store, what string, args ...any) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		if err := s.call(ctx, func() error { return nil }, what, args...); err != nil {
			var none T
			yield(none, err)
		}
	}
}

// idFrom returns the least ID that carries the millisecond ms.
func idFrom(ms int64) []byte {
	id := models.MinID(timeOf(max(ms, 1)))
	return id[:]
}
