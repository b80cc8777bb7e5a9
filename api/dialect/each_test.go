package dialect

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// TestEach: the first mail comes before the others, of which a few are accepted at the same time.
func TestEach(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const n = 100
		var done [n]atomic.Bool
		var mu sync.Mutex
		running, most := 0, 0
		count := func(n int) {
			mu.Lock()
			defer mu.Unlock()
			running += n
			most = max(most, running)
		}
		require.NoError(t, each(n, ofRequest, func(i int) error {
			require.Equal(t, i > 0, done[0].Load())
			count(1)
			time.Sleep(time.Duration(i) * time.Millisecond)
			count(-1)
			require.False(t, done[i].Swap(true))
			return nil
		}))
		for i := range done {
			require.True(t, done[i].Load(), i)
		}
		require.Equal(t, ofRequest+1, most)
	})
}

// TestEachFails: after an error no other mail is begun, and the error is that of the first mail that has one. A panic
// reaches the caller.
func TestEachFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var begun atomic.Int64
		slow, quick := errors.New("slow"), errors.New("quick")
		err := each(100, ofRequest, func(i int) error {
			begun.Add(1)
			time.Sleep(time.Second)
			switch i {
			case 1:
				time.Sleep(time.Second)
				return slow
			case 2:
				return quick
			}
			return nil
		})
		require.ErrorIs(t, err, slow)
		require.LessOrEqual(t, begun.Load(), int64(1+2*(ofRequest+1)))
		for _, of := range []int{0, 1} {
			require.Panics(t, func() {
				_ = each(3, ofRequest, func(i int) error {
					if i == of {
						panic("of each")
					}
					return nil
				})
			})
		}
	})
}
