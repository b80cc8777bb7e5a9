package main

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const module = "github.com/safedelivr/safedelivr/"

// line is an event of go test -json.
type line struct {
	Action, Package, Test, Output string `json:",omitempty"`
	Elapsed                       float64
}

// logOf writes a log of lines to a folder.
func logOf(t *testing.T, dir, name string, lines ...line) {
	t.Helper()
	var out strings.Builder
	for _, l := range lines {
		raw, err := json.Marshal(l)
		require.NoError(t, err)
		out.Write(append(raw, '\n'))
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, name+".json"), []byte(out.String()), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, name+".flags"), []byte("-race\n-count=1\n"), 0o600))
}

// ended returns the lines of a test.
func ended(pkg, test, action string, seconds float64) []line {
	return []line{
		{Action: "run", Package: module + pkg, Test: test},
		{Action: "output", Package: module + pkg, Test: test, Output: "output of " + test + "\n"},
		{Action: action, Package: module + pkg, Test: test, Elapsed: seconds},
	}
}

// judged returns the verdict on a folder, the output, and the tests that ran again.
func judged(t *testing.T, dir, slow string, limit time.Duration, passes bool) (good bool, out string, again []string) {
	t.Helper()
	var text strings.Builder
	r := report{out: &text, limit: limit, again: func(f *failure, log string) rerun {
		require.Equal(t, []string{"-race", "-count=1"}, f.flags)
		require.True(t, strings.HasPrefix(log, dir))
		again = append(again, f.root())
		return rerun{passed: passes, shorter: time.Second}
	}}
	good, err := r.folder(dir, slow, false)
	require.NoError(t, err)
	return good, text.String(), again
}

func inModule(t *testing.T) {
	t.Helper()
	t.Chdir("../..")
}

func TestJudge(t *testing.T) {
	inModule(t)
	passed := ended("e2e", "TestA", "pass", 1)
	for name, c := range map[string]struct {
		lines  []line
		passes bool
		good   bool
		again  []string
		says   string
	}{
		"passed":  {lines: passed, good: true, says: "1 tests passed, 0 failed, 0 flaky"},
		"skipped": {lines: ended("e2e", "TestA", "skip", 0), says: "skipped, which is a failure here"},
		"failed twice": {
			lines: ended("e2e", "TestA", "fail", 0), again: []string{"TestA"}, says: "FAIL  ./e2e TestA\n      output of TestA",
		},
		"flaky": {
			lines:  append(ended("e2e", "TestA", "fail", 0), line{Action: "fail", Package: module + "e2e"}),
			passes: true, good: true, again: []string{"TestA"}, says: "FLAKY ./e2e TestA",
		},
		"without a clock": { // its package has no test with a real clock
			lines: ended("service/table", "TestA", "fail", 0), passes: true, says: "FAIL  ./service/table TestA",
		},
		"no test failed": {
			lines: []line{
				{Action: "output", Package: module + "e2e", Output: "panic in TestMain\n"},
				{Action: "fail", Package: module + "e2e"},
			},
			says: "panic in TestMain",
		},
		"three flaky": {
			lines: append(append(ended("e2e", "TestA", "fail", 0), ended("e2e", "TestB", "fail", 0)...),
				ended("e2e", "TestC", "fail", 0)...),
			passes: true, says: "3 failed",
		},
		"not on the servers": {
			lines: append(ended("e2e", "TestA/embedded", "pass", 0), ended("e2e", "TestB/rabbitmq+cassandra", "pass", 0)...),
			says:  "did not run on RabbitMQ and Cassandra",
		},
		"flaky on the servers": {
			lines: slices.Concat(ended("e2e", "TestA/embedded", "pass", 0), ended("e2e", "TestA/rabbitmq+cassandra", "fail", 0),
				ended("e2e", "TestA", "fail", 0)),
			passes: true, good: true, again: []string{"TestA"}, says: "1 tests passed, 0 failed, 1 flaky",
		},
		"suites differ": {
			lines: append(ended("sqlite", "TestStore/Log", "pass", 0), ended("e2e", "TestB/rabbitmq+cassandra", "pass", 0)...),
			says:  "FAIL  ./sqlite TestStore/Log",
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			logOf(t, dir, "unit", c.lines...)
			good, out, again := judged(t, dir, "", 0, c.passes)
			require.Equal(t, c.good, good, out)
			require.Equal(t, c.again, again)
			require.Contains(t, out, c.says)
		})
	}
}

