// Package simulator imitates the HTTP APIs of email providers: SendGrid, Mailgun,
// Amazon SES, Resend, Postmark, Brevo, Mailtrap, Mailjet, SparkPost and SMTP2GO, and servers that take mail by SMTP or
// LMTP. The providers' real SDKs talk to it, and it sends webhooks that are signed like the real ones.
//
// A [Simulator] is an [http.Handler]. Each account has its own path prefix: the
// base URL of the SendGrid account "sg" is http://host/sg, that of the Mailgun
// account "mg" is http://host/mg/v3. Under /control/ is a JSON API that controls
// all of it from outside; [Client] speaks it.
//
//	sim := simulator.New(simulator.Options{RecipientKey: "sd_r"})
//	defer sim.Close()
//	sim.AddAccount(simulator.Account{Name: "sg", Kind: simulator.SendGrid, Key: "k", WebhookURL: hook})
//	server := httptest.NewServer(sim)
//
// A [Fault] sets the answer to calls and what happens to accepted mail: for an
// account, for the next N calls, or for addresses that match a pattern. An address
// sets what happens to one recipient: hardbounce@sim.test bounces, and
// blocked-sg+7@sim.test is blocked by the account sg alone (see [Outcomes]). Mail to
// any other address is delivered.
//
// The Simulator keeps what it accepted, a few dozen bytes for each copy, so that a
// test can prove that each recipient got exactly one: see [Simulator.Copies],
// [Simulator.EachCopy] and [Stats].
//
// The package knows nothing of the product that it is used to test. It has no access
// control on /control/: bind it to loopback.
//
// Each provider has a folder under internal, which holds what is its own: tables of
// routes, answers, events and suppression lists, and its checks. Package
// internal/provider has what they share. To add a provider, add a folder and a line to
// the table in account.go.
package simulator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/safedelivr/safedelivr/lab/simulator/internal/provider"
)

// Options configure a Simulator. The zero value is usable.
type Options = provider.Options

// A Simulator imitates any number of provider accounts. It is safe for concurrent
// use.
//
// Faults that close a connection or leave it without an answer panic with
// http.ErrAbortHandler. They need a real server (httptest.NewServer), not a
// recorder. Do not put the Simulator behind an http.ServeMux: a ServeMux redirects
// paths with //, which Mailgun accepts.
type Simulator struct {
	opts Options
	seed provider.Seed
	log  *slog.Logger

	faults faults
	store  atomic.Pointer[store]
	total  atomic.Pointer[tally]

	eventDelay atomic.Int64

	mu       sync.RWMutex
	accounts map[string]*account
	order    []*account
	closed   bool

	client *http.Client
	idle   func() // closes idle connections
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup // outboxes and webhook workers
}

var (
	errClosed    = errors.New("simulator is closed")
	errKeyEmpty  = errors.New("key is empty")
	errNoAccount = errors.New("no such account")
)

// New returns a Simulator without accounts. Call Close to end its goroutines.
func New(o Options) *Simulator {
	if o.TimeScale <= 0 {
		o.TimeScale = 1
	}
	o.WebhookWorkers = cmp.Or(max(o.WebhookWorkers, 0), 8)
	o.WebhookTimeout = cmp.Or(max(o.WebhookTimeout, 0), 10*time.Second)
	o.FlushEvery = cmp.Or(max(o.FlushEvery, 0), 30*time.Second)
	o.FlushCount = cmp.Or(max(o.FlushCount, 0), 2000)
	o.CallLogSize = cmp.Or(max(o.CallLogSize, 0), 100_000)

	s := &Simulator{
		opts:     o,
		seed:     provider.Seed(o.Seed),
		log:      o.Logger,
		accounts: map[string]*account{},
		idle:     func() {},
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	for s.seed == 0 {
		s.seed = provider.Seed(rand.Uint64())
	}
	s.faults.seed = s.seed
	s.store.Store(newStore())
	s.total.Store(newTally())
	s.eventDelay.Store(int64(o.EventDelay))
	s.ctx, s.cancel = context.WithCancel(context.Background())

	transport := o.Transport
	if transport == nil {
		own := &http.Transport{
			MaxIdleConnsPerHost: o.WebhookWorkers * 4,
			MaxConnsPerHost:     o.WebhookWorkers * 16,
			IdleConnTimeout:     30 * time.Second,
			DisableCompression:  true,
		}
		transport, s.idle = own, own.CloseIdleConnections
	}
	s.client = &http.Client{
		Transport: transport,
		Timeout:   o.WebhookTimeout,
		// Neither provider follows redirects of a webhook.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return s
}

// Close cuts off hanging calls and webhooks in flight, drops pending events and
// waits for the Simulator's goroutines. Later calls are answered with 503. Counters
// and copies can still be read.
func (s *Simulator) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.cancel()
	for _, a := range s.accountList() {
		a.outbox.wakeWaiters()
	}
	s.wg.Wait()
	s.idle()
}

// scaled turns simulated into real time.
func (s *Simulator) scaled(d time.Duration) time.Duration {
	return time.Duration(float64(d) / s.opts.TimeScale)
}

// ServeHTTP serves /<account>/... and /control/...
func (s *Simulator) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s.ctx.Err() != nil {
		http.Error(w, errClosed.Error(), http.StatusServiceUnavailable)
		return
	}
	path := elements(r)
	if len(path) == 0 {
		fmt.Fprint(w, "safedelivr simulator, accounts:")
		for _, a := range s.accountList() {
			fmt.Fprint(w, " ", a.name)
		}
		return
	}
	if path[0] == controlName {
		s.control(w, r, path[1:])
		return
	}
	a := s.account(path[0])
	if a == nil {
		http.Error(w, fmt.Sprintf("%s: %q", errNoAccount, path[0]), http.StatusNotFound)
		return
	}
	route, status := a.provider.Find(r, path[1:])
	switch {
	case route == nil:
		a.provider.Write(w, a.provider.Say(status))
	case route.Send != nil:
		a.exchange(w, r, route.Send)
	default:
		a.provider.Write(w, a.provider.Serve(r, route))
	}
}

