package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
)

// rehearseOptions are the flags of rehearse.
type rehearseOptions struct {
	recipients int
	parallel   int
	seed       uint64
	only       []string
	list, json bool
}

func (c *cli) rehearseCommand() *cobra.Command {
	var o rehearseOptions
	cmd := &cobra.Command{
		Use: "rehearse", Short: "Rehearse failures: providers, workers, broker and store break, and every mail is counted", Args: cobra.NoArgs,
		Long: "Rehearse failures on this set-up: the embedded one, or, where they are configured, your own RabbitMQ and Cassandra, in\n" +
			"keyspaces and under names that are made for it and removed again. Providers are simulated: configured providers are not\n" +
			"used, and no mail goes out. In each scenario a batch is posted to a server of its own, something breaks in the middle of\n" +
			"it and is mended, and when all is settled the copies at the providers are counted against what the logs say. The exit\n" +
			"code is not 0 if anything was lost, doubled or does not add up.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.list {
				return c.listScenarios(o.json)
			}
			return c.rehearse(cmd.Context(), o)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&o.list, "list", false, "list the scenarios, and which have no meaning on this set-up")
	f.StringArrayVar(&o.only, "only", nil, "rehearse only this scenario; may be given several times")
	f.BoolVar(&o.json, "json", false, "print the results, or the list, as one JSON object; progress goes to stderr")
	f.IntVar(&o.recipients, "recipients", 2_000, "recipients of the batches that each scenario begins with, 100 to 100,000")
	f.IntVar(&o.parallel, "parallel", 4, "scenarios at a time, 1 to 16")
	f.Uint64Var(&o.seed, "seed", 0, "seed of the moments at which things break; 0: a new one")
	return cmd
}

// rehearsal is one run of the command.
type rehearsal struct {
	c     *cli
	o     rehearseOptions
	set   setUp
	began time.Time

	mu  sync.Mutex
	say io.Writer // of progress
}

// rehearsed is what rehearse --json prints.
type rehearsed struct {
	Seed    uint64   `json:"seed"`
	Store   string   `json:"store"`
	Broker  string   `json:"broker"`
	Results []result `json:"scenarios"`
	Seconds float64  `json:"seconds"`
	Good    bool     `json:"good"`
}

// chosen lists the scenarios of --only, or all.
func (o *rehearseOptions) chosen() ([]*scenario, error) {
	var out []*scenario
	for i := range scenarios {
		if len(o.only) == 0 || slices.Contains(o.only, scenarios[i].name) {
			out = append(out, &scenarios[i])
		}
	}
	for _, name := range o.only {
		if !slices.ContainsFunc(out, func(s *scenario) bool { return s.name == name }) {
			return nil, fmt.Errorf("--only %s: there is no such scenario; see --list", name)
		}
	}
	return out, nil
}

func (o *rehearseOptions) check() error {
	if o.recipients < 100 || o.recipients > 100_000 {
		return fmt.Errorf("--recipients %d: from 100 to 100,000", o.recipients)
	}
	if o.parallel < 1 || o.parallel > 16 {
		return fmt.Errorf("--parallel %d: from 1 to 16", o.parallel)
	}
	return nil
}

func (c *cli) rehearse(ctx context.Context, o rehearseOptions) error {
	if err := o.check(); err != nil {
		return err
	}
	todo, err := o.chosen()
	if err != nil {
		return err
	}
	set, err := c.setUp()
	if err != nil {
		return err
	}
	for o.seed == 0 {
		o.seed = rand.Uint64() //nolint:gosec // it chooses moments, and is printed
	}
	r := &rehearsal{c: c, o: o, set: set, began: time.Now(), say: c.out}
	if o.json {
		r.say = c.err
	}
	r.progress("", "%d scenarios on %s and %s, %d at a time, seed %d", len(todo), set.store(), set.broker(), o.parallel, o.seed)
	results, left := r.all(ctx, todo)
	if ctx.Err() != nil {
		return errors.Join(ctx.Err(), left)
	}
	if !slices.ContainsFunc(results, func(r result) bool { return r.NA == "" }) {
		return errors.Join(errors.New("nothing was rehearsed: none of these scenarios has a meaning on this set-up; see --list"), left)
	}
	out := rehearsed{Seed: o.seed, Store: set.store(), Broker: set.broker(), Results: results, Seconds: round(time.Since(r.began)),
		Good: !slices.ContainsFunc(results, func(r result) bool { return !r.good() })}
	if o.json {
		err = json.NewEncoder(c.out).Encode(out)
	} else {
		err = out.print(c.out)
	}
	if err = errors.Join(err, left); err == nil && !out.Good {
		err = exitCode(1)
	}
	return err
}

