package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/rabbit"
	"github.com/safedelivr/safedelivr/simulator"
)

const (
	drillStartBy  = 3 * time.Second
	drillPatience = 90 * time.Second // for one state
	drillLimit    = 4 * time.Minute  // for a scenario
	drillLatency  = 60 * time.Millisecond
	drillCall     = 10 // recipients per call, so that there are many
	tricklePause  = 300 * time.Millisecond
	trickleSize   = 20
)

// drill is one run of a scenario.
type drill struct {
	*scenario
	place      *place
	recipients int
	rnd        *rand.Rand
	say        func(format string, args ...any)

	sim    *simulator.Simulator
	addr   string // of API and webhooks
	env    []string
	gates  map[need]*gate
	worker *process // the one that is struck
	others []*process
	user   models.User
	client *demoClient
	res    result

	unanswered atomic.Int64 // requests of which nobody can say whether they were accepted

	mu       sync.Mutex
	batches  []posted
	brokenAt time.Time
	mendedAt time.Time
	before   map[string]int64 // mails taken by account when it was mended
}

// posted is a batch that was accepted.
type posted struct {
	id models.ID
	n  int
	at time.Time // when posting it began
}

// runScenario rehearses one scenario and counts what came of it.
func runScenario(ctx context.Context, p *place, s *scenario, recipients int, seed uint64, say func(format string, args ...any)) result {
	h := fnv.New64a()
	_, _ = h.Write([]byte(s.name))
	d := &drill{scenario: s, place: p, recipients: recipients, rnd: rand.New(rand.NewPCG(seed, h.Sum64())), say: say, //nolint:gosec // it chooses moments
		gates: map[need]*gate{}, res: result{Name: s.name}}
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, drillLimit+s.longer)
	defer cancel()
	if err := d.run(ctx); err != nil {
		d.res.wrong("%v", err)
		for _, p := range d.processes() {
			d.res.wrong("the server printed: %s", p.out)
		}
	}
	d.res.Seconds = round(time.Since(began))
	say("%s", d.res.said())
	return d.res
}

func (d *drill) run(ctx context.Context) error {
	simulated, stopSimulator := context.WithCancel(context.WithoutCancel(ctx))
	ended, err := d.simulate(simulated)
	if err != nil {
		stopSimulator()
		return err
	}
	defer func() {
		stopSimulator()
		<-ended
	}()
	defer func() {
		for _, g := range d.gates {
			g.remove()
		}
	}()
	defer d.stopServers()
	if err := d.startServers(ctx); err != nil {
		return err
	}
	if err := d.tell(ctx); err != nil {
		return err
	}
	return d.count(ctx)
}

// tell sends mail, strikes in the middle of it, and waits until all is settled.
func (d *drill) tell(ctx context.Context) error {
	size := min(max(d.recipients/8, 25), 1000)
	for left := d.recipients; left > 0; left -= size {
		if err := d.post(ctx, min(size, left)); err != nil {
			return err
		}
	}
	moment := int64(float64(d.recipients) * (0.1 + 0.5*d.rnd.Float64()))
	if err := d.until(ctx, "mail goes out", func() bool { return d.taken("") >= moment }); err != nil {
		return err
	}
	enough, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- d.trickle(ctx, enough) }()
	err := d.strike(ctx, d)
	if err == nil {
		err = d.normal(ctx)
	}
	close(enough)
	if terr := <-ended; err == nil {
		err = terr
	}
	if err != nil {
		return err
	}
	return d.settled(ctx)
}

// simulate starts the providers.
func (d *drill) simulate(ctx context.Context) (<-chan struct{}, error) {
	var err error
	if d.addr, err = quietAddr(ctx); err != nil {
		return nil, err
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	d.sim = simulator.New(simulator.Options{RecipientKey: recipientKey, TimeScale: 120, EventDelay: 100 * time.Millisecond, Latency: drillLatency, Seed: d.rnd.Uint64()})
	hook := "http://" + d.addr + "/webhooks/"
	for _, a := range []simulator.Account{
		{Name: "sg", Kind: simulator.SendGrid, Key: demoKey, SigningKey: simulatorKey, WebhookURL: hook + "sg"},
		{Name: "mg", Kind: simulator.Mailgun, Key: demoKey, Domain: demoDomain, SigningKey: demoSigning, WebhookURL: hook + "mg"},
	} {
		if err := d.sim.AddAccount(a); err != nil {
			return nil, errors.Join(err, l.Close())
		}
	}
	d.env = d.place.environ(d.settingsFor("http://" + l.Addr().String())...)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = serveUntil(ctx, l, d.sim, d.sim.Close) // calls fail without it, and the drill with them
	}()
	return ended, nil
}