// TestNotOnPostgres: a case of the embedded backends that did not run on PostgreSQL fails a run on servers, once its
// package has tests there. A suite counts once the package of PostgreSQL declares it.
func TestNotOnPostgres(t *testing.T) {
	servers := ended("lab/drill", "TestFaults/rabbitmq+cassandra", "pass", 0)
	both := slices.Concat(servers, ended("e2e", "TestA/embedded", "pass", 0),
		ended("e2e", "TestA/rabbitmq+cassandra", "pass", 0))
	suite := slices.Concat(servers, ended("inproc", "TestBroker/Order", "pass", 0),
		ended("rabbit", "TestBroker/Order", "pass", 0))
	for name, c := range map[string]struct {
		lines    []line
		declares string // a test of the package postgres/queue
		says     string // nothing: the run is good
	}{
		"no test of the package": {lines: both},
		"some tests":             {lines: slices.Concat(both, ended("e2e", "TestB/postgres", "pass", 0)), says: "did not run on PostgreSQL"},
		"the test":               {lines: slices.Concat(both, ended("e2e", "TestA/postgres", "pass", 0))},
		"skipped":                {lines: slices.Concat(both, ended("e2e", "TestA/postgres", "skip", 0)), says: "skipped, which is a failure"},
		"no suite":               {lines: suite, declares: "TestOther"},
		"suite did not run":      {lines: suite, declares: "TestBroker", says: "did not run on PostgreSQL"},
		"suite":                  {lines: slices.Concat(suite, ended("postgres/queue", "TestBroker/Order", "pass", 0)), declares: "TestBroker"},
		"no servers":             {lines: ended("inproc", "TestBroker/Order", "pass", 0), declares: "TestBroker"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Chdir(t.TempDir())
			require.NoError(t, os.MkdirAll("postgres/queue", 0o750))
			source := "package queue\n\nfunc " + c.declares + "(t *testing.T) {}\n"
			require.NoError(t, os.WriteFile("postgres/queue/queue_test.go", []byte(source), 0o600))
			dir := t.TempDir()
			logOf(t, dir, "unit", c.lines...)
			good, out, _ := judged(t, dir, "", 0, false)
			require.Equal(t, c.says == "", good, out)
			require.Contains(t, out, c.says)
		})
	}
}

func TestSlow(t *testing.T) {
	inModule(t)
	dir := t.TempDir()
	logOf(t, dir, "unit", ended("models", "TestA", "pass", 2.5)...)
	good, out, _ := judged(t, dir, "", 2*time.Second, false)
	require.False(t, good)
	require.Contains(t, out, "took 2.5 s of 2.0 s")
	good, out, again := judged(t, dir, "", 2*time.Second, true)
	require.True(t, good, out)
	require.Contains(t, out, "SLOW  ./models TestA took 2.5 s of 2.0 s, and 1.0 s alone")
	require.Equal(t, []string{"TestA"}, again)
	good, out, _ = judged(t, dir, "", 900*time.Millisecond, true)
	require.False(t, good, out)
	require.Contains(t, out, "alone it took 1.0 s")
	good, out, _ = judged(t, dir, "", 2*time.Second, false)
	require.False(t, good, out)
	require.Contains(t, out, "alone it failed: ")
	var many []line
	for n := range maxSlow {
		many = append(many, ended("models", fmt.Sprintf("TestMany%d", n), "pass", 2.5)...)
	}
	logOf(t, dir, "many", many...)
	good, out, again = judged(t, dir, "", 2*time.Second, true)
	require.False(t, good, out)
	require.Empty(t, again, "so many are no chance")
	require.NoError(t, os.Remove(filepath.Join(dir, "many.json")))
	slow := filepath.Join(t.TempDir(), "slow.txt")
	require.NoError(t, os.WriteFile(slow, []byte("# comment\nmodels TestA many values\n"), 0o600))
	good, out, _ = judged(t, dir, slow, 2*time.Second, false)
	require.True(t, good, out)
	require.NoError(t, os.WriteFile(slow, []byte("models TestA\n"), 0o600))
	_, err := (&report{out: &strings.Builder{}}).folder(dir, slow, false)
	require.ErrorContains(t, err, "has no reason")
}

// TestHeavy: scripts/test leaves the heavy tests out of one run by their names, and runs them in their packages in
// another one. So no other package may have a test of such a name.
func TestHeavy(t *testing.T) {
	inModule(t)
	heavy, err := readAllowed("internal/testreport/heavy.txt")
	require.NoError(t, err)
	names := map[string]bool{}
	for key := range heavy {
		_, name, _ := strings.Cut(key, " ")
		names[name] = true
	}
	require.NoError(t, filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		raw, err := os.ReadFile(filepath.Clean(path))
		for _, m := range testName.FindAllStringSubmatch(string(raw), -1) {
			key := filepath.ToSlash(filepath.Dir(path)) + " " + m[1]
			if names[m[1]] && !heavy[key] && !plain.MatchString(key) {
				t.Errorf("%s is left out: list it in heavy.txt, or give it another name", key)
			}
			delete(heavy, key)
		}
		return err
	}))
	require.Empty(t, heavy, "there is no such test")
}

var (
	testName = regexp.MustCompile(`(?m)^func (Test[A-Za-z0-9_]+)\(`)
	// plain matches the tests that run without the race detector in any case.
	plain = regexp.MustCompile(`^(\.|lab/demo|internal/site|cmd/safedelivr|e2e|lab/drill|cassandra|rabbit|postgres(/\S+)?) `)
)

// TestNoLog: a folder without a log is a mistake, not a good run.
func TestNoLog(t *testing.T) {
	_, err := (&report{out: &strings.Builder{}}).folder(t.TempDir(), "", false)
	require.ErrorContains(t, err, "no log")
}

// TestReadRerun: a test that is skipped when it runs again has not passed. The shorter time counts.
func TestReadRerun(t *testing.T) {
	t.Parallel()
	const pass, skip = "=== RUN   TestA\n--- PASS: TestA (0.01s)\n", "=== RUN   TestA\n--- SKIP: TestA (0.01s)\n"
	require.Equal(t, rerun{true, 10 * time.Millisecond}, readRerun("TestA", "--- PASS: TestA (3.50s)\n"+pass+"PASS\n"))
	for _, output := range []string{
		skip + skip + "PASS\n", pass + pass + "    --- SKIP: TestA/b (0.00s)\n", "PASS\n", pass,
	} {
		require.Zero(t, readRerun("TestA", output), output)
	}
	require.Zero(t, readRerun("Test", pass+pass))
}
