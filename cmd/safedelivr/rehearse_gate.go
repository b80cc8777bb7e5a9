package main

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
)

// gate is a way to a server that can be shut: connections break, and new ones do
// too. It can also go silent: connections stay, and what is said on them is lost.
type gate struct {
	to     string
	listen net.Listener
	all    sync.WaitGroup
	turned atomic.Int64

	mu     sync.Mutex
	closed bool
	mute   silence
	conns  map[net.Conn]bool
}

// silence is what a silent gate swallows.
type silence int

const (
	nothingLost silence = iota
	answersLost         // what is asked arrives, and its answer does not
	allLost             // a connection that is half open
)

// newGate listens on loopback for connections to a server.
func newGate(ctx context.Context, to string) (*gate, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	g := &gate{to: to, listen: l, conns: map[net.Conn]bool{}}
	g.all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			g.all.Go(func() { g.serve(ctx, c) })
		}
	})
	return g, nil
}

func (g *gate) addr() string { return g.listen.Addr().String() }

// shut breaks all connections and those that are to come.
func (g *gate) shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	for c := range g.conns {
		_ = c.Close()
	}
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = false
}

// hush makes the gate silent, for connections that there are and that are to
// come.
func (g *gate) hush(s silence) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.mute = s
}

// speak ends a silence. Connections that lost something are cut.
func (g *gate) speak() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.mute = nothingLost
	for c := range g.conns {
		_ = c.Close()
	}
}

// pass copies what one end says to the other.
func (g *gate) pass(to, from net.Conn, heard silence) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		g.mu.Lock()
		lost := g.mute >= heard
		g.mu.Unlock()
		if lost {
			continue
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}

// turnedAway counts the connections that found the gate shut.
func (g *gate) turnedAway() int64 { return g.turned.Load() }

// remove ends everything.
func (g *gate) remove() {
	_ = g.listen.Close()
	g.shut()
	g.all.Wait()
}

// keep notes a connection, unless the gate is shut.
func (g *gate) keep(c net.Conn) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		g.turned.Add(1)
		_ = c.Close()
		return false
	}
	g.conns[c] = true
	return true
}

func (g *gate) drop(c net.Conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.conns, c)
	_ = c.Close()
}

func (g *gate) serve(ctx context.Context, client net.Conn) {
	if !g.keep(client) {
		return
	}
	defer g.drop(client)
	var d net.Dialer
	server, err := d.DialContext(ctx, "tcp", g.to)
	if err != nil || !g.keep(server) {
		return
	}
	defer g.drop(server)
	back := make(chan struct{})
	go func() {
		defer close(back)
		g.pass(server, client, allLost)
		_ = server.Close()
	}()
	g.pass(client, server, answersLost)
	_ = client.Close()
	<-back
}
