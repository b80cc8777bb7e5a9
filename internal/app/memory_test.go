package app

import (
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// TestPressure checks that the heap grows less while clients ask for more than they may, and for as long after.
func TestPressure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var now atomic.Int64
		now.Store(100)
		p := newPressure()
		p.set = func(percent int) (before int) { return int(now.Swap(int64(percent))) }
		press := func() {
			for range pressingRequests + 1 {
				p.note()
			}
			synctest.Wait()
		}
		for range 10 {
			p.note()
			time.Sleep(time.Second / pressingRequests)
		}
		require.EqualValues(t, 100, now.Load(), "well-behaved clients")
		press()
		require.EqualValues(t, pressedPercent, now.Load())
		time.Sleep(pressureTime / 2)
		press()
		time.Sleep(pressureTime - 1)
		require.EqualValues(t, pressedPercent, now.Load(), "the clients went on")
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		require.EqualValues(t, 100, now.Load())

		now.Store(pressedPercent / 2)
		press()
		require.EqualValues(t, pressedPercent/2, now.Load(), "GOGC asks for less")
		time.Sleep(pressureTime)
		synctest.Wait()
		require.EqualValues(t, pressedPercent/2, now.Load())
	})
}

// TestGrowth checks by how much the heap may grow, and that pressure takes precedence until it is over.
func TestGrowth(t *testing.T) {
	t.Parallel()
	for live, want := range map[uint64]int{0: 100, 20 << 20: 100, 24 << 20: 90, 30 << 20: 80, 40 << 20: 50, 1 << 40: 50} {
		require.Equal(t, want, growth(live), live)
	}
	synctest.Test(t, func(t *testing.T) {
		var now atomic.Int64
		p := newPressure()
		p.set = func(percent int) (before int) { return int(now.Swap(int64(percent))) }
		p.allow(70)
		require.EqualValues(t, 70, now.Load())
		for range pressingRequests + 1 {
			p.note()
		}
		p.allow(50)
		require.EqualValues(t, pressedPercent, now.Load())
		time.Sleep(pressureTime)
		synctest.Wait()
		require.EqualValues(t, 50, now.Load())
		p.allow(60)
		require.EqualValues(t, 60, now.Load())
	})
}

// TestCollections checks that each collection is noticed.
func TestCollections(t *testing.T) {
	t.Setenv("GOGC", "")
	allowed := make(chan int, 1)
	p := newPressure()
	p.set = func(percent int) int {
		select {
		case allowed <- percent:
		default: // other tests collect, too
		}
		return 100
	}
	p.follow(t.Context())
	for range 2 {
		for noticed := false; !noticed; {
			runtime.GC() // the one before may have come too early
			select {
			case percent := <-allowed:
				require.Positive(t, percent)
				noticed = true
			default:
				runtime.Gosched()
			}
		}
		p.mu.Lock()
		p.last = 0 // so that the same is set again
		p.mu.Unlock()
	}
}
