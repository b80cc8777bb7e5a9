package simulator

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	mgsdk "github.com/mailgun/mailgun-go/v4"
	"github.com/sendgrid/rest"
	sgsdk "github.com/sendgrid/sendgrid-go"
	"github.com/sendgrid/sendgrid-go/helpers/eventwebhook"
	"github.com/sendgrid/sendgrid-go/helpers/mail"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	code := m.Run()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

const (
	recipientKey = "sd_r"
	domain       = "mg.sim.test"
	signingKey   = "webhook-signing-key"
)

// A rig is a simulator with the accounts sg and mg, whose webhooks are verified
// and kept.
type rig struct {
	*Simulator
	url    string
	hooks  *receiver
	client *http.Client
}

func newRig(t *testing.T, o Options) *rig {
	t.Helper()
	if o.RecipientKey == "" {
		o.RecipientKey = recipientKey
	}
	if o.Seed == 0 {
		o.Seed = 42
	}
	r := &rig{Simulator: New(o), hooks: &receiver{changed: make(chan struct{})}}
	hooks := httptest.NewServer(r.hooks)
	server := httptest.NewServer(r.Simulator)
	transport := &http.Transport{MaxIdleConnsPerHost: 16}
	r.client = &http.Client{Transport: transport}
	r.url = server.URL
	t.Cleanup(func() {
		r.Close()
		transport.CloseIdleConnections()
		server.Close()
		hooks.Close()
	})
	for _, a := range []Account{
		{Name: "sg", Kind: SendGrid, Key: "SG.key", WebhookURL: hooks.URL + "/sg"},
		{Name: "mg", Kind: Mailgun, Key: "mg-key", Domain: domain, WebhookURL: hooks.URL + "/mg", SigningKey: signingKey},
	} {
		if err := r.AddAccount(a); err != nil {
			t.Fatal(err)
		}
	}
	r.hooks.publicKey = r.PublicKey("sg")
	return r
}

func (r *rig) flush(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := r.Settle(ctx); err != nil {
		t.Fatalf("Settle: %v (stats %+v)", err, r.Stats(""))
	}
}

// An event is one webhook event, with the account it came from.
type event map[string]any

func (e event) str(key string) string { s, _ := e[key].(string); return s }

// A receiver takes webhooks. It answers with what status says, and keeps events
// of posts that it answered with 200.
type receiver struct {
	publicKey string
	status    func(r *http.Request, body []byte) int // nil = 200

	mu      sync.Mutex
	events  map[string][]event
	posts   []hookPost
	forged  int
	changed chan struct{}
}

// A hookPost is one request to the receiver.
type hookPost struct {
	account string
	header  http.Header
	body    []byte
	at      time.Time
}

func (h *receiver) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		w.WriteHeader(500)
		return
	}
	account := strings.Trim(r.URL.Path, "/")
	status := 200
	if h.status != nil {
		status = h.status(r, body)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.events == nil {
		h.events = map[string][]event{}
	}
	h.posts = append(h.posts, hookPost{account, r.Header.Clone(), body, time.Now()})
	if !h.verify(account, r.Header, body) {
		h.forged++
	} else if status == 200 {
		h.keep(account, body)
	}
	close(h.changed)
	h.changed = make(chan struct{})
	w.WriteHeader(status)
}

func (h *receiver) verify(account string, header http.Header, body []byte) bool {
	if strings.HasPrefix(account, "sg") {
		key, err := eventwebhook.ConvertPublicKeyBase64ToECDSA(h.publicKey)
		if err != nil {
			return false
		}
		ok, err := eventwebhook.VerifySignature(key, body, header.Get(eventwebhook.VerificationHTTPHeader), header.Get(eventwebhook.TimestampHTTPHeader))
		return ok && err == nil
	}
	var p struct {
		Signature struct{ Timestamp, Token, Signature string }
	}
	if json.Unmarshal(body, &p) != nil || len(p.Signature.Timestamp) != 10 || len(p.Signature.Token) != 50 {
		return false
	}
	mac := hmac.New(sha256.New, []byte(signingKey))
	io.WriteString(mac, p.Signature.Timestamp+p.Signature.Token)
	return hex.EncodeToString(mac.Sum(nil)) == p.Signature.Signature
}

func (h *receiver) keep(account string, body []byte) {
	if strings.HasPrefix(account, "sg") {
		var list []event
		if err := json.Unmarshal(body, &list); err != nil {
			panic(err)
		}
		h.events[account] = append(h.events[account], list...)
		return
	}
	var p struct {
		Data event `json:"event-data"`
	}
	if err := json.Unmarshal(body, &p); err != nil {
		panic(err)
	}
	h.events[account] = append(h.events[account], p.Data)
}

func (h *receiver) of(account string) []event {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]event(nil), h.events[account]...)
}

func (h *receiver) requests() []hookPost {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]hookPost(nil), h.posts...)
}

