package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
)

// The providers are the bottleneck of this measurement. One slot of each is reserved for urgent mail. The other slots
// accept 40,000 recipients of bulk mail per second, so that the bulk batch lasts.
const (
	bulkLatency = 100 * time.Millisecond
	bulkAtOnce  = 3
)

// urgentAll measures the time from the post of an urgent mail to its arrival at the provider, by the provider's own
// log. It does so when idle, and during a bulk batch without its events and with them.
func (b *bench) urgentAll(be *backend) error {
	for _, webhooks := range []bool{false, true} {
		if err := b.urgentOne(be, webhooks); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) urgentOne(be *backend, webhooks bool) error {
	title := fmt.Sprintf("urgent mail, post to provider, while %s bulk mails go out", thousands(int64(b.bulk)))
	if webhooks {
		title += " and their events come in"
	}
	fmt.Fprintln(os.Stderr, be.title+":", title)
	r, err := b.newRig(be, &rigOptions{latency: bulkLatency, concurrency: bulkAtOnce, webhooks: webhooks})
	if err != nil {
		return err
	}
	defer r.close()
	idle, err := r.idleUrgents(b.urgents)
	if err != nil {
		return err
	}
	before, err := r.sim.Stats(b.ctx, "")
	if err != nil {
		return err
	}
	if _, err := r.post(batchStream(b.bulk, `,"lane":"bulk"`)); err != nil {
		return err
	}
	busy, err := r.urgents(b.urgents, func() (bool, error) {
		st, err := r.sim.Stats(b.ctx, "")
		return st.Accepted-before.Accepted < int64(b.bulk), err
	})
	if err != nil {
		return err
	}
	detail := fmt.Sprintf("median; p95 %s, idle %s; %d mails, idle %d; aim: at most 1.5 of idle",
		short(busy.quantile(0.95)), short(idle.quantile(0.95)), len(busy.times), len(idle.times))
	b.report.add(be, title, ms(busy.quantile(0.5)), "ms", detail, base{"idle", ms(idle.quantile(0.5))})
	return nil
}

// always lets urgents post all mails.
func always() (bool, error) { return true, nil }

// idleUrgents measures n urgent mails while nothing else is sent.
func (r *rig) idleUrgents(n int) (load, error) {
	if _, err := r.urgents(10, always); err != nil { // opens connections and fills caches
		return load{}, err
	}
	return r.urgents(n, always)
}

// urgents posts up to n urgent mails, one after the other, while going returns true, and
// measures the time until each arrives.
func (r *rig) urgents(n int, going func() (bool, error)) (load, error) {
	var l load
	for len(l.times) < n {
		if ok, err := going(); err != nil {
			return l, err
		} else if !ok {
			break
		}
		begin := time.Now()
		id, err := r.post(strings.NewReader(batchText(0, 1, `,"lane":"urgent"`)))
		if err != nil {
			return l, err
		}
		if err := r.wait(func() (bool, error) {
			copies, err := r.sim.Copies(r.b.ctx, id.Chunk(0).Log(1).String())
			if err != nil || len(copies) == 0 {
				return false, err
			}
			l.times = append(l.times, copies[0].At.Sub(begin))
			return true, nil
		}); err != nil {
			return l, err
		}
		time.Sleep(bulkLatency) // the mail occupies its slot meanwhile
	}
	slices.Sort(l.times)
	return l, nil
}

func ms(d time.Duration) float64 { return d.Seconds() * 1000 }
