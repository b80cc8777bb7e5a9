package simulator

import (
	"fmt"
	"regexp"
	"sync/atomic"
	"time"

	"github.com/safedelivr/safedelivr/lab/simulator/internal/brevo"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/mailgun"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/mailjet"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/mailtrap"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/message"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/postmark"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/provider"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/resend"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/sendgrid"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/ses"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/smtp"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/smtp2go"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/sparkpost"
)

// The providers that can be simulated.
const (
	SendGrid  = "sendgrid"
	Mailgun   = "mailgun"
	Postmark  = "postmark"
	Resend    = "resend"
	SMTP      = "smtp"
	LMTP      = "lmtp"
	Mailjet   = "mailjet"
	SparkPost = "sparkpost"
	SES       = "ses"
	Brevo     = "brevo"
	Mailtrap  = "mailtrap"
	SMTP2GO   = "smtp2go"
)

// SESTopic begins the ARN of the topic of an account at Amazon SES. The name of the account follows.
const SESTopic = ses.Topic

// providers holds the constructor of each kind.
var providers = map[string]func(*provider.Account) (*provider.Provider, error){
	SendGrid:  sendgrid.New,
	Mailgun:   mailgun.New,
	Postmark:  postmark.New,
	Resend:    resend.New,
	SMTP:      smtp.New,
	LMTP:      smtp.New,
	Mailjet:   mailjet.New,
	SparkPost: sparkpost.New,
	SES:       ses.New,
	Brevo:     brevo.New,
	Mailtrap:  mailtrap.New,
	SMTP2GO:   smtp2go.New,
}

// An Account is a customer account at a simulated provider.
type Account = provider.Customer

// An account is an Account in use.
type account struct {
	s        *Simulator
	name     string
	provider *provider.Provider
	outbox   *outbox

	latency atomic.Int64
	serial  atomic.Uint64 // number of the last batch
	tally   atomic.Pointer[tally]
	calls   callLog
}

var accountName = regexp.MustCompile(`^[a-z0-9_-]{1,40}$`)

// AddAccount opens an account. Its name must be new.
func (s *Simulator) AddAccount(c Account) error {
	if !accountName.MatchString(c.Name) || c.Name == controlName {
		return fmt.Errorf("account name %q: want 1 to 40 of a-z 0-9 - _, and not %q", c.Name, controlName)
	}
	a, err := s.newAccount(c)
	if err != nil {
		return fmt.Errorf("account %s: %w", c.Name, err)
	}
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

func (s *Simulator) newAccount(c Account) (*account, error) {
	open := providers[c.Kind]
	if open == nil {
		return nil, fmt.Errorf("unknown kind %q", c.Kind)
	}
	if c.Key == "" {
		return nil, errKeyEmpty
	}
	if err := provider.CheckURL(c.WebhookURL); err != nil {
		return nil, err
	}
	a := &account{s: s, name: c.Name, calls: callLog{size: s.opts.CallLogSize}}
	a.latency.Store(int64(s.opts.Latency))
	a.tally.Store(newTally())
	var err error
	lent := &provider.Account{
		Customer: c,
		IDs:      provider.NewIDs(s.seed, c.Name),
		Webhooks: &provider.Webhooks{},
		Lists:    &provider.Lists{},
		Keys:     &provider.Keys{},
		Options:  s.opts,
		Scale:    s.scaled,
		Log:      func(until time.Time) []message.Event { return a.outbox.happened(until) },
	}
	lent.Webhooks.SetURL(c.WebhookURL)
	a.provider, err = open(lent)
	if err != nil {
		return nil, err
	}
	a.provider.Complete()
	a.outbox = newOutbox(a)
	return a, nil
}

// Accounts returns the accounts in the order in which they were added.
func (s *Simulator) Accounts() []Account {
	list := []Account{}
	for _, a := range s.accountList() {
		c := a.provider.Customer
		c.WebhookURL = a.provider.Webhooks.URL()
		list = append(list, c)
	}
	return list
}

// PublicKey returns the key that verifies the webhooks of a SendGrid account, as
// SendGrid shows it: base64 of a DER SubjectPublicKeyInfo. It is empty for other
// accounts.
func (s *Simulator) PublicKey(account string) string {
	if a := s.account(account); a != nil {
		return a.provider.PublicKey
	}
	return ""
}

// SetWebhookURL sends the events of the account to another URL from now on,
// including pending ones. An empty URL means nowhere. SetWebhookURL ignores an
// unknown account, and logs and ignores a URL that is not valid.
func (s *Simulator) SetWebhookURL(account, url string) {
	a := s.account(account)
	if a == nil {
		return
	}
	if err := provider.CheckURL(url); err != nil {
		s.log.Error("simulator: webhook URL not set", "account", account, "err", err)
		return
	}
	a.provider.Webhooks.SetURL(url)
}

// SetLatency replaces Options.Latency for the account, or for all if the name is
// empty.
func (s *Simulator) SetLatency(account string, d time.Duration) {
	for _, a := range s.accountList() {
		if account == "" || a.name == account {
			a.latency.Store(int64(d))
		}
	}
}

// tallies returns the counters of the account and those of all accounts.
func (a *account) tallies() tallies { return tallies{a.tally.Load(), a.s.total.Load()} }
