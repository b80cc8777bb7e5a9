package cassandra

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gocql/gocql"

	"github.com/safedelivr/safedelivr/internal/priority"
	"github.com/safedelivr/safedelivr/models"
)

// pageRows is the most rows of a page.
const pageRows = 500

// cluster translates the configuration for the driver. The driver must not retry: this version would also retry what is
// not idempotent.
func (c *Config) cluster(l levels, keyspace string) (*gocql.ClusterConfig, error) {
	contacts, port, err := c.contacts()
	if err != nil {
		return nil, err
	}
	g := gocql.NewCluster(contacts...)
	g.ProtoVersion = 4
	g.Port = port
	g.Keyspace = keyspace
	g.Consistency, g.SerialConsistency = l.plain, l.serial
	g.Timeout, g.WriteTimeout = c.minTries, c.minTries
	g.ConnectTimeout = c.minTries
	g.SocketKeepalive = 15 * time.Second
	g.NumConns = 4
	g.DefaultTimestamp = false // it would come from the clock of this process
	g.PageSize = pageRows
	g.ReconnectInterval = 5 * time.Second
	g.RetryPolicy = nil
	g.Logger = driverLog{c.Logger}
	if c.observer != nil {
		g.QueryObserver, g.BatchObserver = c.observer, c.observer
	}
	if c.Username != "" {
		g.Authenticator = gocql.PasswordAuthenticator{Username: c.Username, Password: c.Password}
	}
	if c.TLS != nil {
		g.SslOpts = &gocql.SslOptions{Config: c.TLS, EnableHostVerification: true}
	}
	near := gocql.RoundRobinHostPolicy()
	if c.LocalDC != "" {
		near = gocql.DCAwareRoundRobinPolicy(c.LocalDC)
	}
	g.PoolConfig.HostSelectionPolicy = gocql.TokenAwareHostPolicy(near)
	return g, nil
}

// connect opens a session. The driver takes no context while it connects, so connect abandons it if ctx ends first.
func (c *Config) connect(ctx context.Context, l levels, keyspace string) (*gocql.Session, error) {
	g, err := c.cluster(l, keyspace)
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, errors.Join(models.ErrUnavailable, err)
	}
	type result struct {
		session *gocql.Session
		err     error
	}
	made := make(chan result, 1)
	go func() {
		s, err := g.CreateSession()
		made <- result{s, err}
	}()
	select {
	case r := <-made:
		if r.err != nil {
			return nil, fmt.Errorf("connect to Cassandra at %s: %w: %w", strings.Join(c.Hosts, ", "), models.ErrUnavailable,
				r.err)
		}
		return r.session, nil
	case <-ctx.Done():
		go func() {
			if r := <-made; r.session != nil {
				r.session.Close()
			}
		}()
		return nil, fmt.Errorf("connect to Cassandra at %s: %w", strings.Join(c.Hosts, ", "),
			errors.Join(models.ErrUnavailable, ctx.Err()))
	}
}

// once runs f on a new session.
func (c *Config) once(ctx context.Context, l levels, keyspace string, f func(*runner) error) error {
	session, err := c.connect(ctx, l, keyspace)
	if err != nil {
		return err
	}
	defer session.Close()
	return f(&runner{session: session, timeout: c.Timeout})
}

// driverLog logs the driver's messages at the debug level.
type driverLog struct{ log *slog.Logger }

func (d driverLog) Print(v ...any) {
	d.log.Debug("cassandra driver: " + strings.TrimSpace(fmt.Sprint(v...)))
}
func (d driverLog) Printf(format string, v ...any) {
	d.log.Debug("cassandra driver: " + strings.TrimSpace(fmt.Sprintf(format, v...)))
}
func (d driverLog) Println(v ...any) { d.Print(fmt.Sprintln(v...)) }

// The most statements with low priority that a process runs at once.
const (
	lowAlone  = 32
	lowBeside = 8 // while others run
)

// semaphore limits the statements with low priority (priority.WithLow), so that they do not delay others: a node runs
// statements in the order of their arrival.
type semaphore struct {
	mu      sync.Mutex
	others  int             // running statements with normal priority
	low     int             // running statements with low priority
	waiting []chan struct{} // waiting statements with low priority; closed to admit one
}

// acquire waits until a statement may be sent. The caller must call release after its answer.
func (t *semaphore) acquire(ctx context.Context) (release func(), err error) {
	if t == nil {
		return func() {}, nil
	}
	t.mu.Lock()
	if !priority.IsLow(ctx) {
		t.others++
		t.mu.Unlock()
		return t.releaseOther, nil
	}
	admitted := make(chan struct{})
	t.waiting = append(t.waiting, admitted)
	t.admit()
	t.mu.Unlock()
	select {
	case <-admitted:
		return t.releaseLow, nil
	case <-ctx.Done():
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if i := slices.Index(t.waiting, admitted); i >= 0 {
		t.waiting = slices.Delete(t.waiting, i, i+1)
	} else { // it was admitted meanwhile
		t.low--
		t.admit()
	}
	return nil, ctx.Err()
}

func (t *semaphore) releaseOther() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.others--
	t.admit()
}

func (t *semaphore) releaseLow() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.low--
	t.admit()
}

// admit admits waiting statements up to the limit. t.mu is held.
func (t *semaphore) admit() {
	most := lowAlone
	if t.others > 0 {
		most = lowBeside
	}
	for len(t.waiting) > 0 && t.low < most {
		close(t.waiting[0])
		t.waiting = t.waiting[1:]
		t.low++
	}
}
