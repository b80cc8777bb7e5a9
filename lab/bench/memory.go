package main

import (
	"fmt"
	"os"
	"time"
)

// memoryAll measures the product's peak memory for one batch: upload, dispatch, and all
// events.
func (b *bench) memoryAll(be *backend) error {
	for _, n := range b.memory {
		title := fmt.Sprintf("peak memory, %s recipients in one batch", thousands(int64(n)))
		fmt.Fprintln(os.Stderr, be.title+":", title)
		peak, took, err := b.memoryRun(be, n)
		if err != nil {
			return err
		}
		b.report.add(
			be,
			title,
			peak,
			"MB",
			fmt.Sprintf("with all events, done after %.1f s; aim: under 150 MB", took.Seconds()),
		)
	}
	return nil
}

func (b *bench) memoryRun(be *backend, n int) (float64, time.Duration, error) {
	r, err := b.newRig(be, &rigOptions{concurrency: atOnce, webhooks: true})
	if err != nil {
		return 0, 0, err
	}
	defer r.close()
	begin := time.Now()
	if _, err := r.post(batchStream(n, "")); err != nil {
		return 0, 0, err
	}
	if err := r.wait(func() (bool, error) {
		t, err := r.totals()
		time.Sleep(25 * time.Millisecond) // keeps the cost of polling low
		return t.Delivered == int64(n), err
	}); err != nil {
		t, _ := r.totals()
		return 0, 0, fmt.Errorf("%w: %+v", err, t)
	}
	took := time.Since(begin)
	peak, err := r.serve.peak()
	return float64(peak) / 1e6, took, err
}