// settingsFor are those of the servers: short waits, and the simulated accounts.
func (d *drill) settingsFor(sim string) []string {
	out := []string{
		"SAFEDELIVR_LOG=error", "SAFEDELIVR_TIMES_START_BY=" + drillStartBy.String(), "SAFEDELIVR_TIMES_EVIDENCE_WINDOW=4s",
		"SAFEDELIVR_TIMES_RECHECK=1s", "SAFEDELIVR_TIMES_BREAKER_OPEN=500ms", "SAFEDELIVR_TIMES_ACCOUNT_HOLD=2s", "SAFEDELIVR_TIMES_FINAL_EVENT=60s",
	}
	for name, more := range map[string][]string{
		"SG": {"KIND=sendgrid", "BASE_URL=" + sim + "/sg", "WEBHOOK_KEY=" + simulatorPublicKey},
		"MG": {"KIND=mailgun", "BASE_URL=" + sim + "/mg", "WEBHOOK_KEY=" + demoSigning, "DOMAIN=" + demoDomain},
	} {
		// So many calls at once that an account that works is never busy.
		for _, v := range append(more, "API_KEY="+demoKey, "CONCURRENCY=64", fmt.Sprintf("CHUNK_LIMIT=%d", drillCall), "TIMEOUT=2s") {
			out = append(out, "SAFEDELIVR_ACCOUNTS_"+name+"_"+v)
		}
	}
	return append(out, d.settings...)
}

// startServers starts one process with everything, or, for a scenario that asks
// for it and backends that allow it, one door and two workers.
func (d *drill) startServers(ctx context.Context) (err error) {
	var secret string
	if d.user, secret, err = d.place.newUser(ctx); err != nil {
		return err
	}
	d.client = &demoClient{base: "http://" + d.addr, key: secret}
	if err := d.openGates(ctx); err != nil {
		return err
	}
	if !d.parted() {
		d.worker, err = startProcess(ctx, d.addr, d.env)
		return err
	}
	door, err := startProcess(ctx, d.addr, d.env, "--roles", "api,webhooks")
	if err != nil {
		return err
	}
	d.others = append(d.others, door)
	other, err := d.startWorker(ctx)
	if err != nil {
		return err
	}
	d.others = append(d.others, other)
	d.worker, err = d.startWorker(ctx)
	return err
}

func (d *drill) startWorker(ctx context.Context) (*process, error) {
	addr, err := quietAddr(ctx)
	if err != nil {
		return nil, err
	}
	return startProcess(ctx, addr, d.env, "--roles", "worker")
}

func (d *drill) parted() bool { return d.apart && !d.place.ownStore() && !d.place.ownBroker() }

// restart replaces the worker that was killed.
func (d *drill) restart(ctx context.Context) (err error) {
	d.worker, err = d.worker.again(ctx)
	return err
}

func (d *drill) processes() []*process {
	if d.worker == nil {
		return d.others
	}
	return append(slices.Clone(d.others), d.worker)
}

func (d *drill) stopServers() {
	var all sync.WaitGroup
	for _, p := range d.processes() {
		all.Go(p.stop)
	}
	all.Wait()
}

// openGates puts gates before the servers that the scenario shuts off.
func (d *drill) openGates(ctx context.Context) error {
	through := func(to string) (string, error) {
		g, err := newGate(context.WithoutCancel(ctx), to)
		if err != nil {
			return "", err
		}
		d.gates[d.needs] = g
		return g.addr(), nil
	}
	switch d.needs {
	case realBroker:
		first, _, _ := strings.Cut(d.place.cfg.AMQP.URL, ",") // the gate leads to one node of a cluster
		u, err := url.Parse(first)
		if err != nil {
			return err
		}
		if u.Host, err = through(withPort(u.Host, "5672")); err != nil {
			return err
		}
		d.env = append(d.env, "SAFEDELIVR_AMQP_URL="+u.String())
	case realStore:
		addr, err := through(withPort(d.place.cfg.Cassandra.Hosts[0], "9042"))
		if err != nil {
			return err
		}
		d.env = append(d.env, "SAFEDELIVR_CASSANDRA_HOSTS="+addr, "SAFEDELIVR_CASSANDRA_TIMEOUT=3s")
	case nothingElse, ownStore, signals:
	}
	return nil
}

