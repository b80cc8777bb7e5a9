package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// hostileAtOnce is the number of requests of each kind that the hostile user has open.
const hostileAtOnce = 4

// idleConnections is the number of connections that it opens and sends nothing through.
const idleConnections = 64

// hostile measures the time from the post of an urgent mail to its arrival at the provider:
// when idle, then while another user sends whatever may keep the product busy. The other
// user has the limits of the configuration.
func (b *bench) hostile(be *backend) error {
	const title = "urgent mail, post to provider, while another user sends whatever takes long to refuse"
	fmt.Fprintln(os.Stderr, be.title+":", title)
	r, err := b.newRig(be, &rigOptions{latency: bulkLatency, concurrency: bulkAtOnce})
	if err != nil {
		return err
	}
	defer r.close()
	idle, err := r.idleUrgents()
	if err != nil {
		return err
	}
	stop, err := r.attack()
	if err != nil {
		return err
	}
	busy, err := r.urgents(b.urgents, always)
	answers := stop()
	if err != nil {
		return err
	}
	detail := fmt.Sprintf("median; p95 %s, idle %s; %d mails each; %s; aim: at most 1.5 of idle",
		short(busy.quantile(0.95)), short(idle.quantile(0.95)), len(busy.times), answers)
	b.report.add(be, title, ms(busy.quantile(0.5)), "ms", detail, base{"idle", ms(idle.quantile(0.5))})
	return nil
}

// attack starts a process that sends hostile requests. stop ends it and returns what it
// says. The process has the lowest priority, because a real one would not use the
// product's processors.
func (r *rig) attack() (stop func() string, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(r.b.ctx, "nice", "-n", "19", self, "-attack", r.addr)
	cmd.Env = append(os.Environ(), "BENCH_KEY="+r.hostileKey)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	var said strings.Builder
	cmd.Stdout, cmd.Stderr = &said, os.Stderr
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return func() string {
		_ = cmd.Cancel()
		_ = cmd.Wait()
		return strings.TrimSpace(said.String())
	}, nil
}

// runAttack sends hostile requests to an address until ctx ends, and prints how many were
// answered.
func runAttack(ctx context.Context, addr string) {
	a := &attack{addr: addr, key: os.Getenv("BENCH_KEY"),
		http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256}}}
	a.send(ctx)
	fmt.Printf("%d hostile requests answered, %d of them 429\n", a.answered.Load(), a.limited.Load())
}

// attack sends what a hostile user may send.
type attack struct {
	addr, key         string
	http              *http.Client
	answered, limited atomic.Int64
}

// send sends requests of all kinds until ctx ends.
func (a *attack) send(ctx context.Context) {
	batch := func(fields string) func() io.Reader {
		text := `{"from":"Shop <shop@bench.test>","to":["x@bench.test"],` + fields + "}"
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
	kinds := []func() io.Reader{
		batch(`"subject":"s","text":"` + strings.Repeat("{", 390_002) + `"`),
		batch(`"subject":"s","text":"t",` + many(`"m%d":1`, 500_000)),
		batch(`"subject":"s","text":"t","providers":[` + many(`"p%d"`, 100_000) + "]"),
		batch(`"subject":"s","text":"` + many("{{v%d}}", 100_000) + `"`),
		batch(`"subject":"s","text":"t","vars":` + strings.Repeat("[", 1_000_000)),
		batch(`"subject":"s","text":"t","reply_to":"a@` + strings.Repeat("ü", 29_000) + `.de"`),
		func() io.Reader { return strings.NewReader(batchText(0, 20_000, `,"providers":["none"]`)) },
		func() io.Reader {
			return strings.NewReader(batchText(0, 20_000, `,"headers":{"X-V":"`+many("{{v%d}}", 90)+`"}`))
		},
		func() io.Reader { return &trickle{ctx: ctx} },
	}
	var all sync.WaitGroup
	loop := func(method, path string, body func() io.Reader) {
		for range hostileAtOnce {
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
	own := "/v1/batches/" + a.batch(ctx, batch(`"subject":"s","text":"t"`)())
	for _, command := range []string{"stop", "resume", "retry", "release"} {
		loop(http.MethodPost, own+"/"+command, nothing)
	}
	for range idleConnections {
		all.Go(func() { a.idle(ctx) })
	}
	all.Wait()
}

// batch posts a batch and returns its ID.
func (a *attack) batch(ctx context.Context, body io.Reader) string {
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
func (a *attack) idle(ctx context.Context) {
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
func (a *attack) post(ctx context.Context, method, path string, body io.Reader) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, method, "http://"+a.addr+path, body)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Authorization", "Bearer "+a.key)
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("X-Twilio-Email-Event-Webhook-Signature", "MEUCIQ==")
	r.Header.Set("X-Twilio-Email-Event-Webhook-Timestamp", strconv.FormatInt(time.Now().Unix(), 10))
	return a.http.Do(r)
}

// request sends a request and reads the answer.
func (a *attack) request(ctx context.Context, method, path string, body io.Reader) {
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
