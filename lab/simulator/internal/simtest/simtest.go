// Package simtest helps to test the simulator through the providers' real SDKs.
package simtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"time"

	mgsdk "github.com/mailgun/mailgun-go/v4"
	"github.com/sendgrid/rest"
	sgsdk "github.com/sendgrid/sendgrid-go"
	"github.com/sendgrid/sendgrid-go/helpers/mail"

	"github.com/safedelivr/safedelivr/lab/simulator"
)

// What the accounts of a Rig have.
const (
	RecipientKey = "sd_r"
	Domain       = "mg.sim.test"
	SigningKey   = "webhook-signing-key"
	SendGridKey  = "SG.key"
	MailgunKey   = "mg-key"
)

// A Rig is a simulator with the accounts sg and mg, and a receiver of their
// webhooks.
type Rig struct {
	*simulator.Simulator
	URL   string
	Hooks *Receiver
	HTTP  *http.Client
}

// New returns a Rig. It is closed when the test ends.
func New(t *testing.T, o simulator.Options) *Rig {
	t.Helper()
	if o.RecipientKey == "" {
		o.RecipientKey = RecipientKey
	}
	if o.Seed == 0 {
		o.Seed = 42
	}
	r := &Rig{Simulator: simulator.New(o), Hooks: &Receiver{changed: make(chan struct{})}}
	hooks := httptest.NewServer(r.Hooks)
	server := httptest.NewServer(r.Simulator)
	transport := &http.Transport{MaxIdleConnsPerHost: 16}
	r.HTTP = &http.Client{Transport: transport}
	r.URL = server.URL
	t.Cleanup(func() {
		r.Close()
		transport.CloseIdleConnections()
		server.Close()
		hooks.Close()
	})
	for _, a := range []simulator.Account{
		{
			Name:       "sg",
			Kind:       simulator.SendGrid,
			Key:        SendGridKey,
			WebhookURL: hooks.URL + "/sg",
		},
		{
			Name:       "mg",
			Kind:       simulator.Mailgun,
			Key:        MailgunKey,
			Domain:     Domain,
			WebhookURL: hooks.URL + "/mg",
			SigningKey: SigningKey,
		},
	} {
		if err := r.AddAccount(a); err != nil {
			t.Fatal(err)
		}
	}
	r.Hooks.publicKey = r.PublicKey("sg")
	return r
}

// SettleAll waits until there are no more events.
func (r *Rig) SettleAll(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := r.Settle(ctx); err != nil {
		t.Fatalf("Settle: %v (stats %+v)", err, r.Stats(""))
	}
}

// SendGrid sends through SendGrid's SDK.
func (r *Rig) SendGrid(ctx context.Context, account string, m *mail.SGMailV3) (*rest.Response, error) {
	body, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	return r.SendGridRaw(ctx, account, SendGridKey, body)
}

// SendGridRaw sends a body through SendGrid's SDK.
func (r *Rig) SendGridRaw(ctx context.Context, account, key string, body []byte) (*rest.Response, error) {
	request := sgsdk.GetRequest(key, "/v3/mail/send", r.URL+"/"+account)
	request.Method = http.MethodPost
	request.Body = body
	return (&rest.Client{HTTPClient: r.HTTP}).SendWithContext(ctx, request)
}

// SendGridMail returns a message with one personalization per address. The i-th has
// the recipient id prefix+i.
func SendGridMail(prefix string, addrs ...string) *mail.SGMailV3 {
	m := mail.NewV3Mail()
	m.SetFrom(mail.NewEmail("Sender", "from@example.com"))
	m.Subject = "Hello {{name}}"
	m.AddContent(
		mail.NewContent("text/plain", "Dear {{name}}, code {{code}}"),
		mail.NewContent("text/html", "<p>Dear {{name}}</p>"),
	)
	m.SetCustomArg("sd_a", "attempt-1")
	for i, addr := range addrs {
		p := mail.NewPersonalization()
		p.AddTos(mail.NewEmail("", addr))
		p.SetCustomArg(RecipientKey, prefix+strconv.Itoa(i))
		p.SetSubstitution("{{name}}", fmt.Sprintf("Name %d", i))
		p.SetSubstitution("{{code}}", `"<&>"`)
		m.AddPersonalizations(p)
	}
	return m
}

