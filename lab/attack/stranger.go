package attack

import (
	"bufio"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// What a stranger opens from each address at the same time.
const (
	strangerAddresses = 5
	unreadAnswers     = 16 // connections that ask for many pages and read nothing
	beginnings        = 64 // posts of one byte
	prefaces          = 4  // connections that begin to speak HTTP/2 where it is not spoken
	guesses           = 8  // made-up links and keys, each; an answer may wait for five seconds
)

// A Stranger tries to keep a server busy without a key, from several addresses of this machine.
type Stranger struct {
	addr     string
	answered atomic.Int64
}

// NewStranger returns a stranger to the server at an address.
func NewStranger(addr string) *Stranger { return &Stranger{addr: addr} }

// Answered returns how many requests were answered.
func (s *Stranger) Answered() int64 { return s.answered.Load() }

// Send sends requests of all kinds until ctx ends.
func (s *Stranger) Send(ctx context.Context) {
	const get, end = "GET %s HTTP/1.1\r\nHost: stranger\r\n", "\r\n"
	pages := strings.Repeat(fmt.Sprintf(get, "/v1/openapi.yaml")+end, 200)
	post := "POST /webhooks/sg HTTP/1.1\r\nHost: stranger\r\nX-Twilio-Email-Event-Webhook-Signature: MEUCIQ==\r\n" +
		"X-Twilio-Email-Event-Webhook-Timestamp: %d\r\nContent-Length: 1000000\r\n\r\n["
	var all sync.WaitGroup
	loop := func(n, address int, visit func(c net.Conn)) {
		for range n {
			all.Go(func() {
				for ctx.Err() == nil {
					s.visit(ctx, address, visit)
				}
			})
		}
	}
	for address := range strangerAddresses {
		loop(unreadAnswers, address, func(c net.Conn) {
			_, _ = io.WriteString(c, pages) // until the server closes the connection
		})
		loop(beginnings, address, func(c net.Conn) {
			fmt.Fprintf(c, post, time.Now().Unix())
			_, _ = c.Read(make([]byte, 1))
		})
		loop(prefaces, address, func(c net.Conn) {
			settings := strings.Repeat("\x00\x00\x00\x04\x00\x00\x00\x00\x00", 1000)
			_, _ = io.WriteString(c, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"+settings)
			_, _ = io.Copy(io.Discard, c)
		})
		loop(guesses, address, func(c net.Conn) {
			s.ask(c, fmt.Sprintf(get, "/unsubscribe/"+rand.Text())+end)
		})
		loop(guesses, address, func(c net.Conn) {
			s.ask(c, fmt.Sprintf(get, "/v1/usage")+"Authorization: Bearer sd_0123456789ab_"+
				(rand.Text() + rand.Text())[:43]+end+end)
		})
	}
	all.Wait()
}

// visit connects from one of the addresses, or from any if this machine has only one, and closes the connection when
// ctx ends.
func (s *Stranger) visit(ctx context.Context, address int, visit func(c net.Conn)) {
	from := &net.TCPAddr{IP: net.IPv4(127, 66, 0, byte(1+address))} //nolint:gosec // few addresses
	c, err := (&net.Dialer{LocalAddr: from}).DialContext(ctx, "tcp", s.addr)
	if err != nil && ctx.Err() == nil {
		c, err = (&net.Dialer{}).DialContext(ctx, "tcp", s.addr)
	}
	if err != nil {
		select { // the server may be at its limit
		case <-ctx.Done():
		case <-time.After(10 * time.Millisecond):
		}
		return
	}
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	visit(c)
	stop()
	_ = c.Close()
}

// ask sends a request and reads its answer, again and again until the connection ends.
func (s *Stranger) ask(c net.Conn, request string) {
	for in := bufio.NewReader(c); ; {
		if _, err := io.WriteString(c, request); err != nil {
			return
		}
		answer, err := http.ReadResponse(in, nil)
		if err != nil {
			return
		}
		_, err = io.Copy(io.Discard, answer.Body)
		_ = answer.Body.Close()
		if err != nil {
			return
		}
		s.answered.Add(1)
	}
}
