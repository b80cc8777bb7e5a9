// Package testkit has what the tests of whole programs share: the backends that they run on and the built program.
package testkit

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/postgres"
)

// Patience bounds the wait for a state.
const Patience = 4 * time.Minute

// WithinHour waits for the next hour if this one ends soon. Tests of limits per hour or day use it.
func WithinHour() {
	if left := time.Until(time.Now().Truncate(time.Hour).Add(time.Hour)); left < 2*time.Minute {
		time.Sleep(left)
	}
}

// Long reports whether tests run at the largest size: scripts/test --full --long.
func Long() bool { return os.Getenv("SAFEDELIVR_TEST_LONG") != "" }

// Full reports whether tests run as before a release: scripts/test --full.
func Full() bool { return os.Getenv("SAFEDELIVR_TEST_FULL") != "" }

// Mails returns how many mails a test sends: few, or many before a release.
func Mails(few, many int) int {
	if Full() {
		return many
	}
	return few
}

// Backend is a store and a broker.
type Backend struct {
	Name string
	// Env returns settings with names that no other test uses. It skips the test if the servers are not there.
	Env func(t *testing.T) []string
	// Real reports whether they are servers.
	Real bool
}

// Embedded is the embedded store and the in-process broker.
func Embedded() Backend {
	return Backend{
		Name: "embedded",
		Env:  func(t *testing.T) []string { return []string{"SAFEDELIVR_DATA_DIR=" + t.TempDir()} },
	}
}

// Servers is RabbitMQ and Cassandra. Tests skip if they are not started; scripts/test starts them and counts a skip
// as a failure.
func Servers() Backend {
	return Backend{Name: "rabbitmq+cassandra", Real: true, Env: func(t *testing.T) []string {
		amqp, hosts := os.Getenv("SAFEDELIVR_TEST_AMQP_URL"), os.Getenv("SAFEDELIVR_TEST_CASSANDRA_HOSTS")
		if amqp == "" || hosts == "" {
			t.Skip("needs RabbitMQ and Cassandra: start them with scripts/services up and load the environment it prints")
		}
		id := models.NewUserID()
		t.Cleanup(func() { deleteQueues(t, "t"+id) })
		return []string{
			"SAFEDELIVR_DATA_DIR=" + t.TempDir(),
			"SAFEDELIVR_AMQP_URL=" + amqp,
			"SAFEDELIVR_AMQP_PREFIX=t" + id,
			"SAFEDELIVR_CASSANDRA_HOSTS=" + hosts,
			"SAFEDELIVR_CASSANDRA_KEYSPACE=t" + id,
		}
	}}
}

// Postgres is PostgreSQL as store and broker. Tests skip if it is not started; scripts/test starts it and counts a skip
// as a failure.
func Postgres() Backend {
	return Backend{Name: "postgres", Real: true, Env: func(t *testing.T) []string {
		server := os.Getenv("SAFEDELIVR_TEST_POSTGRES_URL")
		if server == "" {
			t.Skip("needs PostgreSQL: start it with scripts/services up and load the environment it prints")
		}
		schema := "t" + models.NewUserID()
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			if err := postgres.Drop(ctx, postgres.Config{URL: server, Schema: schema}); err != nil {
				t.Errorf("drop the schema: %v", err)
			}
		})
		return []string{
			"SAFEDELIVR_DATA_DIR=" + t.TempDir(),
			"SAFEDELIVR_STORE=" + server,
			"SAFEDELIVR_POSTGRES_SCHEMA=" + schema,
		}
	}}
}

// deleteQueues deletes the queues of a test. Each would go on taking processor time of the broker.
func deleteQueues(t *testing.T, prefix string) {
	t.Helper()
	api := os.Getenv("SAFEDELIVR_TEST_RABBIT_API")
	if api == "" {
		return
	}
	ask := func(method, path string) (*http.Response, error) {
		//nolint:gosec // the address is that of the tests' own broker
		req, err := http.NewRequestWithContext(context.Background(), method, api+"/api/queues/%2F"+path, nil)
		if err != nil {
			return nil, err
		}
		return http.DefaultClient.Do(req) //nolint:gosec // as above
	}
	resp, err := ask(http.MethodGet, "?columns=name&use_regex=true&name=%5E"+prefix)
	if err != nil {
		t.Log("the broker does not list its queues:", err) // a test may have stopped it
		return
	}
	defer func() { _ = resp.Body.Close() }()
	var queues []struct{ Name string }
	if err := json.NewDecoder(resp.Body).Decode(&queues); err != nil {
		t.Log("the broker does not list its queues:", err)
		return
	}
	for _, q := range queues {
		if resp, err := ask(http.MethodDelete, "/"+q.Name); err == nil {
			_ = resp.Body.Close()
		}
	}
}

// Backends returns all backends.
func Backends() []Backend { return []Backend{Embedded(), Servers(), Postgres()} }

// OnBackends runs a test on all backends at the same time, and beside other tests: most of the time each waits.
func OnBackends(t *testing.T, f func(t *testing.T, b Backend)) {
	t.Helper()
	t.Parallel()
	for _, b := range Backends() {
		t.Run(b.Name, func(t *testing.T) {
			t.Parallel()
			f(t, b)
		})
	}
}

// Main builds the program, runs the tests with its path and returns their exit code, for TestMain. The folder root is
// that of the module.
func Main(m *testing.M, root string, program *string) int {
	dir, err := os.MkdirTemp("", "safedelivr-program-")
	if err == nil {
		defer func() { _ = os.RemoveAll(dir) }()
		*program = filepath.Join(dir, "safedelivr")
		err = build(root, *program)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

func build(root, program string) error {
	cmd := exec.Command("go", "build", "-o", program, "./cmd/safedelivr") //nolint:gosec,noctx // before all tests
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return errors.Join(err, errors.New(string(out)))
	}
	return nil
}

// Log writes to the log of a test.
type Log struct{ T *testing.T }

// Write implements io.Writer.
func (l Log) Write(p []byte) (int, error) {
	l.T.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

// Output collects what a process prints while a test reads it.
type Output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write implements io.Writer.
func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

// String returns the printed text.
func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}
