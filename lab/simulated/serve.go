package simulated

import (
	"cmp"
	"context"
	"net"
	"net/http"
	"time"

	"github.com/safedelivr/safedelivr/lab/simulator"
)

// Serve serves h until ctx ends. It then calls before and waits a few seconds for requests that are running.
func Serve(ctx context.Context, l net.Listener, h http.Handler, before func()) error {
	server := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(l) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	before()
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if err := server.Shutdown(stop); err != nil {
		_ = server.Close() // breaks the requests that did not end
	}
	<-failed
	return nil
}

// ServeSMTP serves an account that takes mail by SMTP or LMTP at an address, or on a free port of this machine if that
// is empty, until the simulator is closed.
func ServeSMTP(ctx context.Context, s *simulator.Simulator, account, address string) (*net.TCPAddr, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", cmp.Or(address, "127.0.0.1:0"))
	if err != nil {
		return nil, err
	}
	go func() { _ = s.ServeSMTP(l, account) }() // calls fail without it
	return l.Addr().(*net.TCPAddr), nil         //nolint:forcetypeassert // of a TCP listener
}
