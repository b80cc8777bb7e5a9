package simulator

import (
	"fmt"
	"hash/fnv"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Kind names a provider.
type Kind = string

// The providers that can be simulated.
const (
	SendGrid = "sendgrid"
	Mailgun  = "mailgun"
)

// An Account is one set of credentials at a simulated provider.
type Account struct {
	Name       string `json:"name"` // path prefix; a-z 0-9 - _
	Kind       string `json:"kind"`
	Key        string `json:"key"`                   // API key; requests with another one get 401
	Domain     string `json:"domain,omitempty"`      // Mailgun: sending domain; another one gets 404
	WebhookURL string `json:"webhook_url,omitempty"` // where events are posted; empty = nowhere
	// SigningKey signs webhooks. Mailgun: the HTTP webhook signing key, required
	// if there is a WebhookURL. SendGrid: an ECDSA P-256 private key, PEM or
	// base64 of PKCS#8; empty = one is generated, see Simulator.PublicKey.
	SigningKey string `json:"signing_key,omitempty"`
}

// A provider is the part of an account that differs from vendor to vendor.
type provider interface {
	// serve answers a request; path is what follows the account's name.
	serve(w http.ResponseWriter, r *http.Request, path []string)
	// id is what the API answered as the id of the mailing.
	id(m *mailing) string
	// describe fills in the vendor's own fields of c.
	describe(c *Account)
	// publicKey verifies webhooks; "" if they are signed with a shared secret.
	publicKey() string
	// reserved tells the names that metadata may not take in an event.
	reserved(key string) bool
	// answer is what the vendor says in the situation of the fault.
	answer(f *fault) answer
	// accepted is the answer to a call that was stored.
	accepted(m *mailing) answer
	courier
}

// providers makes the provider of an account, by kind.
var providers = map[string]func(*account, Account) (provider, error){
	SendGrid: newSendgrid,
	Mailgun:  newMailgun,
}

// An account is an Account at work.
type account struct {
	s        *Simulator
	name     string
	kind     string
	key      string
	salt     uint64 // part of all its ids
	provider provider
	outbox   *outbox

	latency  atomic.Int64
	serial   atomic.Uint64 // number of the last mailing
	lastHead atomic.Pointer[head]
	tally    atomic.Pointer[tally]
	calls    callLog

	mu    sync.Mutex
	hook  string
	hooks map[string][]string // Mailgun: by webhook type, where it differs from hook
}

var accountName = regexp.MustCompile(`^[a-z0-9_-]{1,40}$`)

// AddAccount opens an account. Its name must be new.
func (s *Simulator) AddAccount(c Account) error {
	if !accountName.MatchString(c.Name) || c.Name == controlName {
		return fmt.Errorf("account name %q: want 1 to 40 of a-z 0-9 - _, and not %q", c.Name, controlName)
	}
	make := providers[c.Kind]
	if make == nil {
		return fmt.Errorf("account %s: unknown kind %q", c.Name, c.Kind)
	}
	if c.Key == "" {
		return fmt.Errorf("account %s: key is empty", c.Name)
	}
	if err := checkURL(c.WebhookURL); err != nil {
		return fmt.Errorf("account %s: %w", c.Name, err)
	}
	hash := fnv.New64a()
	hash.Write([]byte(c.Name))
	a := &account{s: s, name: c.Name, kind: c.Kind, key: c.Key, salt: hash.Sum64(), hook: c.WebhookURL,
		calls: callLog{size: s.opts.CallLogSize}}
	a.latency.Store(int64(s.opts.Latency))
	a.tally.Store(newTally())
	var err error
	if a.provider, err = make(a, c); err != nil {
		return fmt.Errorf("account %s: %w", c.Name, err)
	}
	a.outbox = newOutbox(a)

	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errClosed
	}
	if s.accounts[a.name] != nil {
		return fmt.Errorf("account %s exists already", a.name)
	}
	s.accounts[a.name] = a
	s.order = append(s.order, a)
	s.wg.Add(1)
	go a.outbox.run()
	return nil
}

func checkURL(text string) error {
	if text == "" {
		return nil
	}
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return fmt.Errorf("webhook URL %q: want http or https with a host", text)
	}
	return nil
}

// Accounts returns the accounts as they are now, in the order in which they were
// added.
func (s *Simulator) Accounts() []Account {
	list := []Account{}
	for _, a := range s.accountList() {
		c := Account{Name: a.name, Kind: a.kind, Key: a.key, WebhookURL: a.hookURL()}
		a.provider.describe(&c)
		list = append(list, c)
	}
	return list
}

// PublicKey returns what verifies the webhooks of a SendGrid account, as the
// vendor shows it: base64 of a DER SubjectPublicKeyInfo. It is empty for other
// accounts.
func (s *Simulator) PublicKey(account string) string {
	if a := s.account(account); a != nil {
		return a.provider.publicKey()
	}
	return ""
}

// SetWebhookURL sends the events of the account elsewhere from now on, pending
// ones included; empty = nowhere. Unknown accounts and URLs that cannot be used
// are ignored, the latter logged.
func (s *Simulator) SetWebhookURL(account, url string) {
	a := s.account(account)
	if a == nil {
		return
	}
	if err := checkURL(url); err != nil {
		s.log.Error("simulator: webhook URL not set", "account", account, "err", err)
		return
	}
	a.mu.Lock()
	a.hook, a.hooks = url, nil
	a.mu.Unlock()
}

// SetLatency replaces Options.Latency for the account; for the name "" for all.
func (s *Simulator) SetLatency(account string, d time.Duration) {
	for _, a := range s.accountList() {
		if account == "" || a.name == account {
			a.latency.Store(int64(d))
		}
	}
}

func (a *account) hookURL() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.hook
}

// hookURLs returns where events of this webhook type go.
func (a *account) hookURLs(kind string) []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if list, ok := a.hooks[kind]; ok {
		return slices.Clone(list)
	}
	if a.hook == "" {
		return nil
	}
	return []string{a.hook}
}
