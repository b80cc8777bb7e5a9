package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"gotest.tools/gotestsum/testjson"
)

const (
	slowest  = 10 // tests in the list of the slowest
	maxFlaky = 2  // flaky tests that a run may have
	maxSlow  = 10 // tests over the limit that are measured again
	maxLines = 60 // lines of a failed test's output
)

// report judges a run.
type report struct {
	out   io.Writer
	again func(f *failure, log string) rerun
	limit time.Duration

	passed   int
	failures []failure
	cases    []outcome
	red      []outcome // tests that failed
	held     []string  // tests over the limit that were within it alone
}

// failure is a test that failed, or a package that failed without a failed test.
type failure struct {
	pkg, test string // no test: the package
	why       string
	slow      bool     // it passed, over the limit
	flags     []string // of go test
	log       string   // folder and name without extension
}

// root returns the name of the top-level test.
func (f *failure) root() string {
	root, _, _ := strings.Cut(f.test, "/")
	return root
}

// againLog returns the name of the log of a test that runs again.
func (f *failure) againLog() string { return fmt.Sprintf("%s.%s.again.log", f.log, f.root()) }

// rerun is the result of a test that ran alone, twice.
type rerun struct {
	passed  bool // both times
	shorter time.Duration
}

// outcome is a test that ran.
type outcome struct {
	pkg, test string
	took      time.Duration
	flags     []string // of go test
	log       string   // folder and name without extension
}

// folder judges all logs of a folder. Beside NAME.json, NAME.flags has the flags of go test, one on each line.
func (r *report) folder(dir, slow string, names bool) (good bool, err error) {
	logs, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return false, err
	}
	if len(logs) == 0 {
		return false, errors.New("no log in " + dir)
	}
	for _, log := range logs {
		if err := r.read(log); err != nil {
			return false, fmt.Errorf("%s: %w", log, err)
		}
	}
	if names {
		for _, c := range r.cases {
			_, _ = fmt.Fprintln(r.out, c.pkg, c.test)
		}
		return true, nil
	}
	allowed, err := readAllowed(slow)
	if err != nil {
		return false, err
	}
	r.checkLimit(allowed)
	r.checkTwins()
	flaky := r.runAgain()
	r.measureAgain()
	r.print(flaky)
	return len(r.failures) == 0 && len(flaky) <= maxFlaky, nil
}

// read adds the results of a log.
func (r *report) read(log string) error {
	f, err := os.Open(filepath.Clean(log))
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	run, err := testjson.ScanTestOutput(testjson.ScanConfig{Stdout: f, IgnoreNonJSONOutputLines: true})
	if err != nil {
		return err
	}
	name := strings.TrimSuffix(log, ".json")
	raw, err := os.ReadFile(name + ".flags")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	flags := strings.Fields(string(raw))
	for _, e := range run.Errors() {
		r.failures = append(r.failures, failure{why: e, flags: flags, log: name})
	}
	for _, pkg := range run.Packages() {
		p := run.Package(pkg)
		for _, c := range p.Passed {
			r.cases = append(r.cases, outcome{pkg, c.Test.Name(), c.Elapsed, flags, name})
		}
		r.passed += len(p.Passed)
		r.readFailed(p, pkg, flags, name)
	}
	return nil
}

// readFailed adds what failed and what was skipped in a package.
func (r *report) readFailed(p *testjson.Package, pkg string, flags []string, log string) {
	for _, c := range p.Skipped {
		why := "skipped, which is a failure here:\n" + strings.Join(p.OutputLines(c), "")
		r.failures = append(r.failures, failure{pkg: pkg, test: c.Test.Name(), why: why, log: log})
	}
	roots := map[string]int{}
	for _, c := range p.Failed {
		r.red = append(r.red, outcome{pkg, c.Test.Name(), c.Elapsed, flags, log})
		root, _ := c.Test.Split()
		text := strings.Join(p.OutputLines(c), "")
		if i, ok := roots[root]; ok {
			r.failures[i].why += text
			continue
		}
		roots[root] = len(r.failures)
		r.failures = append(r.failures, failure{pkg: pkg, test: c.Test.Name(), why: text, flags: flags, log: log})
	}
	if p.Result() == testjson.ActionFail && len(p.Failed) == 0 {
		var text strings.Builder
		if err := p.WriteOutputTo(&text, 0); err != nil {
			text.WriteString(err.Error())
		}
		r.failures = append(r.failures, failure{pkg: pkg, why: text.String(), flags: flags, log: log})
	}
}

