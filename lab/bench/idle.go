package main

import (
	"fmt"
	"os"
	"time"
)

// idle measures the CPU time of the product while nothing is due: agenda, heartbeats,
// sums, command log and history poll and find nothing.
func (b *bench) idle(be *backend) error {
	const title = "idle, nothing due: the product's processor time"
	fmt.Fprintln(os.Stderr, be.title+":", title)
	r, err := b.newRig(be, &rigOptions{concurrency: atOnce, webhooks: true})
	if err != nil {
		return err
	}
	defer r.close()
	const mails = 1000
	if _, err := r.post(batchStream(mails, "")); err != nil {
		return err
	}
	if err := r.wait(func() (bool, error) {
		t, err := r.totals()
		time.Sleep(100 * time.Millisecond)
		return t.Delivered == mails, err
	}); err != nil {
		return err
	}
	if err := b.rest(10 * time.Second); err != nil { // work after the end of a batch
		return err
	}
	before, begin := r.serve.cpu(), time.Now()
	if err := b.rest(b.idleFor); err != nil {
		return err
	}
	took := time.Since(begin)
	b.report.add(
		be,
		title,
		float64((r.serve.cpu()-before).Microseconds())/1e3/took.Seconds(),
		"ms/s",
		fmt.Sprintf("over %.0f s, after a batch of %s was done", took.Seconds(), thousands(mails)),
	)
	return nil
}

// rest waits for a while.
func (b *bench) rest(d time.Duration) error {
	select {
	case <-b.ctx.Done():
		return b.ctx.Err()
	case <-time.After(d):
		return nil
	}
}
