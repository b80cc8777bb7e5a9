// Package perclient counts what each client of a server holds and asks for, so that none takes all of it. A client has
// one IPv4 address, or all addresses of an IPv6 /64 network, which is what one customer of a provider gets.
package perclient

import (
	"net/http"
	"net/netip"
	"sync"
)

// Of returns the address under which a client is counted.
func Of(address netip.Addr) netip.Addr {
	if address = address.Unmap(); address.Is4() {
		return address
	}
	network, _ := address.WithZone("").Prefix(64) // an invalid address stays one
	return network.Addr()
}

// Address returns the address of a request's client, or the zero address if it is not known.
func Address(r *http.Request) netip.Addr {
	peer, _ := netip.ParseAddrPort(r.RemoteAddr)
	return peer.Addr().Unmap()
}

// Counts has a number for each client. Its zero value is ready to use.
type Counts struct {
	mu   sync.Mutex
	held map[netip.Addr]int64
}

// Add adds n to the number of the client with an address. It returns false and adds nothing if that were more than
// most.
func (c *Counts) Add(address netip.Addr, n, most int64) bool {
	client := Of(address)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held[client]+n > most {
		return false
	}
	if n == 0 {
		return true
	}
	if c.held == nil {
		c.held = map[netip.Addr]int64{}
	}
	c.held[client] += n
	return true
}

// Of returns the number of the client with an address.
func (c *Counts) Of(address netip.Addr) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.held[Of(address)]
}

// Remove takes n from the number of the client with an address.
func (c *Counts) Remove(address netip.Addr, n int64) {
	client := Of(address)
	if n == 0 {
		return // nothing may have been added yet
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held[client] -= n; c.held[client] == 0 {
		delete(c.held, client)
	}
}

// Clients returns how many clients have a number other than zero.
func (c *Counts) Clients() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.held)
}
