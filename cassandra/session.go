package cassandra

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/gocql/gocql"

	"github.com/safedelivr/safedelivr/models"
)

// pageRows is how many rows a page of a cursor has.
const pageRows = 500

// cluster translates the configuration for the driver. The driver must not retry: this
// version would also retry what is not idempotent.
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

// connect opens a session. The driver takes no context while it connects, so connect
// abandons it if ctx ends first.
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