// until waits for a condition on what was received.
func (h *receiver) until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(10 * time.Second)
	for {
		h.mu.Lock()
		changed := h.changed
		h.mu.Unlock()
		if ok() {
			return
		}
		select {
		case <-changed:
		case <-time.After(time.Millisecond): // for conditions that no webhook tells of
		case <-deadline:
			t.Fatalf("waited too long for: %s", what)
		}
	}
}

// told returns "recipient event" for each event, for SendGrid and Mailgun
// alike; a failure of Mailgun has its severity and reason.
func told(list []event) (out []string) {
	for _, e := range list {
		name := e.str("event")
		if s := e.str("severity"); s != "" {
			name += "/" + s + "/" + e.str("reason")
		}
		if s := e.str("type"); s != "" {
			name += "/" + s
		}
		out = append(out, e.str("email")+e.str("recipient")+" "+name)
	}
	return out
}

// sg sends through the real SDK of SendGrid.
func (r *rig) sg(ctx context.Context, account string, m *mail.SGMailV3) (*rest.Response, error) {
	body, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	return r.sgRaw(ctx, account, "SG.key", body)
}

func (r *rig) sgRaw(ctx context.Context, account, key string, body []byte) (*rest.Response, error) {
	request := sgsdk.GetRequest(key, "/v3/mail/send", r.url+"/"+account)
	request.Method = "POST"
	request.Body = body
	return (&rest.Client{HTTPClient: r.client}).SendWithContext(ctx, request)
}

// sgMail is a message with one personalization per address, the i-th with the
// recipient id prefix+i.
func sgMail(prefix string, addrs ...string) *mail.SGMailV3 {
	m := mail.NewV3Mail()
	m.SetFrom(mail.NewEmail("Sender", "from@example.com"))
	m.Subject = "Hello {{name}}"
	m.AddContent(mail.NewContent("text/plain", "Dear {{name}}, code {{code}}"), mail.NewContent("text/html", "<p>Dear {{name}}</p>"))
	m.SetCustomArg("sd_a", "attempt-1")
	for i, addr := range addrs {
		p := mail.NewPersonalization()
		p.AddTos(mail.NewEmail("", addr))
		p.SetCustomArg(recipientKey, prefix+strconv.Itoa(i))
		p.SetSubstitution("{{name}}", fmt.Sprintf("Name %d", i))
		p.SetSubstitution("{{code}}", `"<&>"`)
		m.AddPersonalizations(p)
	}
	return m
}

// mg sends through the real SDK of Mailgun.
func (r *rig) mg(ctx context.Context, m *mgsdk.Message) (id string, err error) {
	_, id, err = r.mailgun().Send(ctx, m)
	return id, err
}

func (r *rig) mailgun() *mgsdk.MailgunImpl {
	mg := mgsdk.NewMailgun(domain, "mg-key")
	mg.SetAPIBase(r.url + "/mg/v3")
	mg.SetClient(r.client)
	return mg
}

func mgMail(t *testing.T, prefix string, addrs ...string) *mgsdk.Message {
	t.Helper()
	m := mgsdk.NewMessage("Sender <from@"+domain+">", "Hello %recipient.name%", "Dear %recipient.name%, code %recipient.code%")
	m.SetHTML("<p>Dear %recipient.name%</p>")
	if err := m.AddVariable(recipientKey, "%recipient."+recipientKey+"%"); err != nil {
		t.Fatal(err)
	}
	if err := m.AddVariable("sd_a", "attempt-1"); err != nil {
		t.Fatal(err)
	}
	for i, addr := range addrs {
		err := m.AddRecipientAndVariables(addr, map[string]any{recipientKey: prefix + strconv.Itoa(i), "name": fmt.Sprintf("Name %d", i), "code": 17 + i})
		if err != nil {
			t.Fatal(err)
		}
	}
	return m
}

// send sends to the addresses through the account sg or mg and fails the test if
// it is not accepted.
func (r *rig) send(t *testing.T, account, prefix string, addrs ...string) {
	t.Helper()
	if account == "mg" {
		if _, err := r.mg(t.Context(), mgMail(t, prefix, addrs...)); err != nil {
			t.Fatal(err)
		}
		return
	}
	resp, err := r.sg(t.Context(), account, sgMail(prefix, addrs...))
	if err != nil || resp.StatusCode != 202 {
		t.Fatalf("send: %v, %+v", err, resp)
	}
}

func addresses(n int) (list []string) {
	for i := range n {
		list = append(list, fmt.Sprintf("user%04d@example.com", i))
	}
	return list
}

func golden(t *testing.T, name string, have []byte) {
	t.Helper()
	path := "testdata/" + name
	if os.Getenv("UPDATE_GOLDEN") != "" {
		if err := os.WriteFile(path, have, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(have, want) {
		t.Errorf("%s differs (UPDATE_GOLDEN=1 writes it)\nhave %s\nwant %s", path, have, want)
	}
}
