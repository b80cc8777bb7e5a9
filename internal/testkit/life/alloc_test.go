//go:build !race

package life

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

// TestAllocated: each step of a mail allocates no more than this says, with the requests of this test and the
// store in memory. The race detector allocates, too.
func TestAllocated(t *testing.T) {
	const mails = 500
	most := []struct {
		step           string
		bytes, objects uint64
	}{{Steps[0], 44_500, 505}, {Steps[1], 27_500, 250}, {Steps[2], 34_500, 263}, {Steps[3], 30_500, 265}}
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // a collection empties pools
	synctest.Test(t, func(t *testing.T) {
		p := newProduct(t, true)
		wait := func(d time.Duration) {
			time.Sleep(d)
			synctest.Wait()
		}
		var ids []models.ID
		send := func() {
			ids = ids[:0]
			for i := range mails {
				ids = append(ids, p.send(fmt.Sprintf("user%d@example.com", i)))
				synctest.Wait()
			}
		}
		wait(time.Hour)
		send() // what is allocated once is there then
		wait(2 * time.Minute)
		for i, m := range most {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			if i == 0 {
				send()
			} else {
				for _, id := range ids {
					p.report(id, models.EventKind(Steps[i]))
					synctest.Wait()
				}
			}
			wait(500 * time.Millisecond)
			runtime.ReadMemStats(&after)
			bytes, objects := (after.TotalAlloc-before.TotalAlloc)/mails, (after.Mallocs-before.Mallocs)/mails
			t.Logf("%s: %d bytes, %d objects", m.step, bytes, objects)
			require.LessOrEqual(t, bytes, m.bytes, "bytes of %s", m.step)
			require.LessOrEqual(t, objects, m.objects, "objects of %s", m.step)
			require.Greater(t, objects, m.objects*9/10, "%s allocates less: lower its number", m.step)
		}
	})
}
