//go:build unix

package dashboard

import (
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/dashboard/login"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// BenchmarkOpenPages measures the CPU time per second of 200 open provider pages while
// mail is sent, including their clients, in cores.
func BenchmarkOpenPages(b *testing.B) {
	for _, users := range []int{1, 200} {
		b.Run(fmt.Sprintf("users=%d", users), func(b *testing.B) { openPages(b, users) })
	}
}

func openPages(b *testing.B, users int) {
	f := newRig(b, nil)
	var browsers []*browser
	for i := range users {
		u := login.LocalUser()
		if i > 0 {
			u = models.User{ID: models.NewUserID(), Name: fmt.Sprint("user", i), Created: time.Now()}
			require.NoError(b, f.store.CreateUser(b.Context(), u))
		}
		browsers = append(browsers, f.byLink(u))
	}
	var open, over sync.WaitGroup
	var sent atomic.Int64
	for i := range 200 {
		r, err := http.NewRequestWithContext(b.Context(), http.MethodGet, f.url+"/live/providers?range=day", http.NoBody)
		require.NoError(b, err)
		open.Add(1)
		over.Go(func() {
			resp, err := browsers[i%users].client.Do(r)
			open.Done()
			if err != nil {
				b.Error(err)
				return
			}
			n, _ := io.Copy(io.Discard, resp.Body)
			sent.Add(n)
			_ = resp.Body.Close()
		})
	}
	open.Wait()
	used := func() time.Duration {
		var u syscall.Rusage
		require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	began, before := time.Now(), used()
	for b.Loop() {
		for i := range f.seen {
			f.seen[i].Counters.Accepted += 100
		}
		f.providers(func(*telemetry.ProviderState) {})
		f.happened("one", 0, "sg", func(t *telemetry.ProviderTally) { t.Calls = time.Now().UnixNano() })
		time.Sleep(time.Second)
	}
	b.ReportMetric((used()-before).Seconds()/time.Since(began).Seconds(), "cores")
	took := time.Since(began).Seconds()
	b.ReportMetric(0, "ns/op")
	f.board.Close() // ends the streams
	over.Wait()
	b.ReportMetric(float64(sent.Load())/200/took/1000, "kB/s-per-page")
}
