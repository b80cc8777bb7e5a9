package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/simulator"
)

// demoClient talks to the API as any user would.
type demoClient struct{ base, key string }

func (c *demoClient) do(ctx context.Context, method, path string, body io.Reader, want int, out any) error {
	r, err := http.NewRequestWithContext(ctx, method, c.base+path, body)
	if err != nil {
		return err
	}
	r.Header.Set("Authorization", "Bearer "+c.key)
	r.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != want {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1000))
		return fmt.Errorf("%s %s answered %d: %s", method, path, resp.StatusCode, text)
	}
	return json.NewDecoder(resp.Body).Decode(out)
}

// demoBatch is what the demo reads of a batch.
type demoBatch struct {
	ID     models.ID         `json:"id"`
	State  models.BatchState `json:"state"`
	Counts demoCounts        `json:"counts"`
}

type demoCounts struct {
	Accepted  int64                   `json:"accepted"`
	Queued    int64                   `json:"queued"`
	Success   int64                   `json:"success"`
	Failed    int64                   `json:"failed"`
	Cancelled int64                   `json:"cancelled"`
	Rerouted  int64                   `json:"rerouted"`
	Reasons   map[models.Reason]int64 `json:"failed_reasons"`
}

func (c *demoCounts) balanced() bool {
	return c.Accepted == c.Queued+c.Success+c.Failed+c.Cancelled
}

// address of recipient i: most are delivered; some bounce everywhere, and some
// are blocked by one provider only, which another one cures.
func demoAddress(i int) string {
	switch {
	case i%100 == 50:
		return fmt.Sprintf("hardbounce+%d@demo.test", i)
	case i%100 == 25:
		return fmt.Sprintf("blocked-sg+%d@demo.test", i)
	}
	return fmt.Sprintf("user%d@demo.test", i)
}

// body streams the batch.
func (d *demo) body() io.Reader {
	r, w := io.Pipe()
	go func() {
		b := bufio.NewWriter(w)
		_, _ = b.WriteString(`{"from":"Safedelivr demo <hello@demo.test>","subject":"Hello {{first}}","text":"Dear {{first}}, this is mail {{n}}.",` +
			`"html":"<p>Dear <b>{{first}}</b>, this is mail {{n}}.</p>","to":[`)
		for i := range d.o.recipients {
			if i > 0 {
				_ = b.WriteByte(',')
			}
			fmt.Fprintf(b, `{"email":%q,"vars":{"first":"Person %d","n":%d}}`, demoAddress(i), i, i)
		}
		_, _ = b.WriteString("]}")
		_ = w.CloseWithError(b.Flush()) // the reader sees it
	}()
	return r
}

// run sends the batch, breaks SendGrid when a part has gone through it, heals it
// a while later, and waits for the end.
func (d *demo) run(ctx context.Context) error {
	d.say("dashboard    %s", d.link)
	d.say("Safedelivr   %s   (data in %s)", d.client.base, d.o.dir)
	d.say("providers    simulated SendGrid (sg) and Mailgun (mg) on %s\n", d.simURL)
	d.awaitViewer(ctx)
	d.began = time.Now()
	var accepted struct {
		ID models.ID `json:"id"`
	}
	if err := d.client.do(ctx, http.MethodPost, "/v1/batches", d.body(), http.StatusAccepted, &accepted); err != nil {
		return err
	}
	d.batchID = accepted.ID
	d.say("%6.1fs  batch %s accepted and stored: %d recipients", d.seconds(), d.batchID, d.o.recipients)
	fault := ""
	t := time.NewTicker(100 * time.Millisecond)
	defer t.Stop()
	said := time.Time{}
	limit := time.NewTimer(5*time.Minute + time.Duration(d.o.recipients)*time.Millisecond)
	defer limit.Stop()
	for {
		var b demoBatch
		if err := d.client.do(ctx, http.MethodGet, "/v1/batches/"+d.batchID.String(), nil, http.StatusOK, &b); err != nil {
			return err
		}
		sg, mg := d.sim.Stats("sg"), d.sim.Stats("mg")
		if d.broken.IsZero() && (sg.Accepted+mg.Accepted)*4 >= int64(d.o.recipients) {
			fault = d.sim.Inject(simulator.Fault{Account: "sg", Mode: simulator.ModeStatus, Status: http.StatusServiceUnavailable})
			d.broken = time.Now()
			d.say("%6.1fs  ✗ SendGrid breaks: it answers 503 to everything", d.seconds())
		}
		over := b.State == models.BatchDone
		if d.healed.IsZero() && !d.broken.IsZero() && (time.Since(d.broken) > 2*time.Second || over) {
			d.sim.Clear(fault)
			d.healed = time.Now()
			d.say("%6.1fs  ✓ SendGrid is back", d.seconds())
		}
		if time.Since(said) > 500*time.Millisecond || over {
			said = time.Now()
			d.say("%6.1fs  %s %3d %%   sg %6d mails%s   mg %6d mails   queued %d  success %d  failed %d  rerouted %d", d.seconds(), bar(&b.Counts),
				percent(&b.Counts), sg.Accepted, health(sg.Refused, d.broken, d.healed), mg.Accepted, b.Counts.Queued, b.Counts.Success, b.Counts.Failed, b.Counts.Rerouted)
		}
		if over {
			return nil
		}
		select {
		case <-t.C:
		case <-limit.C:
			return fmt.Errorf("the batch did not end in time: %+v", b.Counts)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// viewerWait is how long the batch waits for somebody to open the dashboard.
const viewerWait = 10 * time.Second

// awaitViewer lets who opens the dashboard see the failover happen.
func (d *demo) awaitViewer(ctx context.Context) {
	if d.o.exit || d.o.json {
		return
	}
	d.say("open the dashboard to watch: the batch goes out once you are there, or in %.0f s\n", viewerWait.Seconds())
	ctx, cancel := context.WithTimeout(ctx, viewerWait)
	defer cancel()
	t := time.NewTicker(200 * time.Millisecond)
	defer t.Stop()
	for !d.app.dashboard.Arrived(ctx, d.user.ID) {
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
	}
}

func (d *demo) seconds() float64 { return time.Since(d.began).Seconds() }

func percent(c *demoCounts) int64 {
	if c.Accepted == 0 {
		return 0
	}
	return (c.Accepted - c.Queued) * 100 / c.Accepted
}

func bar(c *demoCounts) string {
	out := []rune("····················")
	for i := range int(percent(c)) / 5 {
		out[i] = '█'
	}
	return string(out)
}

func health(refused int64, broken, healed time.Time) string {
	if !broken.IsZero() && healed.IsZero() {
		return fmt.Sprintf(" ✗ down, %d calls refused", refused)
	}
	return ""
}