// checkLimit adds the tests that took too long, other than those that may.
func (r *report) checkLimit(allowed map[string]bool) {
	if r.limit == 0 {
		return
	}
	for _, c := range r.cases {
		pkg := c.pkg[strings.LastIndex(c.pkg, "safedelivr/")+len("safedelivr/"):]
		if c.took > r.limit && !strings.Contains(c.test, "/") && !allowed[pkg+" "+c.test] {
			why := fmt.Sprintf("took %.1f s of %.1f s; make it faster, or list it with a reason\n",
				c.took.Seconds(), r.limit.Seconds())
			f := failure{pkg: c.pkg, test: c.test, why: why, slow: true, flags: c.flags, log: c.log}
			r.failures = append(r.failures, f)
		}
	}
}

// Parts of the names of tests that run on several backends.
const (
	embedded        = "embedded"
	rabbitCassandra = "rabbitmq+cassandra"
	postgres        = "postgres"
)

// serverNames are what people call the servers.
var serverNames = map[string]string{rabbitCassandra: "RabbitMQ and Cassandra", postgres: "PostgreSQL"}

// checkTwins adds the tests that ran on the embedded backends and not on the servers. One that failed there is among
// the failures already. It checks nothing if no test ran on RabbitMQ and Cassandra: then the run had no servers.
func (r *report) checkTwins() {
	ran, on := map[string]bool{}, map[string]bool{}
	for _, c := range slices.Concat(r.cases, r.red) {
		ran[c.pkg+" "+c.test] = true
		for server := range serverNames {
			if strings.Contains(c.test+"/", "/"+server+"/") {
				on[server], on[c.pkg+" "+server] = true, true
			}
		}
	}
	if !on[rabbitCassandra] {
		return
	}
	for _, c := range r.cases {
		twins := twinsOf(c.pkg, c.test)
		if !on[c.pkg+" "+postgres] && hasPart(c.test, embedded) {
			delete(twins, postgres) // no test of this package runs on PostgreSQL
		}
		for _, server := range slices.Sorted(maps.Keys(twins)) {
			if !ran[twins[server]] {
				why := "did not run on " + serverNames[server] + "\n"
				r.failures = append(r.failures, failure{pkg: c.pkg, test: c.test, why: why})
			}
		}
	}
}

// suites are the conformance suites: test, package of the embedded backend, server, package of the server.
var suites = [][4]string{
	{"TestStore", "sqlite", rabbitCassandra, "cassandra"},
	{"TestStoreDurable", "sqlite", rabbitCassandra, "cassandra"},
	{"TestBroker", "inproc", rabbitCassandra, "rabbit"},
	{"TestStore", "sqlite", postgres, "postgres"},
	{"TestStoreDurable", "sqlite", postgres, "postgres"},
	{"TestBroker", "inproc", postgres, "postgres/queue"},
}

// twinsOf returns package and name of the same case on each server. There are none if the case is not of the embedded
// backends.
func twinsOf(pkg, test string) map[string]string {
	twins := map[string]string{}
	for _, s := range suites {
		module, ok := strings.CutSuffix(pkg, "/"+s[1])
		if ok && strings.HasPrefix(test, s[0]+"/") && (s[2] != postgres || hasTest(s[3], s[0])) {
			twins[s[2]] = module + "/" + s[3] + " " + test
		}
	}
	if hasPart(test, embedded) {
		for server := range serverNames {
			twins[server] = pkg + " " + replacePart(test, embedded, server)
		}
	}
	return twins
}

// hasPart reports whether a name of a test has this part.
func hasPart(test, part string) bool { return slices.Contains(strings.Split(test, "/"), part) }

// replacePart replaces the first such part of a name.
func replacePart(test, old, part string) string {
	parts := strings.Split(test, "/")
	parts[slices.Index(parts, old)] = part
	return strings.Join(parts, "/")
}

// hasTest reports whether a folder of the module has this test.
func hasTest(dir, test string) bool {
	files, _ := filepath.Glob(filepath.Join(filepath.FromSlash(dir), "*_test.go"))
	return slices.ContainsFunc(files, func(file string) bool {
		raw, err := os.ReadFile(filepath.Clean(file))
		return err == nil && strings.Contains(string(raw), "\nfunc "+test+"(")
	})
}