func withPort(host, port string) string {
	if _, _, err := net.SplitHostPort(host); err == nil {
		return host
	}
	return net.JoinHostPort(host, port)
}

// until waits for a state.
func (d *drill) until(ctx context.Context, what string, f func() bool) error {
	return poll(ctx, drillPatience, what, func() (bool, error) { return f(), nil })
}

func (d *drill) broken() {
	d.mu.Lock()
	d.brokenAt = time.Now()
	d.mu.Unlock()
	d.say("✗ %s", d.story)
}

func (d *drill) mended() {
	d.mu.Lock()
	d.mendedAt = time.Now()
	d.before = map[string]int64{}
	for _, a := range drillAccounts {
		d.before[a] = d.taken(a)
	}
	d.mu.Unlock()
	d.say("✓ mended after %.1f s", time.Since(d.brokenAt).Seconds())
}

// taken is how many mails an account took; of all for "".
func (d *drill) taken(account string) int64 { return d.sim.Stats(account).Accepted }

// calling reports whether provider calls are in flight.
func (d *drill) calling() bool { return d.sim.Stats("").InFlight > 0 }

// quiet reports whether everything that was posted is with a provider.
func (d *drill) quiet() bool {
	n := 0
	for _, b := range d.all() {
		n += b.n
	}
	return d.taken("") >= int64(n)
}

func (d *drill) all() []posted {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.batches)
}

// post has a batch accepted: it repeats the request, under one key, until that
// is answered.
func (d *drill) post(ctx context.Context, n int) error {
	began := time.Now()
	body, err := json.Marshal(d.letter(n))
	if err != nil {
		return err
	}
	key := models.NewUserID()
	var accepted struct {
		ID         models.ID `json:"id"`
		Recipients int       `json:"recipients"`
	}
	t := time.NewTicker(100 * time.Millisecond)
	defer t.Stop()
	for {
		done, err := d.client.offer(ctx, key, body, &accepted)
		if err != nil {
			return err
		}
		if done {
			break
		}
		d.unanswered.Add(1)
		select {
		case <-t.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if accepted.Recipients != n {
		return fmt.Errorf("a batch of %d recipients was accepted with %d", n, accepted.Recipients)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.batches = append(d.batches, posted{accepted.ID, n, began})
	return nil
}

// letter is a batch. One address in a hundred bounces.
func (d *drill) letter(n int) map[string]any {
	to := make([]string, n)
	for i := range to {
		to[i] = fmt.Sprintf("user%d@rehearse.test", i)
		if i%100 == 50 {
			to[i] = fmt.Sprintf("hardbounce+%d@rehearse.test", i)
		}
	}
	out := map[string]any{"from": "Rehearsal <drill@rehearse.test>", "subject": "This is a drill", "text": "Nothing to do.", "to": to}
	if len(d.prefer) > 0 {
		out["providers"] = d.prefer
	}
	return out
}

// offer posts a batch. It reports false while nobody can say whether it was
// accepted: then it must be repeated.
func (c *demoClient) offer(ctx context.Context, key string, body []byte, out any) (bool, error) {
	within, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(within, http.MethodPost, c.base+"/v1/batches", bytes.NewReader(body))
	if err != nil {
		return false, err
	}
	r.Header.Set("Authorization", "Bearer "+c.key)
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Idempotency-Key", key)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return false, ctx.Err()
	}
	defer func() { _ = resp.Body.Close() }()
	switch s := resp.StatusCode; {
	case s == http.StatusAccepted:
		return json.NewDecoder(resp.Body).Decode(out) == nil, nil
	case s == http.StatusConflict || s == http.StatusUnauthorized || s >= 500: // it runs still, or the store is away
		return false, nil
	}
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 1000))
	return false, fmt.Errorf("a batch was answered %d: %s", resp.StatusCode, text)
}

