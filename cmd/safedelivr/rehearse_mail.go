package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// posted is a batch that was accepted.
type posted struct {
	id models.ID
	n  int
	at time.Time // when posting it began
}

func (d *drill) all() []posted {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.batches)
}

// post has a batch accepted.
func (d *drill) post(ctx context.Context, n int) error {
	_, err := d.accept(ctx, d.letter(n))
	return err
}

// accept has a batch accepted: it repeats the request, under one key, until that
// is answered.
func (d *drill) accept(ctx context.Context, letter letter) (posted, error) {
	b := posted{n: len(letter.To), at: time.Now()}
	body, err := json.Marshal(letter)
	if err != nil {
		return b, err
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
			return b, err
		}
		if done {
			break
		}
		d.unanswered.Add(1)
		select {
		case <-t.C:
		case <-ctx.Done():
			return b, ctx.Err()
		}
	}
	if accepted.Recipients != b.n {
		return b, fmt.Errorf("a batch of %d recipients was accepted with %d", b.n, accepted.Recipients)
	}
	b.id = accepted.ID
	d.mu.Lock()
	defer d.mu.Unlock()
	d.batches = append(d.batches, b)
	return b, nil
}

// bouncing begins the addresses that no provider can deliver to.
const bouncing = "hardbounce"

// letter is a batch as the API takes it.
type letter struct {
	From      string   `json:"from"`
	Subject   string   `json:"subject"`
	Text      string   `json:"text"`
	To        []string `json:"to"`
	Providers []string `json:"providers,omitempty"`
}

// letter writes a batch, to recipients of the domains in turn. One address in a
// hundred bounces.
func (d *drill) letter(n int, domains ...string) letter {
	if len(domains) == 0 {
		domains = []string{"rehearse.test"}
	}
	to := make([]string, n)
	for i := range to {
		name := "user"
		if i%100 == 50 {
			name = bouncing + "+"
		}
		to[i] = fmt.Sprintf("%s%d@%s", name, i, domains[i%len(domains)])
	}
	return letter{"Rehearsal <drill@rehearse.test>", "This is a drill", "Nothing to do.", to, d.prefer}
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

// normal waits until every provider that was broken takes mail again, and new
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
				return err == nil && got.State == models.BatchDone && got.Counts.Success > 0 // of the first since
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
	err := poll(ctx, d.bound(drillLimit)+d.longer, "every log has a final state", func() (bool, error) {
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
	if err := d.sim.Settle(ctx); err != nil {
		return err
	}
	return d.evidenced(ctx)
}

func (d *drill) get(ctx context.Context, path string, out any) error {
	return d.client.do(ctx, http.MethodGet, path, nil, http.StatusOK, out)
}

func (d *drill) batch(ctx context.Context, id models.ID) (b demoBatch, err error) {
	return b, d.get(ctx, "/v1/batches/"+id.String(), &b)
}

// forge posts a bounce of every tenth mail to both doors. It returns how many were
// refused and how many were not.
func (d *drill) forge(ctx context.Context) (refused, taken int, err error) {
	now := time.Now().Unix()
	for _, b := range d.all() {
		for i := 0; i < b.n; i += 10 {
			log := b.id.Log(i%models.MaxChunkRecipients + 1)
			for provider, body := range map[string]string{
				"mg": fmt.Sprintf(`{"signature":{"timestamp":"%d","token":"%050d","signature":%q},"event-data":{"event":"failed","severity":"permanent",`+
					`"reason":"bounce","id":"forged%d","timestamp":%d.5,"recipient":"x@rehearse.test","user-variables":{"sd_log":%q,"sd_attempt":"1"},`+
					`"delivery-status":{"code":550,"message":"5.1.1 no such user"}}}`, now, i, strings.Repeat("0", 64), i, now, log),
				"sg": fmt.Sprintf(`[{"event":"bounce","type":"bounce","status":"5.1.1","email":"x@rehearse.test","timestamp":%d,"sg_event_id":"forged%d",`+
					`"sd_log":%q,"sd_attempt":"1"}]`, now, i, log),
			} {
				r, err := http.NewRequestWithContext(ctx, http.MethodPost, d.client.base+"/webhooks/"+provider, strings.NewReader(body))
				if err != nil {
					return refused, taken, err
				}
				r.Header.Set("Content-Type", "application/json")
				r.Header.Set("X-Twilio-Email-Event-Webhook-Timestamp", fmt.Sprint(now))
				r.Header.Set("X-Twilio-Email-Event-Webhook-Signature", "MEUCIQDforged")
				resp, err := http.DefaultClient.Do(r)
				if err != nil {
					return refused, taken, err
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
				if resp.StatusCode < 400 || resp.StatusCode >= 500 {
					taken++
				} else {
					refused++
				}
			}
		}
	}
	return refused, taken, nil
}
