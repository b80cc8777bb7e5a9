package cassandra

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/gocql/gocql"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/store"
)

// Config says where the cluster is and how it is used. Empty fields have the defaults that are named in their comments.
// Hosts has none.
type Config struct {
	Hosts       []string // names or addresses, with or without a port
	Keyspace    string   // safedelivr
	Username    string   // none
	Password    string
	LocalDC     string        // none: all nodes are used equally
	Replication string        // {'class': 'SimpleStrategy', 'replication_factor': 1}; for a new keyspace
	Consistency string        // LOCAL_QUORUM, of reads and writes
	Serial      string        // LOCAL_SERIAL, of compare-and-set
	Timeout     time.Duration // 10 s; how long a call tries
	Migrate     bool          // whether Open applies missing parts of the schema
	TLS         *tls.Config   // none; the names of nodes are checked
	Logger      *slog.Logger  // none
	store.Options

	// For tests.
	lockTTL  time.Duration // of the lock of migrations; 30 s
	minTries time.Duration // how long one request may take; half of Timeout
	observer observer      // of requests; none
}

// observer is told of each request.
type observer interface {
	gocql.QueryObserver
	gocql.BatchObserver
}

var (
	keyspaces    = regexp.MustCompile(`^[a-z][a-z0-9_]{0,47}$`)
	replications = regexp.MustCompile(`^\{[\w\s':,.-]*\}$`)
)

// levels are the consistency levels in use.
type levels struct {
	plain  gocql.Consistency
	serial gocql.SerialConsistency
}

// complete fills in defaults and checks the fields. Errors: models.ErrInvalid.
func (c Config) complete() (Config, levels, error) {
	var l levels
	def := func(v *string, to string) {
		if *v == "" {
			*v = to
		}
	}
	def(&c.Keyspace, "safedelivr")
	def(&c.Replication, "{'class': 'SimpleStrategy', 'replication_factor': 1}")
	def(&c.Consistency, "LOCAL_QUORUM")
	def(&c.Serial, "LOCAL_SERIAL")
	c.Consistency, c.Serial = strings.ToUpper(c.Consistency), strings.ToUpper(c.Serial)
	if c.Timeout <= 0 {
		c.Timeout = 10 * time.Second
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.lockTTL <= 0 {
		c.lockTTL = 30 * time.Second
	}
	if c.minTries <= 0 {
		c.minTries = c.Timeout / 2
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	var err error
	if l.plain, err = gocql.ParseConsistencyWrapper(c.Consistency); err != nil || l.plain == gocql.Any {
		return c, l, fmt.Errorf("%w: consistency %q", models.ErrInvalid, c.Consistency)
	}
	switch c.Serial {
	case "SERIAL":
		l.serial = gocql.Serial
	case "LOCAL_SERIAL":
		l.serial = gocql.LocalSerial
	default:
		return c, l, fmt.Errorf("%w: serial consistency %q: it is SERIAL or LOCAL_SERIAL", models.ErrInvalid, c.Serial)
	}
	switch {
	case len(c.Hosts) == 0:
		return c, l, fmt.Errorf("%w: no hosts", models.ErrInvalid)
	case !keyspaces.MatchString(c.Keyspace):
		return c, l, fmt.Errorf("%w: %q is not the name of a keyspace", models.ErrInvalid, c.Keyspace)
	case !replications.MatchString(c.Replication):
		return c, l, fmt.Errorf("%w: replication %q is not a CQL map", models.ErrInvalid, c.Replication)
	}
	return c, l, nil
}

// contacts returns the hosts that have the port of the first one, and that port. The driver uses one port for all
// contacts and learns the ports of other nodes from them, so contacts with other ports would be confused. Discovery
// must stay on: without it the driver does not recover from an outage, because its refresh of the ring removes the only
// node.
func (c *Config) contacts() (hosts []string, port int, err error) {
	for i, h := range c.Hosts {
		p := 9042
		if _, text, split := net.SplitHostPort(h); split == nil {
			if p, err = strconv.Atoi(text); err != nil {
				return nil, 0, fmt.Errorf("%w: host %q", models.ErrInvalid, h)
			}
		}
		if i == 0 {
			port = p
		}
		if p == port {
			hosts = append(hosts, h)
		}
	}
	return hosts, port, nil
}