// trickle keeps mail coming until there is enough. What it began to post it posts
// to the end: nobody else knows of it.
func (d *drill) trickle(ctx context.Context, enough <-chan struct{}) error {
	t := time.NewTicker(tricklePause)
	defer t.Stop()
	for {
		if err := d.post(ctx, trickleSize); err != nil {
			return err
		}
		select {
		case <-t.C:
		case <-enough:
			return nil
		}
	}
}

// normal waits until every account that was broken takes mail again, and new
// mail is delivered.
func (d *drill) normal(ctx context.Context) error {
	err := d.until(ctx, "all is normal again", func() bool {
		for _, a := range d.breaks {
			if d.taken(a) <= d.before[a] {
				return false
			}
		}
		for _, b := range d.all() {
			if b.at.After(d.mendedAt) {
				got, err := d.batch(ctx, b.id)
				return err == nil && got.State == models.BatchDone // of the first since
			}
		}
		return false
	})
	d.res.Normal = round(time.Since(d.mendedAt))
	return err
}

// settled waits until every log has its final state and the providers have said
// all they will say.
func (d *drill) settled(ctx context.Context) error {
	left := d.all()
	err := poll(ctx, drillLimit+d.longer, "every log has a final state", func() (bool, error) {
		for len(left) > 0 {
			b, err := d.batch(ctx, left[0].id)
			if err != nil {
				return false, err
			}
			if b.State != models.BatchDone {
				return false, nil
			}
			left = left[1:]
		}
		return true, nil
	})
	if err != nil {
		return err
	}
	return d.sim.Settle(ctx)
}

func (d *drill) get(ctx context.Context, path string, out any) error {
	return d.client.do(ctx, http.MethodGet, path, nil, http.StatusOK, out)
}

func (d *drill) batch(ctx context.Context, id models.ID) (b demoBatch, err error) {
	return b, d.get(ctx, "/v1/batches/"+id.String(), &b)
}

func (d *drill) purge(ctx context.Context) error {
	return d.place.withBroker(ctx, func(b *rabbit.Broker) error { return b.Purge(ctx) })
}

func (d *drill) brokerGate() *gate { return d.gates[realBroker] }
func (d *drill) storeGate() *gate  { return d.gates[realStore] }

// forge posts a bounce of every tenth mail to both doors. It returns how many
// were not refused.
func (d *drill) forge(ctx context.Context) (taken int, err error) {
	now := time.Now().Unix()
	for _, b := range d.all() {
		for i := 0; i < b.n; i += 10 {
			log := b.id.Log(i%models.MaxChunkRecipients + 1)
			for account, body := range map[string]string{
				"mg": fmt.Sprintf(`{"signature":{"timestamp":"%d","token":"%050d","signature":%q},"event-data":{"event":"failed","severity":"permanent",`+
					`"reason":"bounce","id":"forged%d","timestamp":%d.5,"recipient":"x@rehearse.test","user-variables":{"sd_log":%q,"sd_attempt":"1"},`+
					`"delivery-status":{"code":550,"message":"5.1.1 no such user"}}}`, now, i, strings.Repeat("0", 64), i, now, log),
				"sg": fmt.Sprintf(`[{"event":"bounce","type":"bounce","status":"5.1.1","email":"x@rehearse.test","timestamp":%d,"sg_event_id":"forged%d",`+
					`"sd_log":%q,"sd_attempt":"1"}]`, now, i, log),
			} {
				r, err := http.NewRequestWithContext(ctx, http.MethodPost, d.client.base+"/webhooks/"+account, strings.NewReader(body))
				if err != nil {
					return taken, err
				}
				r.Header.Set("Content-Type", "application/json")
				r.Header.Set("X-Twilio-Email-Event-Webhook-Timestamp", fmt.Sprint(now))
				r.Header.Set("X-Twilio-Email-Event-Webhook-Signature", "MEUCIQDforged")
				resp, err := http.DefaultClient.Do(r)
				if err != nil {
					return taken, err
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
				if resp.StatusCode < 400 || resp.StatusCode >= 500 {
					taken++
				}
			}
		}
	}
	return taken, nil
}
