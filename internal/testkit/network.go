package testkit

import (
	"context"
	"fmt"
	"net"
	"sync"
	"syscall"
	"testing"
)

// Network connects the clients and servers of a test by pipes. Nothing in it waits for the operating system, so that it
// may be used with the clock of testing/synctest.
type Network struct {
	mu        sync.Mutex
	listeners map[string]*listener
	conns     []net.Conn
}

// NewNetwork returns a network whose connections are closed after the test.
func NewNetwork(t testing.TB) *Network {
	n := &Network{listeners: map[string]*listener{}}
	t.Cleanup(func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		for _, c := range n.conns {
			_ = c.Close()
		}
	})
	return n
}

// Listen returns a listener at an address of its own.
func (n *Network) Listen() net.Listener {
	n.mu.Lock()
	defer n.mu.Unlock()
	addr := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: len(n.listeners) + 1}
	l := &listener{addr: addr, conns: make(chan net.Conn), closed: make(chan struct{})}
	n.listeners[addr.String()] = l
	return l
}

// Dial connects to a listener, like the function of the same name of a net.Dialer.
func (n *Network) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	n.mu.Lock()
	l := n.listeners[address]
	n.mu.Unlock()
	if l == nil {
		return nil, fmt.Errorf("dial %s %s: %w", network, address, syscall.ECONNREFUSED)
	}
	client, server := net.Pipe()
	select {
	case l.conns <- conn{server, l.addr}:
		n.mu.Lock()
		defer n.mu.Unlock()
		n.conns = append(n.conns, client)
		return conn{client, l.addr}, nil
	case <-l.closed:
		return nil, fmt.Errorf("dial %s %s: %w", network, address, syscall.ECONNREFUSED)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// listener accepts the connections of a Network.
type listener struct {
	addr   net.Addr
	conns  chan net.Conn
	once   sync.Once
	closed chan struct{}
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *listener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

// Addr implements net.Listener.
func (l *listener) Addr() net.Addr { return l.addr }

// conn is one end of a pipe. Both ends have the address of the listener.
type conn struct {
	net.Conn
	addr net.Addr
}

// LocalAddr implements net.Conn.
func (c conn) LocalAddr() net.Addr { return c.addr }

// RemoteAddr implements net.Conn.
func (c conn) RemoteAddr() net.Addr { return c.addr }
