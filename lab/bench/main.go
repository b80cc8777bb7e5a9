// Command bench measures Safedelivr from outside: the product and the simulated providers run as separate processes,
// and bench posts and counts. For most figures it also measures a raw one, in the same run on the same machine: the
// cost of the same bytes without the product's promises.
//
// scripts/bench starts it with the services of the real backend.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

// sizes are the sizes of the measurements.
type sizes struct {
	runs       int           // the median of this many runs is reported
	bulkPosts  int           // posts of 1,000 recipients
	singles    int           // posts of one recipient, per connection
	conns      int           // connections that post
	deliver    int           // recipients sent to a provider
	perKind    int           // recipients sent to a provider of each kind
	oneEvents  int           // posts of one event
	manyEvents int           // events in posts of 1,000
	memory     []int         // recipients of one batch
	rows       int           // of a CSV file
	urgents    int           // urgent mails, idle and under bulk
	bulk       int           // recipients of that bulk batch
	failovers  int           // number of faults
	due        int           // entries of the agenda that are due at once
	dueReal    int           // the same on real servers, which store them slowly
	idleFor    time.Duration // how long the product is idle
	stored     int           // batches that are stored before single mails
	users      int           // users who send a mail each
}

var (
	full = sizes{
		runs:       3,
		bulkPosts:  400,
		singles:    1500,
		conns:      16,
		deliver:    300_000,
		perKind:    50_000,
		oneEvents:  20_000,
		manyEvents: 300_000,
		memory: []int{
			10_000,
			100_000,
			1_000_000,
		},
		rows:      1_000_000,
		urgents:   200,
		bulk:      1_000_000,
		failovers: 9,
		due:       1_000_000,
		dueReal:   100_000,
		idleFor:   2 * time.Minute,
		stored:    200_000,
		users:     10_000,
	}
	quick = sizes{runs: 1, bulkPosts: 100, singles: 200, conns: 16, deliver: 50_000, perKind: 5_000, oneEvents: 2_000, manyEvents: 50_000,
		memory: []int{
			10_000,
			100_000,
		}, rows: 50_000, urgents: 50, bulk: 200_000, failovers: 3, due: 100_000, dueReal: 10_000, idleFor: 20 * time.Second, stored: 20_000, users: 1_000}
)

// bench is one run of the driver.
type bench struct {
	sizes
	ctx     context.Context //nolint:containedctx // the driver's life is one call
	product string          // path of the binary
	dir     string
	report  report
	spent   map[string]time.Duration // processor time of the product, by what was measured; nil: it is not counted
	part    string                   // what is being measured
	after   time.Duration            // how long the product runs on after single mails
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	b := &bench{ctx: ctx}
	small := flag.Bool("quick", false, "small sizes, one run each")
	out := flag.String("out", "", "write the table as Markdown to this file")
	only := flag.String(
		"only",
		"",
		"measurements to run: accept, deliver, kinds, single, ways, suppressed, csv, events, urgent, "+
			"hostile, stranger, slow, failover, agenda, idle, memory; separated by commas",
	)
	on := flag.String("backends", "", "backends: embedded, real; separated by commas (default: all available)")
	versions := flag.String("versions", "", "versions of the servers, for the table")
	other := flag.String("compare", "", "path of the safedelivr binary of another build, to be measured by turns")
	rounds := flag.Int("rounds", 3, "number of rounds of a comparison")
	due := flag.Int("due", 0, "number of agenda entries that are due at once (default: by size and backend)")
	flag.StringVar(&b.product, "product", "", "path of the safedelivr binary")
	target := flag.String(
		"attack",
		"",
		"send hostile requests to this address, with the key in BENCH_KEY or as a stranger, and measure nothing",
	)
	flag.Parse()
	if *target != "" {
		runAttack(ctx, *target)
		return nil
	}
	if b.product == "" {
		return errors.New("set -product to the path of the binary; scripts/bench builds it")
	}
	b.sizes = full
	if *small {
		b.sizes = quick
	}
	if *due > 0 {
		b.due, b.dueReal = *due, *due
	}
	var err error
	if b.dir, err = os.MkdirTemp("", "safedelivr-bench-"); err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(b.dir) }()
	if *other != "" {
		if !*small {
			b.after = 90 * time.Second // the agenda looks at a mail after a minute
		}
		b.runs = 1
		return b.compare(*other, *rounds, func() error { return b.measure(*on, *only) })
	}
	err = b.measure(*on, *only)
	if ctx.Err() != nil {
		return err
	}
	b.report.small = *small
	b.report.print(os.Stdout, *versions)
	if *out != "" {
		err = errors.Join(err, b.report.write(*out, *versions))
	}
	return err
}

// part is a measurement.
type part struct {
	name string
	run  func(*backend) error
}

func (b *bench) parts() []part {
	return []part{
		{"accept", b.accept},
		{"deliver", b.deliverAll},
		{"kinds", b.kinds},
		{"single", b.single},
		{"ways", b.ways},
		{"suppressed", b.suppressed},
		{"csv", b.csv},
		{"events", b.events},
		{"posts", b.postsAll},
		{"urgent", b.urgentAll},
		{"hostile", b.hostile},
		{"stranger", b.stranger},
		{"slow", b.slow},
		{"failover", b.failoverAll},
		{"agenda", b.agendaAll},
		{"idle", b.idle},
		{"memory", b.memoryAll},
	}
}

// measure runs some parts on some backends; empty: all. It keeps the results of other measurements if one fails.
func (b *bench) measure(on, only string) error {
	var failed []error
	for _, be := range backends() {
		if on != "" && !slices.Contains(strings.Split(on, ","), be.name) {
			continue
		}
		for _, p := range b.parts() {
			if only != "" && !slices.Contains(strings.Split(only, ","), p.name) {
				continue
			}
			b.part = be.title + ": processor time of " + p.name
			if err := p.run(be); err != nil {
				err = fmt.Errorf("%s on %s: %w", p.name, be.title, err)
				if b.ctx.Err() != nil {
					return err
				}
				fmt.Fprintln(os.Stderr, "bench:", err)
				failed = append(failed, err)
			}
		}
	}
	return errors.Join(failed...)
}