// Mailgun sends through Mailgun's SDK.
func (r *Rig) Mailgun(ctx context.Context, m *mgsdk.Message) (id string, err error) {
	_, id, err = r.MailgunClient().Send(ctx, m)
	return id, err
}

// MailgunClient returns Mailgun's SDK for the account mg.
func (r *Rig) MailgunClient() *mgsdk.MailgunImpl {
	mg := mgsdk.NewMailgun(Domain, MailgunKey)
	mg.SetAPIBase(r.URL + "/mg/v3")
	mg.SetClient(r.HTTP)
	return mg
}

// MailgunMail returns a message to the addresses. The i-th has the recipient id
// prefix+i.
func MailgunMail(t *testing.T, prefix string, addrs ...string) *mgsdk.Message {
	t.Helper()
	m := mgsdk.NewMessage("Sender <from@"+Domain+">", "Hello %recipient.name%",
		"Dear %recipient.name%, code %recipient.code%")
	m.SetHTML("<p>Dear %recipient.name%</p>")
	if err := m.AddVariable(RecipientKey, "%recipient."+RecipientKey+"%"); err != nil {
		t.Fatal(err)
	}
	if err := m.AddVariable("sd_a", "attempt-1"); err != nil {
		t.Fatal(err)
	}
	for i, addr := range addrs {
		err := m.AddRecipientAndVariables(addr, map[string]any{
			RecipientKey: prefix + strconv.Itoa(i),
			"name":       fmt.Sprintf("Name %d", i),
			"code":       17 + i,
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return m
}

// Send sends to the addresses through the account. The test fails if the mail is
// not accepted.
func (r *Rig) Send(t *testing.T, account, prefix string, addrs ...string) {
	t.Helper()
	if account == "mg" {
		if _, err := r.Mailgun(t.Context(), MailgunMail(t, prefix, addrs...)); err != nil {
			t.Fatal(err)
		}
		return
	}
	resp, err := r.SendGrid(t.Context(), account, SendGridMail(prefix, addrs...))
	if err != nil || resp.StatusCode != http.StatusAccepted {
		t.Fatalf("send: %v, %+v", err, resp)
	}
}

// Attempt sends one mail and returns the status, "cut" if the connection ended early, or "hang" if a fault gives no
// answer. It does not wait for that.
func (r *Rig) Attempt(t *testing.T, account, id, addr string) (result, body string, header http.Header) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	hung := r.Stats(account).Hung
	go func() {
		for ctx.Err() == nil && r.Stats(account).Hung == hung {
			time.Sleep(time.Millisecond)
		}
		cancel()
	}()
	if account == "mg" {
		_, err := r.Mailgun(ctx, MailgunMail(t, id, addr))
		var unexpected *mgsdk.UnexpectedResponseError
		var syntax *json.SyntaxError
		switch {
		case err == nil:
			return "200", "", nil
		case errors.As(err, &unexpected):
			return strconv.Itoa(unexpected.Actual), string(unexpected.Data), nil
		case errors.As(err, &syntax):
			return "200 no JSON", "", nil
		case ctx.Err() != nil:
			return "hang", "", nil
		}
		return "cut", err.Error(), nil
	}
	resp, err := r.SendGrid(ctx, account, SendGridMail(id, addr))
	switch {
	case err == nil:
		return strconv.Itoa(resp.StatusCode), resp.Body, resp.Headers
	case ctx.Err() != nil:
		return "hang", "", nil
	case resp != nil:
		return strconv.Itoa(resp.StatusCode) + " cut", resp.Body, resp.Headers
	}
	return "cut", err.Error(), nil
}

// LookUp returns the names of the events that the Events API has, oldest first.
func (r *Rig) LookUp(t *testing.T, filter map[string]string) (list []string) {
	t.Helper()
	it := r.MailgunClient().ListEvents(&mgsdk.ListEventOptions{ForceAscending: true, Limit: 7, Filter: filter})
	var page []mgsdk.Event
	for it.Next(t.Context(), &page) {
		for _, e := range page {
			list = append(list, e.GetName())
		}
	}
	if it.Err() != nil {
		t.Fatal(it.Err())
	}
	return list
}

// Addresses returns n addresses.
func Addresses(n int) (list []string) {
	for i := range n {
		list = append(list, fmt.Sprintf("user%04d@example.com", i))
	}
	return list
}
