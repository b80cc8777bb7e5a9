package perclient

import (
	"net/netip"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/time/rate"
)

// remembered is the number of clients that Rates remembers.
const remembered = 10_000

// Rates has a limiter for each client that was seen lately.
type Rates struct {
	perSecond rate.Limit
	burst     int
	limiters  *lru.Cache[netip.Addr, *rate.Limiter]
}

// NewRates returns Rates that allow each client so many events per second, and a burst of them.
func NewRates(perSecond rate.Limit, burst int) *Rates {
	limiters, err := lru.New[netip.Addr, *rate.Limiter](remembered)
	if err != nil {
		panic(err) // the size is positive
	}
	return &Rates{perSecond, burst, limiters}
}

// Of returns the limiter of the client with an address.
func (r *Rates) Of(address netip.Addr) *rate.Limiter {
	client := Of(address)
	if own, ok := r.limiters.Get(client); ok {
		return own
	}
	own := rate.NewLimiter(r.perSecond, r.burst)
	if other, ok, _ := r.limiters.PeekOrAdd(client, own); ok { // of another request at the same time
		return other
	}
	return own
}
