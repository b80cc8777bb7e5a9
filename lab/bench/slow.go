package main

import (
	"fmt"
	"io"
	"net"
	"net/smtp"
	"sync/atomic"
	"time"
)

const (
	slowClients    = 200
	slowAddresses  = 10 // of this machine, because each may have 20 connections
	slowPause      = 100 * time.Millisecond
	slowLine       = "It comes line by line.\r\n"
	slowSubmission = "From: shop@bench.test\r\nTo: user@bench.test\r\nSubject: Slow\r\n\r\n"
)

// slow measures urgent mail while many clients hand over messages by SMTP, a line at a time.
func (b *bench) slow(be *backend) error {
	addr, err := freeAddr()
	if err != nil {
		return err
	}
	title := fmt.Sprintf("urgent mail, post to provider, while %d clients send slowly by SMTP", slowClients)
	return b.attacked(be, title, func(r *rig) (func() string, error) { return r.sendSlowly(addr) },
		"SAFEDELIVR_SMTP_LISTEN="+addr)
}

// sendSlowly begins messages on many connections, and goes on with them until stop is called.
func (r *rig) sendSlowly(addr string) (stop func() string, err error) {
	var lines atomic.Int64
	var conns []net.Conn
	stop = func() string {
		for _, c := range conns {
			_ = c.Close()
		}
		return fmt.Sprintf("%d lines on %d connections", lines.Load(), len(conns))
	}
	for i := range slowClients {
		from := &net.TCPAddr{IP: net.IPv4(127, 66, 1, byte(1+i%slowAddresses))}
		c, err := (&net.Dialer{LocalAddr: from}).DialContext(r.b.ctx, "tcp", addr)
		if err != nil {
			return stop, err
		}
		conns = append(conns, c)
		w, err := r.beginMessage(c, addr)
		if err != nil {
			stop()
			return stop, err
		}
		go func() {
			for err := error(nil); err == nil; time.Sleep(slowPause) { // until the connection is closed
				if _, err = io.WriteString(w, slowLine); err == nil {
					lines.Add(1)
				}
			}
		}()
	}
	return stop, nil
}

// beginMessage logs in and begins a message.
func (r *rig) beginMessage(c net.Conn, addr string) (io.Writer, error) {
	host, _, _ := net.SplitHostPort(addr)
	client, err := smtp.NewClient(c, host)
	if err != nil {
		return nil, err
	}
	for _, step := range []func() error{
		func() error { return client.Auth(smtp.PlainAuth("", "bench", r.secret, host)) },
		func() error { return client.Mail("shop@bench.test") },
		func() error { return client.Rcpt("user@bench.test") },
	} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	if _, err = client.Data(); err != nil {
		return nil, err
	}
	_, err = io.WriteString(c, slowSubmission)
	return c, err
}
