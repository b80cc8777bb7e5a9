package app

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/safedelivr/safedelivr/api/mailgun"
	"github.com/safedelivr/safedelivr/api/postmark"
	"github.com/safedelivr/safedelivr/api/resend"
	"github.com/safedelivr/safedelivr/api/sendgrid"
	"github.com/safedelivr/safedelivr/models/settings"

	"pgregory.net/rapid"

	"github.com/safedelivr/safedelivr/api"
	"github.com/safedelivr/safedelivr/consumers"
	"github.com/safedelivr/safedelivr/inproc/inproctest"
	"github.com/safedelivr/safedelivr/internal/priority"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/codec"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/store/memory"
)

// latest is how late mail may leave when there is no other work.
const latest = time.Second

// punctual is a provider that notes when it got the mail of each address.
type punctual struct {
	models.Adapter
	mu   sync.Mutex
	sent map[string]time.Time
}

func (p *punctual) Send(_ context.Context, c *models.Call) []models.Part {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range c.Recipients {
		p.sent[c.Recipients[i].Email] = time.Now()
	}
	return []models.Part{{Class: models.Accepted, Recipients: c.Numbers()}}
}

func (*punctual) MaxRecipients() int { return 1000 }
func (*punctual) Close()             {}

// timedMail is mail with times, and the way in which it is accepted.
type timedMail struct {
	way     string
	deliver int // seconds from now; 0: at once
	own     int // of the second recipient; 0: it has the times of the batch
	expires int // seconds after that; 0: not named
	window  int // minutes from now until the window opens; 0: there is none
	move    int // the batch is rescheduled to a time that many seconds from now; 0: it is not
	lost    bool

	opens time.Time // when the window opens; zero: there is none
}

// waysIn are the requests by which mail is accepted.
var waysIn = []string{"batch", "table", "messages by ids", mailgun.Name, resend.Name, sendgrid.Name, postmark.Name}

// foreign returns the request to the API of another service, and when its mail is due. These APIs have only the time of a
// message, Postmark's has none.
func (m *timedMail) foreign(now time.Time) (path, contentType, body string, due map[string]time.Time) {
	at := now
	if m.deliver > 0 && m.way != postmark.Name {
		at = now.Add(time.Duration(m.deliver) * time.Second).Truncate(time.Second)
	}
	due = map[string]time.Time{"ann@example.com": at}
	switch m.way {
	case mailgun.Name:
		form := url.Values{"from": {"shop@example.com"}, "to": {"ann@example.com"}, "subject": {"s"}, "text": {"t"}}
		if !at.Equal(now) {
			form.Set("o:deliverytime", at.Format(time.RFC1123Z))
		}
		return "/v3/example.com/messages", "application/x-www-form-urlencoded", form.Encode(), due
	case postmark.Name:
		return "/email", "application/json", `{"From": "shop@example.com", "To": "ann@example.com", "Subject": "s", "TextBody": "t"}`,
			due
	case resend.Name:
		field := ""
		if !at.Equal(now) {
			field = fmt.Sprintf(`, "scheduled_at": %q`, at.Format(time.RFC3339))
		}
		return "/emails", "application/json",
			`{"from": "shop@example.com", "to": ["ann@example.com"], "subject": "s", "text": "t"` + field + `}`, due
	}
	field := ""
	if !at.Equal(now) {
		field = fmt.Sprintf(`, "send_at": %d`, at.Unix())
	}
	return "/v3/mail/send", "application/json", `{"personalizations": [{"to": [{"email": "ann@example.com"}]}],
		"from": {"email": "shop@example.com"}, "subject": "s", "content": [{"type": "text/plain", "value": "t"}]` + field + `}`, due
}

