package app

import (
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
