// Package drill rehearses faults: providers, workers, the broker and the store break while mail is being sent, and
// every mail is counted at the simulated providers afterwards.
//
// A run has scenarios. Each scenario is one drill: it starts servers of its own in an environment, sends mail, injects
// its fault, waits until everything is healthy again and counts. Scenarios that users can run are in scenario.go. The
// tests of the package add harder ones, which trouble servers that others may use.
package drill

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/config"
	"github.com/safedelivr/safedelivr/lab/simulated"
)

// Options set up a run.
type Options struct {
	// Config names the broker and the store. Nothing else of it is used.
	Config config.Config
	// Providers are simulated. Those of the scenarios that break one break the first. The default is simulated.Usual.
	Providers simulated.Pair
	// Program is the executable whose command "rehearsed" serves and whose command "check" recounts. The default is this
	// program.
	Program string
	// Only are the names of the scenarios to run. The default is all of them.
	Only []string
	// Recipients is the size of the batches that each scenario begins with.
	Recipients int
	// Parallel is how many scenarios run at a time.
	Parallel int
	// Seed chooses the moments at which things break. The default is a new one.
	Seed uint64
	// Progress is where the run says what happens.
	Progress io.Writer
	// Log is where the run's own connections to broker and store log.
	Log *slog.Logger
}

// check returns an error that names the flag that sets an option that is wrong.
func (o *Options) check() error {
	if o.Recipients < 100 || o.Recipients > 100_000 {
		return fmt.Errorf("--recipients %d: from 100 to 100,000", o.Recipients)
	}
	if o.Parallel < 1 || o.Parallel > 16 {
		return fmt.Errorf("--parallel %d: from 1 to 16", o.Parallel)
	}
	return nil
}

// chosen returns the scenarios to run.
func (o *Options) chosen() ([]*scenario, error) {
	var out []*scenario
	for i := range scenarios {
		if len(o.Only) == 0 || slices.Contains(o.Only, scenarios[i].name) {
			out = append(out, &scenarios[i])
		}
	}
	for _, name := range o.Only {
		if !slices.ContainsFunc(out, func(s *scenario) bool { return s.name == name }) {
			return nil, fmt.Errorf("--only %s: there is no such scenario; see --list", name)
		}
	}
	return out, nil
}

// Run runs scenarios and reports what came of them. It returns an error if a scenario could not run or something that
// it created could not be removed. Mistakes that the scenarios found are in the Report.
func Run(ctx context.Context, o Options) (Report, error) {
	if err := o.check(); err != nil {
		return Report{}, err
	}
	todo, err := o.chosen()
	if err != nil {
		return Report{}, err
	}
	r := newRun(o)
	r.progress("", "%d scenarios on %s and %s with %s, %d at a time, seed %d",
		len(todo), r.setup.store(), r.setup.broker(), r.setup.pair.Fill("<first> and <second>"), r.o.Parallel, r.o.Seed)
	results, left := r.all(ctx, todo)
	if ctx.Err() != nil {
		return Report{}, errors.Join(ctx.Err(), left)
	}
	if !slices.ContainsFunc(results, func(r Result) bool { return r.NA == "" }) {
		none := errors.New("nothing was rehearsed: no chosen scenario is possible on this set-up; see --list")
		return Report{}, errors.Join(none, left)
	}
	return r.report(results), left
}

// run is one run.
type run struct {
	o     Options
	setup setup
	began time.Time
	mu    sync.Mutex // of Progress
}

func newRun(o Options) *run {
	for o.Seed == 0 {
		o.Seed = rand.Uint64() //nolint:gosec // it chooses moments, and is printed
	}
	return &run{o: o, setup: newSetup(o), began: time.Now()}
}

// all runs scenarios, some at a time. Each lane has an environment, which is removed in the end.
func (r *run) all(ctx context.Context, todo []*scenario) ([]Result, error) {
	results := make([]Result, len(todo))
	next := make(chan int, len(todo))
	for i := range todo {
		next <- i
	}
	close(next)
	var lanes sync.WaitGroup
	errs := make([]error, min(r.o.Parallel, len(todo)))
	for i := range errs {
		lanes.Go(func() {
			l := &lane{run: r}
			for i := range next {
				results[i] = l.one(ctx, todo[i])
			}
			l.leave(ctx)
			errs[i] = errors.Join(l.none, l.left)
		})
	}
	lanes.Wait()
	return results, errors.Join(errs...)
}

// lane runs one scenario after the other.
type lane struct {
	*run
	env  *environment // nil until it is needed
	none error        // why there can be no environment
	left error        // what could not be removed
}

func (l *lane) one(ctx context.Context, s *scenario) Result {
	if l.env == nil && l.none == nil {
		l.env, l.none = l.setup.newEnvironment(ctx)
	}
	if l.none != nil || ctx.Err() != nil {
		return Result{Name: s.name, Mistakes: []string{"not rehearsed"}}
	}
	if why := s.impossible(&l.setup); why != "" {
		l.progress(s.name, "n/a: %s", why)
		return Result{Name: s.name, NA: why}
	}
	d := newDrill(l.env, s, l.o, func(format string, args ...any) { l.progress(s.name, format, args...) })
	res := d.play(ctx)
	if !res.Good() {
		l.leave(ctx) // the next scenario must not find what this one has left undone
	}
	return res
}

// leave removes the environment.
func (l *lane) leave(ctx context.Context) {
	if l.env != nil {
		l.left = errors.Join(l.left, l.env.remove(context.WithoutCancel(ctx)))
		l.env = nil
	}
}

// progress prints a line.
func (r *run) progress(name, format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Fprintf(r.o.Progress, "%6.1fs  %-22s %s\n", time.Since(r.began).Seconds(), name, fmt.Sprintf(format, args...))
}

func (r *run) report(results []Result) Report {
	return Report{
		Seed:    r.o.Seed,
		Store:   r.setup.store(),
		Broker:  r.setup.broker(),
		Results: results,
		Seconds: round(time.Since(r.began)),
		Good:    !slices.ContainsFunc(results, func(r Result) bool { return !r.Good() }),
	}
}

// Listing is the scenarios and which of them are possible on a set-up.
type Listing struct {
	Store     string           `json:"store"`
	Broker    string           `json:"broker"`
	Scenarios []ListedScenario `json:"scenarios"`
}

// ListedScenario is a scenario in a Listing.
type ListedScenario struct {
	Name  string `json:"name"`
	Story string `json:"story"`
	NA    string `json:"not_applicable,omitempty"` // why it is not possible here
}

// List returns the scenarios and which of them are possible on the set-up of some options.
func List(o Options) Listing {
	set := newSetup(o)
	out := Listing{Store: set.store(), Broker: set.broker()}
	for i := range scenarios {
		s := &scenarios[i]
		out.Scenarios = append(out.Scenarios, ListedScenario{Name: s.name, Story: set.pair.Fill(s.story), NA: s.impossible(&set)})
	}
	return out
}