// runAgain runs failed tests that use a real clock again, and returns those that passed.
func (r *report) runAgain() (flaky []failure) {
	var again int
	for i := range r.failures {
		if mayRunAgain(&r.failures[i]) {
			again++
		}
	}
	if again > maxFlaky {
		return nil // the run has failed in any case
	}
	var left []failure
	for _, f := range r.failures {
		if log := f.againLog(); mayRunAgain(&f) && r.again(&f, log).passed {
			f.log = log
			flaky = append(flaky, f)
			continue
		}
		left = append(left, f)
	}
	r.failures = left
	return flaky
}

// measureAgain takes tests off the failures that are within the limit alone: other processes held them up. It does
// nothing if the run has failed in any case.
func (r *report) measureAgain() {
	if len(r.failures) > maxSlow || slices.ContainsFunc(r.failures, func(f failure) bool { return !f.slow }) {
		return
	}
	var left []failure
	for _, f := range r.failures {
		switch alone := r.again(&f, f.againLog()); {
		case !alone.passed:
			f.why += "alone it failed: " + f.againLog() + "\n"
		case alone.shorter > r.limit:
			f.why += fmt.Sprintf("alone it took %.1f s\n", alone.shorter.Seconds())
		default:
			r.held = append(r.held, fmt.Sprintf("%s %s %s, and %.1f s alone", short(f.pkg), f.test,
				strings.SplitN(f.why, ";", 2)[0], alone.shorter.Seconds()))
			continue
		}
		left = append(left, f)
	}
	r.failures = left
}

// real are words in test files that use a real clock, a server or a browser.
var real = []string{"Eventually(", "time.Sleep(", "time.Now()", "httptest.", "testkit.", "chromedp."}

// mayRunAgain reports whether a failed test is of a package with such tests.
func mayRunAgain(f *failure) bool {
	if f.test == "" || f.slow || f.flags == nil || f.log == "" {
		return false
	}
	_, dir, _ := strings.Cut(f.pkg, "safedelivr/safedelivr")
	files, _ := filepath.Glob(filepath.Join(".", dir, "*_test.go"))
	for _, file := range files {
		raw, err := os.ReadFile(filepath.Clean(file))
		if err == nil && slices.ContainsFunc(real, func(w string) bool { return strings.Contains(string(raw), w) }) {
			return true
		}
	}
	return false
}

func (r *report) print(flaky []failure) {
	slices.SortStableFunc(r.cases, func(a, b outcome) int { return int(b.took - a.took) })
	p := func(format string, a ...any) { _, _ = fmt.Fprintf(r.out, format+"\n", a...) }
	p("slowest tests:")
	n := 0
	for _, c := range r.cases {
		if n < slowest && !strings.Contains(c.test, "/") {
			p("%8.1f s  %s %s", c.took.Seconds(), short(c.pkg), c.test)
			n++
		}
	}
	for _, test := range r.held {
		p("SLOW  %s", test)
	}
	for _, f := range flaky {
		p("FLAKY %s %s failed once, and passed twice alone: %s", short(f.pkg), f.test, f.log)
		p("%s", lastLines(f.why))
	}
	if len(flaky) > maxFlaky {
		p("FAIL  %d flaky tests, at most %d may be", len(flaky), maxFlaky)
	}
	for _, f := range r.failures {
		p("FAIL  %s %s\n%s", short(f.pkg), f.test, lastLines(f.why))
	}
	p("%d tests passed, %d failed, %d flaky", r.passed, len(r.failures), len(flaky))
}

func short(pkg string) string {
	_, after, found := strings.Cut(pkg, "safedelivr/safedelivr")
	if !found {
		return pkg
	}
	return "." + after
}

// lastLines returns the end of a text, indented.
func lastLines(text string) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	lines = lines[max(0, len(lines)-maxLines):]
	return "      " + strings.Join(lines, "\n      ")
}

// readAllowed reads the tests that may take longer from files, which are separated by commas. Each needs a reason.
func readAllowed(files string) (map[string]bool, error) {
	allowed := map[string]bool{}
	for file := range strings.SplitSeq(files, ",") {
		if file == "" {
			continue
		}
		if err := addAllowed(allowed, file); err != nil {
			return nil, err
		}
	}
	return allowed, nil
}

func addAllowed(allowed map[string]bool, file string) error {
	f, err := os.Open(filepath.Clean(file))
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		text := strings.TrimSpace(lines.Text())
		if text == "" || strings.HasPrefix(text, "#") {
			continue
		}
		fields := strings.Fields(text)
		if len(fields) < 3 {
			return fmt.Errorf("%s: %q has no reason", file, text)
		}
		allowed[fields[0]+" "+fields[1]] = true
	}
	return lines.Err()
}
