package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/lab/simulated"
	"github.com/safedelivr/safedelivr/lab/simulator"
)

const (
	signatureHeader = "X-Twilio-Email-Event-Webhook-Signature"
	timestampHeader = "X-Twilio-Email-Event-Webhook-Timestamp"
)

// events measures the webhook receiver: the time from the first signed post until the
// stats count every mail as final. The simulator makes the events from calls of the
// product; recorder collects them, and they are split and signed again.
func (b *bench) events(be *backend) error {
	if err := b.eventsOne(be, "events, 1 per post, signed", 1, b.oneEvents); err != nil {
		return err
	}
	return b.eventsOne(be, "events, 1,000 per post, signed", 1000, b.manyEvents)
}

// eventsRun is the result of one run.
type eventsRun struct {
	answered float64 // events/s that were answered, and so stored
	l        load
	raw      float64
}

func (b *bench) eventsOne(be *backend, title string, perPost, count int) error {
	fmt.Fprintln(os.Stderr, be.title+":", title)
	rate, run, err := median(b.runs, func() (float64, eventsRun, error) { return b.eventsRun(be, perPost, count) })
	if err != nil {
		return err
	}
	detail := fmt.Sprintf(
		"answered %s/s, p50 %s, p99 %s of a post, %d connections",
		thousands(int64(run.answered)),
		short(run.l.quantile(0.5)),
		short(run.l.quantile(0.99)),
		b.conns,
	)
	b.report.add(be, title, rate, "events/s", detail, base{"verify and decode alone", run.raw})
	return nil
}

// recorder is a webhook receiver that collects events.
type recorder struct {
	mu     sync.Mutex
	events []json.RawMessage
}

func (c *recorder) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var some []json.RawMessage
	if err := json.NewDecoder(r.Body).Decode(&some); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range some {
		if bytes.Contains(e, []byte(`"event":"delivered"`)) {
			c.events = append(c.events, e)
		}
	}
}

func (c *recorder) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.events)
}

func (b *bench) eventsRun(be *backend, perPost, count int) (float64, eventsRun, error) {
	var run eventsRun
	rec := &recorder{}
	server := httptest.NewServer(rec)
	defer server.Close()
	r, err := b.newRig(
		be,
		&rigOptions{concurrency: atOnce, hooksTo: server.URL, kind: simulator.SendGrid, eventDelay: time.Millisecond},
	)
	if err != nil {
		return 0, run, err
	}
	defer r.close()
	posts, err := r.deliveries(rec, count, perPost)
	if err != nil {
		return 0, run, err
	}
	begin := time.Now()
	if run.l, err = each(len(posts), b.conns, func(i int) error { return r.hook(&posts[i]) }); err != nil {
		return 0, run, err
	}
	run.answered = run.l.rate(count)
	if err := r.wait(func() (bool, error) {
		t, err := r.totals()
		if t.Delivered > int64(count) || t.Failed > 0 {
			err = errors.Join(err, fmt.Errorf("more final mails than sent: %+v", t))
		}
		if t.Delivered < int64(count) {
			time.Sleep(25 * time.Millisecond) // keeps the cost of polling low
		}
		return t.Delivered == int64(count), err
	}); err != nil {
		return 0, run, err
	}
	rate := float64(count) / time.Since(begin).Seconds()
	run.raw, err = rawEvents(posts, count)
	return rate, run, err
}

// hook is a signed post.
type hook struct {
	body                 []byte
	timestamp, signature string
}

// hook posts events to the webhook receiver.
func (r *rig) hook(h *hook) error {
	to := "http://" + r.addr + "/webhooks/sg"
	q, err := http.NewRequestWithContext(r.b.ctx, http.MethodPost, to, bytes.NewReader(h.body))
	if err != nil {
		return err
	}
	q.Header.Set("Content-Type", "application/json")
	q.Header.Set(signatureHeader, h.signature)
	q.Header.Set(timestampHeader, h.timestamp)
	resp, err := r.http.Do(q)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("a webhook was answered %d: %s", resp.StatusCode, text)
	}
	return err
}

// deliveries sends mail in one batch, and returns the signed posts of its deliveries, which the product did not get.
func (r *rig) deliveries(rec *recorder, count, perPost int) ([]hook, error) {
	if _, err := r.post(batchStream(count, "")); err != nil {
		return nil, err
	}
	if _, err := r.taken(int64(count)); err != nil {
		return nil, err
	}
	if err := r.wait(func() (bool, error) { return rec.count() >= count, nil }); err != nil {
		return nil, err
	}
	return signed(rec.events, perPost)
}

func signed(events []json.RawMessage, perPost int) ([]hook, error) {
	der, err := base64.StdEncoding.DecodeString(simulated.SendGridKey)
	if err != nil {
		return nil, err
	}
	parsed, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, err
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok {
		return nil, errors.New("not an ECDSA key")
	}
	var posts []hook
	now := strconv.FormatInt(time.Now().Unix(), 10)
	for len(events) > 0 {
		n := min(perPost, len(events))
		parts := make([]string, n)
		for i, e := range events[:n] {
			parts[i] = string(e)
		}
		events = events[n:]
		h := hook{body: []byte("[" + strings.Join(parts, ",") + "]"), timestamp: now}
		sum := sha256.Sum256(append([]byte(now), h.body...))
		sig, err := ecdsa.SignASN1(rand.Reader, key, sum[:])
		if err != nil {
			return nil, err
		}
		h.signature = base64.StdEncoding.EncodeToString(sig)
		posts = append(posts, h)
	}
	return posts, nil
}

// rawEvents measures signature checks and JSON decoding of the posts on all processors,
// without HTTP and without storing.
func rawEvents(posts []hook, count int) (float64, error) {
	der, err := base64.StdEncoding.DecodeString(simulated.SendGridPublicKey)
	if err != nil {
		return 0, err
	}
	parsed, err := x509.ParsePKIXPublicKey(der)
	if err != nil {
		return 0, err
	}
	key, ok := parsed.(*ecdsa.PublicKey)
	if !ok {
		return 0, errors.New("not an ECDSA key")
	}
	l, err := each(len(posts), runtime.GOMAXPROCS(0), func(i int) error {
		sig, err := base64.StdEncoding.DecodeString(posts[i].signature)
		if err != nil {
			return err
		}
		sum := sha256.Sum256(append([]byte(posts[i].timestamp), posts[i].body...))
		if !ecdsa.VerifyASN1(key, sum[:], sig) {
			return errors.New("the driver's own signature is invalid")
		}
		var events []struct {
			Email, Event string
			Timestamp    int64
			ID           string `json:"sg_event_id"`
			Log          string `json:"sd_log"`
			Attempt      any    `json:"sd_attempt"`
			Reason       string
		}
		return json.Unmarshal(posts[i].body, &events)
	})
	return l.rate(count), err
}