// body returns the request, and when each address is due.
func (m *timedMail) body(now time.Time) (method, path, contentType, body string, due map[string]time.Time) {
	if dialects[m.way] != nil {
		path, contentType, body, due := m.foreign(now)
		return http.MethodPost, path, contentType, body, due
	}
	fields := []string{`"from": "shop@example.com"`, `"subject": "s"`, `"text": "t"`}
	due = map[string]time.Time{"ann@example.com": now}
	if m.deliver > 0 {
		due["ann@example.com"] = now.Add(time.Duration(m.deliver) * time.Second)
		fields = append(fields, fmt.Sprintf(`"deliver_at": %q`, due["ann@example.com"].Format(time.RFC3339Nano)))
	}
	if m.window > 0 {
		m.opens = now.UTC().Add(time.Duration(m.window) * time.Minute).Truncate(time.Minute)
		fields = append(fields, fmt.Sprintf(`"send_window": {"from": %q, "to": %q, "time_zone": "UTC", "strict": true}`,
			m.opens.Format("15:04"), m.opens.Add(time.Hour).Format("15:04")))
		due["ann@example.com"] = models.LaterOf(due["ann@example.com"], m.opens)
	}
	if m.expires > 0 {
		end := due["ann@example.com"].Add(time.Duration(m.expires) * time.Second)
		fields = append(fields, fmt.Sprintf(`"expires_at": %q`, end.Format(time.RFC3339Nano)))
	}
	to := `"to": ["ann@example.com"]`
	if m.own > 0 && m.way == "batch" {
		due["bob@example.com"] = now.Add(time.Duration(m.own) * time.Second)
		to = fmt.Sprintf(`"to": ["ann@example.com", {"email": "bob@example.com", "send_window": "none", "deliver_at": %q%s}]`,
			due["bob@example.com"].Format(time.RFC3339Nano),
			fmt.Sprintf(`, "expires_at": %q`, due["bob@example.com"].Add(20*time.Second).Format(time.RFC3339Nano)))
	}
	all := strings.Join(fields, ", ")
	switch m.way {
	case "messages by ids":
		return http.MethodPut, "/v1/messages", "application/json",
			`[{"id": "1", "action": "new", ` + all + `, "to": "ann@example.com"}]`, due
	case "table":
		form := "--b\r\nContent-Disposition: form-data; name=\"to\"; filename=\"to.csv\"\r\n\r\nemail\r\nann@example.com\r\n"
		for _, field := range fields {
			name, value, _ := strings.Cut(field, ": ")
			form += "--b\r\nContent-Disposition: form-data; name=" + name + "\r\n\r\n" + strings.Trim(value, `"`) + "\r\n"
		}
		return http.MethodPost, "/v1/batches", "multipart/form-data; boundary=b", form + "--b--\r\n", due
	}
	return http.MethodPost, "/v1/batches", "application/json", "{" + all + ", " + to + "}", due
}

// deaf is a broker that loses every message about a new batch until it hears.
type deaf struct {
	models.Broker
	mu    sync.Mutex
	hears bool
}

func (b *deaf) Publish(ctx context.Context, ms ...models.Message) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.hears {
		return nil
	}
	return b.Broker.Publish(ctx, ms...)
}

