package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/safedelivr/safedelivr/lab/attack"
)

// hostile measures the time from the post of an urgent mail to its arrival at the provider: when idle, then while
// another user tries to keep the product busy. The other user has the limits of the configuration.
func (b *bench) hostile(be *backend) error {
	return b.attacked(be, "urgent mail, post to provider, while another user sends requests that take long to refuse",
		func(r *rig) (func() string, error) { return r.attack(r.hostileKey) })
}

// stranger measures the same during an attack without a key.
func (b *bench) stranger(be *backend) error {
	return b.attacked(be, "urgent mail, post to provider, while a stranger holds connections and guesses links and keys",
		func(r *rig) (func() string, error) { return r.attack("") })
}

// attacked measures urgent mail when idle and during what begin begins and stop ends. stop returns what it was.
func (b *bench) attacked(
	be *backend, title string, begin func(r *rig) (stop func() string, err error), settings ...string,
) error {
	fmt.Fprintln(os.Stderr, be.title+":", title)
	r, err := b.newRig(be, &rigOptions{latency: bulkLatency, concurrency: bulkAtOnce, env: settings})
	if err != nil {
		return err
	}
	defer r.close()
	idle, err := r.idleUrgents(attackMails)
	if err != nil {
		return err
	}
	least, err := r.serve.peak()
	if err != nil {
		return err
	}
	stop, err := begin(r)
	if err != nil {
		return err
	}
	busy, err := r.urgents(attackMails, always)
	answers := stop()
	if err != nil {
		return err
	}
	most, err := r.serve.peak()
	if err != nil {
		return err
	}
	detail := fmt.Sprintf("median; p95 %s, idle %s; %d mails each; %s; aim: at most 1.5 of idle",
		short(busy.quantile(0.95)), short(idle.quantile(0.95)), len(busy.times), answers)
	late := b.report.add(be, title, ms(busy.quantile(0.5)), "ms", detail, base{"idle", ms(idle.quantile(0.5))})
	large := b.report.add(be, title+": peak memory", float64(most)/1e6, "MB", "aim: at most 1.5 of idle",
		base{"idle", float64(least) / 1e6})
	return errors.Join(late.atMost(attackAim), large.atMost(attackAim))
}

// attackMails is how many urgent mails are measured: in a run of seconds the beginning of an attack decides.
const attackMails = 200

// attackAim is how much of the idle figure an attack may make of it.
const attackAim = 1.5

// attack starts a process that sends hostile requests. stop ends it and returns its output. The scheduler runs the
// process only while nothing else wants a processor, because a real attacker has processors of its own.
func (r *rig) attack(key string) (stop func() string, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(r.b.ctx, "chrt", "--idle", "0", self, "-attack", r.addr)
	cmd.Env = append(os.Environ(), "BENCH_KEY="+key)
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

// runAttack sends hostile requests to an address until ctx ends, and prints how many were answered.
func runAttack(ctx context.Context, addr string) {
	key := os.Getenv("BENCH_KEY")
	if key == "" {
		s := attack.NewStranger(addr)
		s.Send(ctx)
		fmt.Printf("%d requests of a stranger answered\n", s.Answered())
		return
	}
	a := attack.New(addr, key)
	a.Send(ctx)
	fmt.Printf("%d hostile requests answered, %d of them 429\n", a.Answered(), a.Limited())
}
