// Package simulated has the simulated providers that the demo, the fault drill, the end-to-end tests and the benchmarks
// send through, and the settings of Safedelivr that belong to them.
package simulated

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/lab/simulator"
	"github.com/safedelivr/safedelivr/providers"
)

// RecipientKey is the metadata that names a recipient in what the adapters send.
const RecipientKey = "sd_log"

// SendGridKey signs the simulated SendGrid's webhooks, and SendGridPublicKey verifies them. They protect nothing: they
// are here so that a demonstration needs no set-up.
const (
	SendGridKey = "MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgvItwxXPD4RZPNv1nfN8wANLJrjQpKpDYGbxN" +
		"lj7QGzuhRANCAAQ39MPiABZmeyXhiYOZGsvwNYuhJ1WNM65cOSUaleSiYQsnEn3WQXiQdElufwA8jYrNQrsysL1Kv715M6wyMLW7"
	SendGridPublicKey = "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEN/TD4gAWZnsl4YmDmRrL8DWLoSdVjTOu" +
		"XDklGpXkomELJxJ91kF4kHRJbn8API2KzUK7MrC9Sr+9eTOsMjC1uw=="
)

// The other credentials of the simulated providers.
const (
	APIKey     = "simulated-key"
	MailgunKey = "simulated-signing-key" // signs Mailgun's webhooks
	Domain     = "mail.demo.test"

	secret  = "hook:simulated-secret"                  // comes with webhooks that are not signed
	svixKey = "whsec_c2ltdWxhdGVkLXNpZ25pbmcta2V5LTE=" // signs Resend's
)

// A kind says how simulator and Safedelivr are set up for a kind of provider, beside its name and its base URL.
type kind struct {
	simulator.Account          // Name is that of the kind
	settings          []string // besides KIND and BASE_URL
	bounce            string   // a webhook that reports one, with <log>, <number> and <time>
}

// keyed returns a kind with an API key and a key of webhooks.
func keyed(name, signing, verifies, bounce string, more ...string) kind {
	return kind{simulator.Account{Kind: name, Key: APIKey, SigningKey: signing},
		append([]string{"API_KEY=" + APIKey, "WEBHOOK_KEY=" + verifies}, more...), bounce}
}