// all runs the scenarios, some at a time; each lane has a place of its own on
// the backends, which is removed in the end.
func (r *rehearsal) all(ctx context.Context, todo []*scenario) ([]result, error) {
	results := make([]result, len(todo))
	next := make(chan int, len(todo))
	for i := range todo {
		next <- i
	}
	close(next)
	var lanes sync.WaitGroup
	errs := make([]error, min(r.o.parallel, len(todo)))
	for lane := range errs {
		lanes.Go(func() {
			var p *place // nil: there is none
			var none error
			leave := func() {
				if p != nil { // what stays behind of it is in nobody's way
					errs[lane] = errors.Join(errs[lane], p.remove(context.WithoutCancel(ctx)))
				}
				p = nil
			}
			defer func() {
				leave()
				errs[lane] = errors.Join(none, errs[lane])
			}()
			for i := range next {
				if p == nil && none == nil {
					p, none = r.set.newPlace(ctx)
				}
				if none != nil || ctx.Err() != nil {
					results[i] = result{Name: todo[i].name, Mistakes: []string{"not rehearsed"}}
					continue
				}
				if results[i] = r.one(ctx, p, todo[i]); !results[i].good() {
					leave() // the next one would go on with what this one has left undone
				}
			}
		})
	}
	lanes.Wait()
	return results, errors.Join(errs...)
}

func (r *rehearsal) one(ctx context.Context, p *place, s *scenario) result {
	if why := s.without(&r.set); why != "" {
		r.progress(s.name, "n/a: %s", why)
		return result{Name: s.name, NA: why}
	}
	return runScenario(ctx, p, s, r.o.recipients, r.o.seed, func(format string, args ...any) { r.progress(s.name, format, args...) })
}

// progress prints a line of what happens.
func (r *rehearsal) progress(name, format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Fprintf(r.say, "%6.1fs  %-22s %s\n", time.Since(r.began).Seconds(), name, fmt.Sprintf(format, args...))
}

// print prints the table.
func (out *rehearsed) print(to io.Writer) error {
	fmt.Fprintln(to)
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "scenario\taccepted\tdelivered\tfailed\theld\tlost\tdoubled\tfirst mail\tnormal\t\t")
	for i := range out.Results {
		x := &out.Results[i]
		if x.NA != "" {
			fmt.Fprintf(w, "%s\t\t\t\t\t\t\t\t\tn/a\t\n", x.Name)
			continue
		}
		verdict := "ok"
		if !x.good() {
			verdict = "WRONG"
		}
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%d\t%d\t%s\t%s\t%s\t\n", x.Name, x.Accepted, x.Delivered, x.Failed, x.Held, x.Lost, x.Doubled,
			seconds(x.FirstMail), seconds(x.Normal), verdict)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for i := range out.Results {
		for _, m := range out.Results[i].Mistakes {
			fmt.Fprintf(to, "WRONG  %s: %s\n", out.Results[i].Name, m)
		}
	}
	notes := []string{
		"first mail: from the break to the first mail through another provider; where no provider broke, to the first mail at all",
		"normal: from the mending until every provider takes mail again and new mail is delivered",
		"held: the outcome is unknown or the provider never said more; the log says so, and nothing is sent again on its own",
	}
	_, err := fmt.Fprintf(to, "\n%s\n%.0f s in all, seed %d\n", strings.Join(notes, "\n"), out.Seconds, out.Seed)
	return err
}

func seconds(s float64) string {
	if s <= 0 {
		return "–"
	}
	return fmt.Sprintf("%.2f s", s)
}
