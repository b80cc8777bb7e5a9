package background

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// TestWriter: what was added is written within two seconds, by a later try if the store is down, and not again.
func TestWriter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var flushed, healed atomic.Int32
		w := New("log", slog.New(slog.DiscardHandler), func(context.Context) (bool, error) {
			if flushed.Add(1); healed.Load() == 0 {
				return true, errors.New("down")
			}
			return false, nil
		})
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Zero(t, flushed.Load(), "nothing was added")
		w.Added()
		w.Added()
		time.Sleep(2 * writeEvery)
		synctest.Wait()
		require.EqualValues(t, 2, flushed.Load())
		healed.Store(1)
		time.Sleep(time.Minute)
		synctest.Wait()
		require.EqualValues(t, 3, flushed.Load(), "it is written once")
		w.Added()
		w.Close()
		require.EqualValues(t, 4, flushed.Load(), "the rest is written at the end")
		w.Added()
		time.Sleep(time.Minute)
		synctest.Wait()
		require.EqualValues(t, 4, flushed.Load(), "a closed writer writes no more")
	})
}

// buckets is a store of transient values.
type buckets map[string]map[string][]byte

func (b buckets) PutTransient(context.Context, string, string, []byte, time.Duration) error {
	return nil
}

func (b buckets) Transients(_ context.Context, kind string) (map[string][]byte, error) {
	if kind == "gone" {
		return nil, errors.New("down")
	}
	return b[kind], nil
}

// TestList: a list goes from the newest bucket to older ones, as far as it needs, and leaves out what cannot be read.
func TestList(t *testing.T) {
	t.Parallel()
	store := buckets{
		"index": {"a": nil, "b": nil, "c": nil, "gone": nil},
		"a":     {"1": []byte("1 2")},
		"b":     {"1": []byte("3"), "2": []byte("damaged")},
		"c":     {"1": []byte("5 4 6")},
	}
	damaged := 0
	b := Buckets[int]{
		Index: "index",
		Kind:  func(bucket string) string { return bucket },
		Read: func(value []byte) (list []int, err error) {
			for text := range strings.FieldsSeq(string(value)) {
				var n int
				if _, err := fmt.Sscan(text, &n); err != nil {
					return list, err
				}
				list = append(list, n)
			}
			return list, nil
		},
		Wanted:  func(n *int) bool { return *n != 5 },
		Compare: func(a, b int) int { return b - a },
		Damaged: func(error) { damaged++ },
	}
	list := func(last string, limit int) []int {
		t.Helper()
		out, err := b.List(t.Context(), store, last, limit)
		require.NoError(t, err)
		return out
	}
	require.Equal(t, []int{6, 4, 3, 2, 1}, list("c", 9))
	require.Equal(t, 1, damaged)
	require.Equal(t, []int{3, 2}, list("b", 2))
	require.Equal(t, []int{6}, list("c", 1), "older buckets are not read")
	_, err := b.List(t.Context(), store, "", 9)
	require.Error(t, err, "the newest bucket cannot be read")
}