var kinds = []kind{
	keyed(simulator.SendGrid, SendGridKey, SendGridPublicKey,
		`[{"event":"bounce","type":"bounce","status":"5.1.1","email":"x@rehearse.test","timestamp":<time>,`+
			`"sg_event_id":"forged<number>","sd_log":"<log>","sd_attempt":"1"}]`),
	{simulator.Account{Kind: simulator.Mailgun, Key: APIKey, SigningKey: MailgunKey, Domain: Domain},
		[]string{"API_KEY=" + APIKey, "WEBHOOK_KEY=" + MailgunKey, "DOMAIN=" + Domain},
		`{"signature":{"timestamp":"<time>","token":"` + strings.Repeat("0", 40) + `<number>","signature":"` +
			strings.Repeat("0", 64) + `"},"event-data":{"event":"failed","severity":"permanent","reason":"bounce",` +
			`"id":"forged<number>","timestamp":<time>.5,"recipient":"x@rehearse.test","user-variables":{"sd_log":"<log>",` +
			`"sd_attempt":"1"},"delivery-status":{"code":550,"message":"5.1.1 no such user"}}}`},
	{simulator.Account{Kind: simulator.SES, Key: "AKSIMULATED:" + APIKey},
		[]string{"REGION=us-east-1", "ACCESS_KEY_ID=AKSIMULATED", "SECRET_ACCESS_KEY=" + APIKey, "CONFIGURATION_SET=mail",
			"TOPICS=arn:aws:sns:us-east-1:123456789012:ses"},
		`{"Type":"Notification","MessageId":"<number>","TopicArn":"arn:aws:sns:us-east-1:123456789012:ses",` +
			`"Timestamp":"2026-01-01T00:00:00Z","SignatureVersion":"2","Signature":"AAAA","Message":"{}"}`},
	keyed(simulator.Resend, svixKey, svixKey,
		`{"type":"email.bounced","created_at":"2026-01-01T00:00:00Z","data":{"email_id":"forged<number>",`+
			`"to":["x@rehearse.test"],"tags":{"sd_log":"<log>","sd_attempt":"1"},"bounce":{"type":"Permanent"}}}`),
	keyed(simulator.Postmark, secret, secret,
		`{"RecordType":"Bounce","ID":<number>,"Type":"HardBounce","Email":"x@rehearse.test",`+
			`"BouncedAt":"2026-01-01T00:00:00Z","Metadata":{"sd_log":"<log>","sd_attempt":"1"}}`),
	keyed(simulator.Brevo, secret, secret,
		`{"event":"hard_bounce","email":"x@rehearse.test","ts_epoch":<time>000,"message-id":"<forged<number>@sim.test>",`+
			`"X-Mailin-custom":"{\"sd_log\":\"<log>\",\"sd_attempt\":\"1\"}"}`),
	keyed(simulator.Mailtrap, MailgunKey, MailgunKey,
		`{"events":[{"event":"bounce","event_id":"forged<number>","email":"x@rehearse.test","timestamp":<time>,`+
			`"custom_variables":{"sd_log":"<log>","sd_attempt":"1"}}]}`),
	{simulator.Account{Kind: simulator.Mailjet, Key: APIKey + ":" + APIKey, SigningKey: secret},
		[]string{"API_KEY=" + APIKey, "SECRET_KEY=" + APIKey, "WEBHOOK_KEY=" + secret},
		`[{"event":"bounce","email":"x@rehearse.test","time":<time>,"CustomID":"<log>.1","hard_bounce":true}]`},
	keyed(simulator.SparkPost, secret, secret,
		`[{"msys":{"message_event":{"type":"bounce","event_id":"forged<number>","timestamp":"<time>","bounce_class":"10",`+
			`"rcpt_to":"x@rehearse.test","rcpt_meta":{"sd_log":"<log>","sd_attempt":"1"}}}}]`),
	keyed(simulator.SMTP2GO, secret, secret,
		`{"event":"bounce","bounce":"hard","rcpt":"x@rehearse.test","time":"2026-01-01T00:00:00Z",`+
			`"email_id":"forged<number>","X-Sd-Log":"<log>","X-Sd-Attempt":"1"}`),
	{simulator.Account{Kind: simulator.SMTP, Key: APIKey}, smtpSettings, ""},
	{simulator.Account{Kind: simulator.LMTP, Key: APIKey}, smtpSettings, ""},
}

var smtpSettings = []string{"HOST=127.0.0.1", "TLS=none", "USER=simulated", "PASSWORD=" + APIKey}

// Kinds returns the kinds of provider that can be simulated.
func Kinds() []string {
	var names []string
	for i := range kinds {
		names = append(names, kinds[i].Kind)
	}
	return names
}

// A Provider is a simulated provider. Its name is the usual one of its kind.
type Provider struct {
	simulator.Account
	Title    string   // of the kind, for people
	settings []string // without the name of the provider
	bounce   string
	server   bool // it takes mail by SMTP or LMTP, and reports nothing
	plain    bool // it takes no header fields of recipients
	looksUp  bool // it can be asked for past events
	single   bool // it takes no mail to several addresses
}

// A Pair is two providers of different kinds. The first is the one that breaks.
type Pair [2]Provider

// Usual is SendGrid as sg and Mailgun as mg.
var Usual = Pair{newProvider(&kinds[0]), newProvider(&kinds[1])}

