package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/lab/simulator"
)

// postsAll measures updates that are posted to an endpoint, and how fast the mail
// that they are about is sent meanwhile.
func (b *bench) postsAll(be *backend) error {
	for _, o := range []struct {
		how        string
		recipients int
		settings   client.EndpointSettings
	}{
		{"up to 1,000 in a post", b.deliver, client.EndpointSettings{Batch: true}},
		{"one in a post", b.deliver / 10, client.EndpointSettings{}},
	} {
		title := fmt.Sprintf("updates of %s recipients posted to an endpoint, %s", thousands(int64(o.recipients)), o.how)
		fmt.Fprintln(os.Stderr, be.title+":", title)
		mail, _, err := b.postsRun(be, o.recipients, nil)
		if err != nil {
			return err
		}
		meanwhile, updates, err := b.postsRun(be, o.recipients, &o.settings)
		if err != nil {
			return err
		}
		b.report.add(be, title, updates, "updates/s", "from the first to the last post; one run")
		b.report.add(be, title+": accept to provider", meanwhile, "recipients/s", "one run; aim: at least 0.8",
			base{"without an endpoint", mail})
	}
	return b.postsDelay(be)
}

// hearer takes posts of one update, and notes when it heard of each log.
type hearer struct {
	mu sync.Mutex
	at map[string]time.Time
}

func (h *hearer) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	now := time.Now()
	var post struct {
		Data struct {
			Log string `json:"log"`
		} `json:"data"`
	}
	if err := json.NewDecoder(req.Body).Decode(&post); err != nil {
		return // the sender was stopped
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.at[post.Data.Log] = now
	w.WriteHeader(http.StatusNoContent)
}

// heard returns when it heard of a log; zero: it did not yet.
func (h *hearer) heard(log string) time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.at[log]
}

// postsDelay measures the time from the answer to an event of a provider to the post about it.
func (b *bench) postsDelay(be *backend) error {
	const title = "an event of a provider, answer to post at an endpoint"
	fmt.Fprintln(os.Stderr, be.title+":", title)
	rec := &recorder{}
	provider := httptest.NewServer(rec)
	defer provider.Close()
	r, err := b.newRig(be, &rigOptions{
		concurrency: atOnce,
		hooksTo:     provider.URL,
		kind:        simulator.SendGrid,
		eventDelay:  time.Millisecond,
		env:         []string{"SAFEDELIVR_ENDPOINT_NETWORKS=127.0.0.0/8"},
	})
	if err != nil {
		return err
	}
	defer r.close()
	h := &hearer{at: map[string]time.Time{}}
	app := httptest.NewServer(h)
	defer app.Close()
	if _, err := r.client.CreateEndpoint(b.ctx, client.EndpointSettings{URL: app.URL}); err != nil {
		return err
	}
	hooks, err := r.deliveries(rec, b.urgents, 1)
	if err != nil {
		return err
	}
	logs, answered := make([]string, len(hooks)), make([]time.Time, len(hooks))
	for i := range hooks {
		var events []struct {
			Log string `json:"sd_log"`
		}
		if err := json.Unmarshal(hooks[i].body, &events); err != nil {
			return err
		}
		logs[i] = events[0].Log
		if err := r.hook(&hooks[i]); err != nil {
			return err
		}
		answered[i] = time.Now()
		if i == 0 { // which has the workers find the endpoint
			if err := r.wait(func() (bool, error) { return !h.heard(logs[0]).IsZero(), nil }); err != nil {
				return err
			}
		}
		time.Sleep(time.Duration(rand.Int64N(int64(200 * time.Millisecond)))) // at any time of a renewal
	}
	var l load
	for i, log := range logs[1:] {
		if err := r.wait(func() (bool, error) { return !h.heard(log).IsZero(), nil }); err != nil {
			return err
		}
		l.times = append(l.times, h.heard(log).Sub(answered[i+1]))
	}
	slices.Sort(l.times)
	b.report.add(be, title, ms(l.quantile(0.5)), "ms",
		fmt.Sprintf("median; p99 %s; %d events; aim: within a second", short(l.quantile(0.99)), len(l.times)))
	return nil
}

// application takes posts and counts the updates in them.
type application struct {
	updates     atomic.Int64
	first, last atomic.Int64 // in nanoseconds since 1970
}

func (a *application) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return // the sender was stopped
	}
	now := time.Now().UnixNano()
	a.first.CompareAndSwap(0, now)
	a.last.Store(now)
	a.updates.Add(int64(bytes.Count(body, []byte(`"type":"log.delivered"`))))
	w.WriteHeader(http.StatusNoContent)
}

// postsRun sends mail and waits until an endpoint, if there is one, got all updates.
func (b *bench) postsRun(be *backend, recipients int, s *client.EndpointSettings) (mail, updates float64, err error) {
	r, err := b.newRig(be, &rigOptions{concurrency: atOnce, env: []string{
		"SAFEDELIVR_ENDPOINT_NETWORKS=127.0.0.0/8",
		"SAFEDELIVR_PROVIDERS_SG_EVENTS=none", // what a provider took counts as delivered
		"SAFEDELIVR_PROVIDERS_MG_EVENTS=none",
	}})
	if err != nil {
		return 0, 0, err
	}
	defer r.close()
	a := &application{}
	server := httptest.NewServer(a)
	defer server.Close()
	if s != nil {
		s.URL = server.URL
		if _, err := r.client.CreateEndpoint(b.ctx, *s); err != nil {
			return 0, 0, err
		}
	}
	begin := time.Now()
	failed := make(chan error, 1)
	go func() {
		_, err := each(recipients/1000, 8, func(i int) error {
			_, err := r.post(strings.NewReader(batchText(i*1000, 1000, "")))
			return err
		})
		failed <- err
	}()
	last, err := r.taken(int64(recipients))
	if err := errors.Join(<-failed, err); err != nil || s == nil {
		return float64(recipients) / last.Sub(begin).Seconds(), 0, err
	}
	err = r.wait(func() (bool, error) { return a.updates.Load() >= int64(recipients), nil })
	took := time.Duration(a.last.Load() - a.first.Load())
	return float64(recipients) / last.Sub(begin).Seconds(), float64(a.updates.Load()) / took.Seconds(), err
}
