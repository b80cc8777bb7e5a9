package simulator

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Options configure a Simulator. The zero value is usable.
type Options struct {
	// RecipientKey is the metadata key (SendGrid custom arg, Mailgun v:
	// variable) whose value identifies a copy. If it is empty or a message
	// lacks it, the address in lower case does.
	RecipientKey string

	// TimeScale is how many simulated seconds pass in a real one; 0 means 1. It
	// applies to everything the vendors give as a time of their own: flush
	// timers, deferral, retry schedules. It does not apply to Latency,
	// EventDelay, LookupLag, a fault's Delay, nor to timestamps in events, which
	// are the real time.
	TimeScale float64

	// EventDelay is the time from acceptance (plus Latency) to the first event,
	// real time. With 0 an event can overtake the answer to its call.
	EventDelay time.Duration

	Latency     time.Duration // answer time of every send, real time; a mail is stored at its beginning
	LookupLag   time.Duration // how long after it happened an event shows in Mailgun's Events API, real time
	KeepContent bool          // keep rendered subject and bodies of copies; off for large runs

	Logger *slog.Logger // nil = none
	Seed   uint64       // of all that is random; 0 = a new one each time

	WebhookWorkers int               // parallel webhook requests per account; 0 = 8
	WebhookTimeout time.Duration     // 0 = 10s
	Transport      http.RoundTripper // for webhooks; nil = an own one

	FlushEvery time.Duration // SendGrid: events are collected for so long, simulated time; 0 = 30s
	FlushCount int           // SendGrid: or until there are so many; 0 = 2000

	// Switches for what the vendors leave open.

	ResignRetries     bool // a repeated webhook is signed anew, with a new timestamp
	NewEventIDOnRetry bool // SendGrid: a repeated event has another sg_event_id
	RetryDelivered    bool // Mailgun: delivered is retried like other events

	CallLogSize int // calls kept per account; 0 = 100,000
}

// A Simulator is the stand-in for any number of provider accounts. It is safe
// for concurrent use.
//
// Faults that close a connection or leave it without an answer panic with
// http.ErrAbortHandler, as net/http asks for: they need a real server
// (httptest.NewServer), not a recorder. Do not put the Simulator behind an
// http.ServeMux: that redirects paths with // in them, which Mailgun tolerates.
type Simulator struct {
	opts Options
	seed uint64
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
	idle   func() // closes idle connections of the own transport
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup // pumps and webhook workers
}

var errClosed = errors.New("simulator is closed")

// New returns a Simulator without accounts. Close it to end its goroutines.
func New(o Options) *Simulator {
	if o.TimeScale <= 0 {
		o.TimeScale = 1
	}
	o.WebhookWorkers = orDefault(o.WebhookWorkers, 8)
	o.WebhookTimeout = orDefault(o.WebhookTimeout, 10*time.Second)
	o.FlushEvery = orDefault(o.FlushEvery, 30*time.Second)
	o.FlushCount = orDefault(o.FlushCount, 2000)
	o.CallLogSize = orDefault(o.CallLogSize, 100_000)

	s := &Simulator{opts: o, seed: o.Seed, log: o.Logger, accounts: map[string]*account{}, idle: func() {}}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	for s.seed == 0 {
		var b [8]byte
		rand.Read(b[:])
		s.seed = binary.BigEndian.Uint64(b[:])
	}
	s.faults.s = s
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
		// Neither vendor follows redirects of a webhook.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return s
}

func orDefault[T int | time.Duration](v, otherwise T) T {
	if v <= 0 {
		return otherwise
	}
	return v
}

// Close ends everything that runs: hanging calls are cut off, webhooks in flight
// are broken off and pending events are dropped. It waits for the Simulator's
// goroutines. Calls that come later are answered with 503. What was counted can
// still be read.
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
	// Empty elements are left out: mailgun-go makes // of a base with a slash at
	// its end.
	path := strings.FieldsFunc(r.URL.Path, func(c rune) bool { return c == '/' })
	if len(path) == 0 {
		fmt.Fprintln(w, "safedelivr simulator, accounts:", strings.Join(s.names(), " "))
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
	a.provider.serve(w, r, path[1:])
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

func (s *Simulator) names() (list []string) {
	for _, a := range s.accountList() {
		list = append(list, a.name)
	}
	return list
}

// Flush waits until all events that were due when it was called have been
// acknowledged or given up, retries included. Events that SendGrid is still
// collecting are sent at once. Events that are not due yet (EventDelay,
// deferral) are not waited for, see Settle.
func (s *Simulator) Flush(ctx context.Context) error {
	for _, a := range s.accountList() {
		if err := a.outbox.flush(ctx); err != nil {
			return fmt.Errorf("flushing the events of account %s: %w", a.name, err)
		}
	}
	return nil
}

// Settle waits until no event is to come any more: it waits for those that are
// not due yet and flushes them. Parked events are not waited for. While mail
// keeps being accepted it may not end.
func (s *Simulator) Settle(ctx context.Context) error {
	for _, a := range s.accountList() {
		if err := a.outbox.settle(ctx); err != nil {
			return fmt.Errorf("settling the events of account %s: %w", a.name, err)
		}
	}
	return nil
}

// Stats returns the counters of the account, for the name "" of all together. An
// unknown name has zero counters.
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

// CallLog returns the last calls of the account (Options.CallLogSize), oldest
// first. A call is entered when it ends.
func (s *Simulator) CallLog(account string) []Call {
	if a := s.account(account); a != nil {
		return a.calls.list()
	}
	return nil
}

// SetEventDelay replaces Options.EventDelay for mail accepted from now on.
func (s *Simulator) SetEventDelay(d time.Duration) { s.eventDelay.Store(int64(d)) }

// Reset forgets all copies, counters, logged calls, events and faults. Accounts
// and settings stay. Calls in flight may still count.
func (s *Simulator) Reset() {
	s.ClearAll("")
	s.store.Store(newStore())
	s.total.Store(newTally())
	for _, a := range s.accountList() {
		a.tally.Store(newTally())
		a.calls.reset()
		a.outbox.reset()
	}
}