// NewPair returns the providers of two kinds, or of the usual ones if none is named.
func NewPair(names ...string) (p Pair, err error) {
	if len(names) == 0 {
		return Usual, nil
	}
	if len(names) != len(p) || names[0] == names[1] {
		return p, fmt.Errorf("want two different kinds of %s", strings.Join(Kinds(), ", "))
	}
	for n, name := range names {
		i := slices.IndexFunc(kinds, func(k kind) bool { return k.Kind == name })
		if i < 0 {
			return p, fmt.Errorf("%q cannot be simulated: want two of %s", name, strings.Join(Kinds(), ", "))
		}
		p[n] = newProvider(&kinds[i])
	}
	return p, nil
}

func newProvider(k *kind) Provider {
	about, _ := providers.Find(k.Kind) // each kind that is simulated is one of providers
	p := Provider{Account: k.Account, Title: about.Title, settings: append([]string{"KIND=" + k.Kind}, k.settings...),
		bounce: k.bounce, server: about.Server, plain: !about.Carries.Headers,
		looksUp: about.LooksUp, single: !about.Carries.Copies}
	p.Name = about.Short
	return p
}

// Bounce returns a webhook, without a signature, that reports a bounce of a log. Its number makes it differ from
// others.
func (p *Provider) Bounce(log string, number int, at time.Time) string {
	return strings.NewReplacer("<log>", log, "<number>", fmt.Sprintf("%010d", number),
		"<time>", strconv.FormatInt(at.Unix(), 10)).Replace(p.bounce)
}

// Silent reports whether a provider reports nothing about accepted mail: it takes mail by SMTP or LMTP.
func (p Pair) Silent(name string) bool {
	return p[0].Name == name && p[0].server || p[1].Name == name && p[1].server
}

// LooksUp reports whether a provider can be asked for past events.
func (p Pair) LooksUp(name string) bool {
	return p[0].Name == name && p[0].looksUp || p[1].Name == name && p[1].looksUp
}

// Single returns the names of the providers that take no mail to several addresses.
func (p Pair) Single() (names []string) {
	for i := range p {
		if p[i].single {
			names = append(names, p[i].Name)
		}
	}
	return names
}

// Plain reports whether a provider takes no header fields of recipients.
func (p Pair) Plain() bool { return p[0].plain || p[1].plain }

// Names returns the names of the providers.
func (p Pair) Names() []string { return []string{p[0].Name, p[1].Name} }

// Open opens the accounts at a simulator. Those that take mail by SMTP or LMTP listen on this machine until it is
// closed.
func (p *Pair) Open(ctx context.Context, s *simulator.Simulator, hooks string) error {
	for i, a := range p.Accounts(hooks) {
		if err := s.AddAccount(a); err != nil {
			return err
		}
		if !p[i].server {
			continue
		}
		at, err := ServeSMTP(ctx, s, a.Name, "")
		if err != nil {
			return err
		}
		p[i].settings = append(slices.Clone(p[i].settings), "PORT="+strconv.Itoa(at.Port))
	}
	return nil
}

// Accounts returns the providers as the simulator knows them. Webhooks go to the address hooks followed by the name;
// they go nowhere if it is empty.
func (p Pair) Accounts(hooks string) []simulator.Account {
	var out []simulator.Account
	for _, one := range p {
		if hooks != "" && !one.server {
			one.WebhookURL = hooks + one.Name
		}
		out = append(out, one.Account)
	}
	return out
}

// Settings returns the environment of a Safedelivr that sends through the simulator at url. Each of more, such as
// TIMEOUT=2s, is set for both providers.
func (p Pair) Settings(url string, more ...string) []string {
	var out []string
	for _, one := range p {
		if !one.server {
			one.settings = append(slices.Clone(one.settings), "BASE_URL="+url+"/"+one.Name)
		}
		for _, s := range slices.Concat(one.settings, more) {
			out = append(out, "SAFEDELIVR_PROVIDERS_"+strings.ToUpper(one.Name)+"_"+s)
		}
	}
	return out
}

// Fill replaces <first> and <second> in a text by the titles of the providers.
func (p Pair) Fill(text string) string {
	return strings.NewReplacer("<first>", p[0].Title, "<second>", p[1].Title).Replace(text)
}
