// Package attack sends requests that are expensive to check, as a hostile user may: to measure and to test that they
// harm no other user.
package attack

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// atOnce is the number of requests of each kind that are open.
const atOnce = 4

// Flood is the subject of the mail that the attack has sent. What else is accepted of it is for the next day.
const Flood = "flood"

// idleConnections is the number of connections that are opened and send nothing.
const idleConnections = 64

// An Attack sends what a hostile user may send to keep a server busy.
type Attack struct {
	addr, key         string
	http              *http.Client
	answered, limited atomic.Int64
}

// New returns an attack on the server at an address, with the API key of the hostile user.
func New(addr, key string) *Attack {
	return &Attack{addr: addr, key: key,
		http: &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 256}}}
}

// Answered returns how many requests were answered.
func (a *Attack) Answered() int64 { return a.answered.Load() }

// Limited returns how many requests were answered with 429.
func (a *Attack) Limited() int64 { return a.limited.Load() }

// Send sends requests of all kinds until ctx ends, and waits for the answers: the server carries out requests that it
// has read of a client who left.
func (a *Attack) Send(ctx context.Context) {
	batch := func(fields string) func() io.Reader {
		text := `{"from":"Shop <shop@bench.test>",` + fields + "}"
		return func() io.Reader { return strings.NewReader(text) }
	}
	many := func(format string, n int) string {
		var s strings.Builder
		for i := range n {
			if i > 0 {
				s.WriteByte(',')
			}
			fmt.Fprintf(&s, format, i)
		}
		return s.String()
	}
	const one = `"to":["x@bench.test"],`
	tomorrow := time.Now().AddDate(0, 0, 1).Format(time.RFC3339)
	later := `"deliver_at":"` + tomorrow + `",`
	people := `"to":[` + many(`"r%d@bench.test"`, 20_000) + "],"
	kinds := []func() io.Reader{
		batch(one + `"subject":"s","text":"` + strings.Repeat("{", 390_002) + `"`),
		batch(one + `"subject":"s","text":"t",` + many(`"m%d":1`, 500_000)),
		batch(one + `"subject":"s","text":"t","providers":[` + many(`"p%d"`, 100_000) + "]"),
		batch(one + `"subject":"s","text":"` + many("{{v%d}}", 100_000) + `"`),
		batch(one + `"subject":"s","text":"t","vars":` + strings.Repeat("[", 1_000_000)),
		batch(one + `"subject":"s","text":"t","reply_to":"a@` + strings.Repeat("ü", 29_000) + `.de"`),
		batch(people + `"subject":"s","text":"t","providers":["none"]`),
		batch(people + `"subject":"s","text":"t","headers":{"X-V":"` + many("{{v%d}}", 90) + `"}`),
		batch(people + later + `"subject":"s","text":"t"`), // it is accepted
		batch(one + `"subject":"` + Flood + `","text":"t","lane":"urgent"`),
		func() io.Reader { return &trickle{ctx: ctx} },
	}
	var all sync.WaitGroup
	loop := func(method, path string, body func() io.Reader) {
		for range atOnce {
			all.Go(func() {
				for ctx.Err() == nil {
					a.request(ctx, method, path, body())
				}
			})
		}
	}
	for _, body := range kinds {
		loop(http.MethodPost, "/v1/batches", body)
	}
	nothing := func() io.Reader { return http.NoBody }
	junk := bytes.Repeat([]byte("x"), 1<<20)
	loop(http.MethodPost, "/webhooks/sg", func() io.Reader { return bytes.NewReader(junk) })
	loop(http.MethodGet, "/v1/logs?email=eve@bench.test", nothing)
	loop(http.MethodPost, "/v1/users/hostile/pause", nothing)
	loop(http.MethodPost, "/v1/users/hostile/resume", nothing)
	text := func(s string) func() io.Reader { return func() io.Reader { return strings.NewReader(s) } }
	loop(http.MethodPut, "/v1/messages", text("["+many(`{"id":"m%[1]d","action":"update","from":"shop@bench.test",`+
		`"to":"r%[1]d@bench.test",`+later+`"subject":"s","text":"t%[1]d"}`, 2000)+"]"))
	loop(http.MethodPost, "/v1/preview", text(`{"to":{"email":"x@bench.test","vars":{"a":[`+many("%d", 1000)+`]}},`+
		`"subject":"s","text":"`+strings.Repeat("{% for x in a %}", 8)+"{{x}}"+strings.Repeat("{% endfor %}", 8)+`"}`))
	row := "a@" + strings.Repeat("ü", 60) + ".de,none\n"
	loop(http.MethodPost, "/v1/suppressions/import", text("email,reason\n"+strings.Repeat(row, 10_000)))
	own := "/v1/batches/" + a.batch(ctx, batch(one+later+`"subject":"s","text":"t"`)())
	for _, command := range []string{"stop", "resume", "retry", "release"} {
		loop(http.MethodPost, own+"/"+command, nothing)
	}
	for range idleConnections {
		all.Go(func() { a.idle(ctx) })
	}
	all.Wait()
}

// batch posts a batch and returns its ID.
func (a *Attack) batch(ctx context.Context, body io.Reader) string {
	var accepted struct {
		ID string `json:"id"`
	}
	answer, err := a.post(ctx, http.MethodPost, "/v1/batches", body)
	if err == nil {
		_ = json.NewDecoder(answer.Body).Decode(&accepted)
		_ = answer.Body.Close()
	}
	return accepted.ID
}

// idle opens connections that send nothing.
func (a *Attack) idle(ctx context.Context) {
	for ctx.Err() == nil {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", a.addr)
		if err != nil {
			return
		}
		stop := context.AfterFunc(ctx, func() { _ = c.Close() })
		_, _ = c.Read(make([]byte, 1)) // until the server closes it
		stop()
		_ = c.Close()
	}
}

// post sends a request with the key of the hostile user, and with the headers of a signed post.
func (a *Attack) post(ctx context.Context, method, path string, body io.Reader) (*http.Response, error) {
	r, err := http.NewRequestWithContext(context.WithoutCancel(ctx), method, "http://"+a.addr+path, body)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Authorization", "Bearer "+a.key)
	r.Header.Set("Content-Type", "application/json")
	if strings.HasSuffix(path, "/import") {
		r.Header.Set("Content-Type", "text/csv")
	}
	r.Header.Set("X-Twilio-Email-Event-Webhook-Signature", "MEUCIQ==")
	r.Header.Set("X-Twilio-Email-Event-Webhook-Timestamp", strconv.FormatInt(time.Now().Unix(), 10))
	return a.http.Do(r)
}

// request sends a request and reads the answer.
func (a *Attack) request(ctx context.Context, method, path string, body io.Reader) {
	answer, err := a.post(ctx, method, path, body)
	if err != nil {
		return
	}
	defer answer.Body.Close()
	_, _ = io.Copy(io.Discard, answer.Body)
	a.answered.Add(1)
	if answer.StatusCode == http.StatusTooManyRequests {
		a.limited.Add(1)
	}
}

// trickle is a body that never ends and sends a byte now and then.
type trickle struct{ ctx context.Context } //nolint:containedctx // a body has no other way to end

// Read implements io.Reader.
func (t *trickle) Read(p []byte) (int, error) {
	select {
	case <-t.ctx.Done():
		return 0, io.ErrUnexpectedEOF
	case <-time.After(100 * time.Millisecond):
		p[0] = ' '
		return 1, nil
	}
}
