package app

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/time/rate"

	"github.com/safedelivr/safedelivr/submission"
)

// Open connections of SMTP.
const (
	smtpConnections        = 1000 // of a listener
	smtpAddressConnections = 20   // of an address
)

// submissions takes mail by SMTP. Its fields are nil if that is off.
type submissions struct {
	server        *submission.Server
	plain, secure []net.Listener
}

// listenSMTP opens the listeners of SMTP.
func (a *App) listenSMTP(ctx context.Context) error {
	m := &a.mailbox
	if !a.cfg.Has("api") || len(a.cfg.SMTP.Listen)+len(a.cfg.SMTPS.Listen) == 0 {
		return nil
	}
	var secure *tls.Config
	if a.smtpCerts != nil {
		secure = a.smtpCerts.serverConfig()
	}
	counts := new(addressCounts)
	warned := rate.Sometimes{First: 1, Interval: time.Minute} // health checks of proxies have no header
	trusted := a.cfg.ProxyNetworks()
	limited := func(setting string, addresses []string, refuse func(net.Conn, string)) (out []net.Listener, err error) {
		for _, address := range addresses {
			l, err := listenOn(ctx, a.cfg, setting, address)
			if err != nil {
				return out, err
			}
			if a.cfg.SMTP.ProxyProtocol {
				l = newProxied(l, trusted, func(c net.Conn) {
					warned.Do(func() {
						a.log.Warn("a connection of a trusted proxy was closed: it has no PROXY header", "address", addressOf(c).String())
					})
					refuse(c, "The proxy sent no PROXY header.")
				})
			}
			out = append(out, newPlaces(&addressLimiter{
				Listener: l, trusted: trusted, most: smtpAddressConnections, counts: counts,
				refuse: func(c net.Conn) {
					go a.pressure.note()
					refuse(c, "Too many connections of this address are open.")
				},
			}, smtpConnections))
		}
		return out, nil
	}
	var err error
	if m.plain, err = limited("smtp.listen", a.cfg.SMTP.Listen, submission.Refuse); err != nil {
		return err
	}
	if m.secure, err = limited("smtps.listen", a.cfg.SMTPS.Listen, func(c net.Conn, _ string) { _ = c.Close() }); err != nil {
		return err
	}
	if secure == nil && !onLoopback(m.plain) {
		a.log.Warn("SMTP has no certificate, so only clients on this machine can log in; " +
			"set SAFEDELIVR_SMTP_TLS_CERT and _KEY")
	}
	m.server = submission.New(a.service, submission.Config{
		TLS: secure, Logger: a.log, Refused: a.pressure.note, Context: placed,
	})
	return nil
}

// onLoopback reports whether only this machine reaches listeners.
func onLoopback(ls []net.Listener) bool {
	return !slices.ContainsFunc(ls, func(l net.Listener) bool {
		at, err := netip.ParseAddrPort(l.Addr().String())
		return err != nil || !at.Addr().Unmap().IsLoopback()
	})
}

// serve serves the listeners until stop is called.
func (m *submissions) serve(failed chan<- error) {
	each := func(ls []net.Listener, serve func(net.Listener) error) {
		for _, l := range ls {
			go func() {
				if err := serve(l); err != nil {
					failed <- fmt.Errorf("smtp: %w", err)
				}
			}()
		}
	}
	if m.server != nil {
		each(m.plain, m.server.Serve)
		each(m.secure, m.server.ServeTLS)
	}
}

// stop accepts no more messages, and waits until ctx ends for those that are being taken.
func (m *submissions) stop(ctx context.Context) {
	if m.server != nil {
		m.server.Stop(ctx)
	}
}

// close closes the listeners of a process that is not served.
func (m *submissions) close() {
	for _, l := range slices.Concat(m.plain, m.secure) {
		_ = l.Close() // after stop it is closed already
	}
}
