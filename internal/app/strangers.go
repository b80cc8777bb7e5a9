package app

import (
	"net/http"
	"net/netip"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/time/rate"

	"github.com/safedelivr/safedelivr/internal/known"
	"github.com/safedelivr/safedelivr/internal/perclient"
)

// A client gets so many answers to requests that nothing verified: no key, no session and no signature. Further answers
// wait, so that guesses of keys and links cost the client time, and not the users.
const (
	strangerRate    = 20 // per second
	strangerBurst   = 200
	strangerWait    = 5 * time.Second // the longest of one answer
	strangerClients = 10_000          // clients that are remembered
)

// slowStrangers delays the answers of clients that send many unverified requests. The waits end with the client's
// connection and when stopped is closed.
func slowStrangers(next http.Handler, stopped <-chan struct{}) http.Handler {
	clients, err := lru.New[netip.Addr, *rate.Limiter](strangerClients)
	if err != nil {
		panic(err) // the size is positive
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		verified := false
		ctx := r.Context()
		next.ServeHTTP(w, r.WithContext(known.With(ctx, func() { verified = true; known.Mark(ctx) })))
		if verified {
			return
		}
		client := perclient.Of(perclient.Address(r))
		limiter, ok := clients.Get(client)
		if !ok {
			limiter = rate.NewLimiter(strangerRate, strangerBurst)
			clients.Add(client, limiter)
		}
		turn := limiter.Reserve()
		wait := turn.Delay()
		if wait > strangerWait {
			turn.Cancel() // no client collects waits
			wait = strangerWait
		}
		if wait == 0 {
			return
		}
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		case <-stopped:
		}
	})
}
