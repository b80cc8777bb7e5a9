package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/safedelivr/safedelivr/config"
	"github.com/safedelivr/safedelivr/internal/app"
	"github.com/safedelivr/safedelivr/lab/simulated"
	"github.com/safedelivr/safedelivr/models"
)

// deliverAll measures the time from the first byte of a post to the last mail that a
// provider accepted. No events come back; events measures them.
func (b *bench) deliverAll(be *backend) error {
	for _, latency := range []time.Duration{0, 100 * time.Millisecond} {
		for _, perPost := range []int{1000, b.deliver} {
			how := "posts of 1,000"
			if perPost != 1000 {
				how = "one post"
			}
			title := fmt.Sprintf("accept to provider, %s answer time, %s recipients in %s",
				latency, thousands(int64(b.deliver)), how)
			if err := b.deliverOne(be, title, &rigOptions{latency: latency}, b.deliver, perPost); err != nil {
				return err
			}
		}
	}
	return nil
}

// kinds measures the same through one provider of each kind. What an adapter costs does not depend on the backend.
func (b *bench) kinds(be *backend) error {
	if be.name != backends()[0].name {
		return nil
	}
	var failed []error
	for _, kind := range simulated.Kinds() {
		title := fmt.Sprintf("accept to a provider of the kind %s, %s recipients", kind, thousands(int64(b.perKind)))
		failed = append(failed, b.deliverOne(be, title, &rigOptions{kind: kind}, b.perKind, 1000))
	}
	return errors.Join(failed...)
}

// atOnce is the concurrency of each provider.
const atOnce = 32

// deliverOne measures the delivery of recipients beside the same calls of the adapters alone.
func (b *bench) deliverOne(be *backend, title string, o *rigOptions, recipients, perPost int) error {
	fmt.Fprintln(os.Stderr, be.title+":", title)
	run := func() (float64, [2]time.Duration, error) {
		again := *o
		return b.deliverRun(be, &again, recipients, perPost)
	}
	rate, cpu, err := median(b.runs, run)
	if err != nil {
		return err
	}
	raw, _, err := median(b.runs, func() (float64, struct{}, error) {
		again := *o
		v, err := b.rawSend(be, &again, recipients)
		return v, struct{}{}, err
	})
	if err != nil {
		return err
	}
	per := func(d time.Duration) string { return fmt.Sprintf("%.1f", d.Seconds()*1e6/float64(recipients)) }
	detail := fmt.Sprintf("%d calls at once per provider; processor time per recipient: product %s us, simulator %s us",
		atOnce, per(cpu[0]), per(cpu[1]))
	b.report.add(be, title, rate, "recipients/s", detail, base{"adapters alone, same calls", raw})
	return nil
}

func (b *bench) deliverRun(
	be *backend,
	o *rigOptions,
	recipients, perPost int,
) (rate float64, cpu [2]time.Duration, err error) {
	o.concurrency = atOnce
	r, err := b.newRig(be, o)
	if err != nil {
		return 0, cpu, err
	}
	defer r.close()
	posts := recipients / perPost
	var bodies []string
	if perPost <= 1000 {
		for i := range min(posts, 50) {
			bodies = append(bodies, batchText(i*perPost, perPost, ""))
		}
	}
	warm := int64(0)
	if o.warm {
		if _, err := r.post(batchStream(1, "")); err != nil {
			return 0, cpu, err
		}
		if _, err := r.taken(1); err != nil {
			return 0, cpu, err
		}
		warm = 1
	}
	before := [2]time.Duration{r.serve.cpu(), r.provide.cpu()}
	begin := time.Now()
	var posted atomic.Int64
	failed := make(chan error, 1)
	go func() {
		_, err := each(posts, cmp.Or(o.posting, 8), func(i int) error {
			var body io.Reader
			if bodies == nil {
				body = batchStream(perPost, "")
			} else {
				body = strings.NewReader(bodies[i%len(bodies)])
			}
			to := r.client
			if o.keys != nil {
				to = r.as(o.keys(i))
			}
			_, err := to.CreateBatchJSON(b.ctx, body)
			posted.Add(1)
			return err
		})
		failed <- err
	}()
	last, err := r.taken(warm + int64(posts*perPost))
	if perr := <-failed; perr != nil {
		return 0, cpu, perr
	}
	if err != nil {
		return 0, cpu, err
	}
	cpu = [2]time.Duration{r.serve.cpu() - before[0], r.provide.cpu() - before[1]}
	if perPost == 1 {
		time.Sleep(b.after)
	}
	if st, serr := r.sim.Stats(b.ctx, ""); serr != nil || st.Doubled != 0 || st.Distinct != warm+int64(posts*perPost) {
		return 0, cpu, fmt.Errorf("lost or doubled: %+v %w", st, errors.Join(serr))
	}
	return float64(posts*perPost) / last.Sub(begin).Seconds(), cpu, nil
}

// rawSend measures the same calls through the same adapters, without HTTP server, store
// and broker.
func (b *bench) rawSend(be *backend, o *rigOptions, recipients int) (float64, error) {
	o.concurrency = atOnce
	r, err := b.newRig(be, o)
	if err != nil {
		return 0, err
	}
	defer r.close()
	cfg, err := config.Load("", r.env)
	if err != nil {
		return 0, err
	}
	specs, err := app.OpenProviders(&cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		return 0, err
	}
	defer app.CloseProviders(specs)
	content := models.Content{
		From:    models.Address{Email: "shop@bench.test", Name: "Shop"},
		Subject: "Your order {{order}}",
		Text:    "Dear {{first}}, order {{order}} is on its way.",
		HTML:    "<p>Dear <b>{{first}}</b>, order {{order}} is on its way.</p>",
	}
	size := specs[0].ChunkLimit
	calls := recipients / size
	batch := models.NewBatchID(time.Now())
	var refused atomic.Int64
	l, err := each(calls, len(specs)*atOnce, func(i int) error {
		call := models.Call{Batch: batch, Attempt: 1, Content: &content, Recipients: make([]models.CallRecipient, size)}
		for n := range call.Recipients {
			k := i*size + n
			call.Recipients[n] = models.CallRecipient{Log: batch.Chunk(i).Log(n + 1), Recipient: models.Recipient{
				Email: fmt.Sprintf("user%d@bench.test", k), Name: fmt.Sprintf("Person %d", k),
				Vars: map[string]string{"first": fmt.Sprintf("P%d", k), "order": fmt.Sprintf("%08d", k)}}}
		}
		for _, p := range specs[i%len(specs)].Adapter.Send(b.ctx, &call) {
			if p.Class != models.Accepted {
				refused.Add(1)
			}
		}
		return nil
	})
	if err == nil && refused.Load() > 0 {
		err = fmt.Errorf("%d calls were not accepted", refused.Load())
	}
	return l.rate(calls * size), err
}