// leaves accepts the mail, and returns an error if it does not leave in time.
func (m *timedMail) leaves(t *testing.T) error {
	store, broker := memory.Open(t), &deaf{Broker: inproctest.New(t, "sg"), hears: true}
	provider := &punctual{sent: map[string]time.Time{}}
	described := models.Provider{
		Name: "sg", Weight: 1, Concurrency: 4, ChunkLimit: 1000, Timeout: 10 * time.Second, Events: models.EventsNone,
	}
	cfg := settings.Default[consumers.Config]()
	cfg.Sole = true
	engine, err := consumers.New(store, broker, []consumers.Provider{{Provider: described, Adapter: provider}}, cfg)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- engine.Run(ctx, time.Second) }()
	svc := service.New(service.Deps{
		Store: store, Broker: broker, Providers: []models.Provider{described},
		Config: service.Config{SpoolDir: t.TempDir(), Sole: true, Priority: priority.New(), RetryTime: time.Minute},
	})
	defer func() { cancel(); svc.Close(); err = errors.Join(err, <-ended) }()
	u := models.User{ID: models.NewUserID(), Name: "ann", Created: time.Now()}
	k, secret := models.NewKey(u.ID, "test", time.Now())
	if err := errors.Join(store.CreateUser(ctx, u), store.CreateKey(ctx, k)); err != nil {
		return err
	}
	of := api.Config{}
	for _, way := range dialects {
		of.Dialects = append(of.Dialects, way())
	}
	server := api.New(svc, of)
	request := func(method, path, contentType, body string) (*httptest.ResponseRecorder, error) {
		r := httptest.NewRequestWithContext(ctx, method, path, strings.NewReader(body))
		r.Header.Set("Authorization", "Bearer "+secret)
		r.Header.Set("Content-Type", contentType)
		r.Header.Set("Idempotency-Key", "k"+method)
		w := httptest.NewRecorder()
		if server.ServeHTTP(w, r); w.Code >= 300 {
			return w, fmt.Errorf("%s %s: %d %s", method, path, w.Code, w.Body)
		}
		return w, nil
	}
	time.Sleep(10*time.Second + 300*time.Millisecond) // the agenda runs
	broker.hears = !m.lost
	now := time.Now()
	method, path, contentType, body, due := m.body(now)
	w, err := request(method, path, contentType, body)
	if err != nil {
		return err
	}
	time.Sleep(time.Second)
	broker.mu.Lock()
	broker.hears = true
	broker.mu.Unlock()
	if location := w.Header().Get("Location"); m.move > 0 && location != "" {
		at := time.Now().Add(time.Duration(m.move) * time.Second)
		raw, _ := json.Marshal(map[string]any{"deliver_at": at, "expires_at": at.Add(30 * time.Second)})
		if _, err := request(http.MethodPatch, location, "application/json", string(raw)); err == nil {
			due["ann@example.com"] = models.LaterOf(at, m.opens)
		}
	}
	last := now
	for _, at := range due {
		last = models.LaterOf(last, at)
	}
	time.Sleep(time.Until(last) + latest)
	provider.mu.Lock()
	defer provider.mu.Unlock()
	for address, at := range due {
		switch sent, ok := provider.sent[address]; {
		case !ok:
			return fmt.Errorf("mail to %s was due after %s and did not leave", address, at.Sub(now))
		case sent.Before(at.Truncate(time.Millisecond)):
			return fmt.Errorf("mail to %s left %s too early", address, at.Sub(sent))
		case sent.Sub(at) > latest && sent.Sub(now) > latest:
			return fmt.Errorf("mail to %s was due after %s and left %s late", address, at.Sub(now), sent.Sub(at))
		}
	}
	return nil
}

// TestMailLeavesAtItsTime: mail leaves within a second of its time, in whichever way it was accepted and however soon
// that is. Times are those of the batch, those of a recipient, a window that opens, and new times. It does not expire
// before. Mail with a time does not need the message that announces it.
func TestMailLeavesAtItsTime(t *testing.T) {
	t.Parallel()
	if checks := flag.Lookup("rapid.checks"); checks.Value.String() == checks.DefValue {
		_ = flag.Set("rapid.checks", "20") // each takes a fifth of a second; never an error
	}
	_, _ = codec.Unpack(codec.Pack(make([]byte, 1<<10))) // makes channels, which a bubble must not
	rapid.Check(t, func(rt *rapid.T) {
		m := timedMail{
			way:     rapid.SampledFrom(waysIn).Draw(rt, "way"),
			deliver: rapid.IntRange(0, 90).Draw(rt, "deliver"),
			own:     rapid.IntRange(0, 90).Draw(rt, "own"),
			expires: rapid.SampledFrom([]int{0, 10, 26, 100}).Draw(rt, "expires"),
			window:  rapid.SampledFrom([]int{0, 0, 1, 2}).Draw(rt, "window"),
			move:    rapid.SampledFrom([]int{0, 0, 4, 30}).Draw(rt, "move"),
		}
		if m.way == postmark.Name {
			m.deliver = 0
		}
		m.lost = m.deliver > 2 && (m.own == 0 || m.own > 2) && rapid.Bool().Draw(rt, "lost")
		var err error
		synctest.Test(t, func(t *testing.T) { err = m.leaves(t) })
		if err != nil {
			rt.Fatalf("%+v: %s", m, err)
		}
	})
}
