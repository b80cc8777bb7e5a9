package cassandra

import (
	"context"
	"iter"

	"github.com/safedelivr/safedelivr/models"
)

// ahead is how many partitions a cursor reads at the same time.
const ahead = 8

// cursor walks partitions in order and yields their rows, from first to last
// as find reads them page by page. The first pages of the next partitions are
// read together. Between reads it holds nothing: who reads it may call the
// store, stop whenever it likes, and the store may be closed meanwhile.
func cursor[T any](
	ctx context.Context, s *Store, first, last int64,
	find func(ctx context.Context, partition int64, state []byte) (rows []T, next []byte, err error),
	what string, args ...any,
) iter.Seq2[T, error] {
	type head struct {
		rows []T
		next []byte
	}
	walk := func(yield func(T, error) bool) error {
		for from := first; from <= last; from += ahead {
			heads := make([]head, min(ahead, last-from+1))
			err := s.call(ctx, func() error {
				return each(ctx, len(heads), func(ctx context.Context, i int) (err error) {
					heads[i].rows, heads[i].next, err = find(ctx, from+int64(i), nil)
					return err
				})
			}, what, args...)
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
					}, what, args...)
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

// empty is a cursor over nothing, which still says whether it could be read.
func empty[T any](ctx context.Context, s *Store, what string, args ...any) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		if err := s.call(ctx, func() error { return nil }, what, args...); err != nil {
			var none T
			yield(none, err)
		}
	}
}

// idFrom is the least id that carries a time of the millisecond ms.
func idFrom(ms int64) []byte {
	id := models.MinID(timeOf(max(ms, 1)))
	return id[:]
}
