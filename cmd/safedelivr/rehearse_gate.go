package main

import (
	"context"
	"io"
	"net"
	"sync"
	"sync/atomic"
)

// gate is a way to a server that can be shut: connections break, and new ones do
// too.
type gate struct {
	to     string
	listen net.Listener
	all    sync.WaitGroup
	turned atomic.Int64

	mu     sync.Mutex
	closed bool
	conns  map[net.Conn]bool
}

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
		_, _ = io.Copy(server, client)
		_ = server.Close()
	}()
	_, _ = io.Copy(client, server)
	_ = client.Close()
	<-back
}