// elements returns the elements of a path. Empty ones are ignored: mailgun-go makes // of a base URL that ends with a
// slash.
func elements(r *http.Request) []string {
	return strings.FieldsFunc(r.URL.Path, func(c rune) bool { return c == '/' })
}

// SendsMail reports whether a request is a call of an account that sends mail.
func (s *Simulator) SendsMail(r *http.Request) bool {
	path := elements(r)
	if len(path) == 0 || s.account(path[0]) == nil {
		return false
	}
	route, _ := s.account(path[0]).provider.Find(r, path[1:])
	return route != nil && route.Send != nil
}

func (s *Simulator) account(name string) *account {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.accounts[name]
}

// accountList returns the accounts in the order in which they were added.
func (s *Simulator) accountList() []*account {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return slices.Clone(s.order)
}

// Flush waits until all events that were due when it was called have been
// acknowledged or given up, retries included. Events that SendGrid is still
// collecting are sent at once. Flush does not wait for events that are not due yet
// (EventDelay, deferral); see Settle.
func (s *Simulator) Flush(ctx context.Context) error {
	for _, a := range s.accountList() {
		if err := a.outbox.flush(ctx); err != nil {
			return fmt.Errorf("flushing the events of account %s: %w", a.name, err)
		}
	}
	return nil
}

// Settle waits until there are no more events: it waits for those that are not due
// yet and flushes them. It does not wait for parked events. It may not return while
// mail is being accepted.
func (s *Simulator) Settle(ctx context.Context) error {
	for _, a := range s.accountList() {
		if err := a.outbox.settle(ctx); err != nil {
			return fmt.Errorf("settling the events of account %s: %w", a.name, err)
		}
	}
	return nil
}

// Stats returns the counters of the account, or those of all accounts together if
// the name is empty. An unknown account has zero counters.
func (s *Simulator) Stats(account string) Stats {
	t := s.total.Load()
	var pending int64
	if account != "" {
		a := s.account(account)
		if a == nil {
			return Stats{}
		}
		t, pending = a.tally.Load(), a.outbox.pending()
	} else {
		for _, a := range s.accountList() {
			pending += a.outbox.pending()
		}
	}
	st := t.stats()
	st.EventsPending = pending
	return st
}

// CallLog returns the last calls of the account (see Options.CallLogSize), oldest
// first. A call is logged when it ends.
func (s *Simulator) CallLog(account string) []Call {
	if a := s.account(account); a != nil {
		return a.calls.last()
	}
	return nil
}

// SetEventDelay replaces Options.EventDelay for mail that is accepted from now on.
func (s *Simulator) SetEventDelay(d time.Duration) { s.eventDelay.Store(int64(d)) }

// Reset removes all copies, counters, logged calls, listed addresses, events and faults. Accounts and
// settings stay. Calls in flight may still be counted.
func (s *Simulator) Reset() {
	s.ClearAll("")
	s.store.Store(newStore())
	s.total.Store(newTally())
	for _, a := range s.accountList() {
		a.tally.Store(newTally())
		a.calls.reset()
		a.provider.Lists.Reset()
		a.provider.Keys.Reset()
		a.outbox.reset()
	}
}
