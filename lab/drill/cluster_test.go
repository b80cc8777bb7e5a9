//go:build full

package drill

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/internal/testkit"
)

// clusterNodes is the number of nodes of a cluster.
const clusterNodes = 3

// TestLostNodes starts clusters of RabbitMQ and kills one node, and two. At full size it kills a node of Cassandra, too,
// and runs the scenarios with wrong clocks.
func TestLostNodes(t *testing.T) {
	environ := testkit.Servers().Env(t)
	for _, lost := range []struct {
		server string
		make   func(*cluster) *scenario
	}{
		{"rabbitmq", brokerNodeKilled},
		{"rabbitmq", brokerWithoutMajority},
		{"cassandra", storeNodeKilled},
	} {
		if lost.server == "cassandra" && !testkit.Long() {
			continue
		}
		c := &cluster{server: lost.server}
		s := lost.make(c)
		if !chosen(s.name) {
			continue
		}
		t.Run(s.name, func(t *testing.T) {
			c.start(t)
			runAlone(t, s, append(environ, c.settings...))
		})
	}
	if testkit.Long() {
		wrongClocks(t, environ)
	}
}

// runAlone runs a scenario while no other one runs.
func runAlone(t *testing.T, s *scenario, environ []string) {
	t.Helper()
	r := newTestRun(t, environ)
	results, err := r.all(t.Context(), []*scenario{s})
	require.NoError(t, err)
	r.show(t, s.story, results)
	require.True(t, results[0].Good(), "%s: %s", s.name, &results[0])
}

// cluster is a cluster of one server, with its own folder and ports.
type cluster struct {
	server   string   // rabbitmq, cassandra, postgres
	environ  []string // of scripts/services
	ports    map[string]int
	settings []string // of the product
}

// start starts the nodes; they end with the test.
func (c *cluster) start(t *testing.T) {
	t.Helper()
	// scripts/test knows the folder and stops the nodes if this ends early.
	dir := filepath.Join(os.Getenv("SAFEDELIVR_TEST_CLUSTERS"), c.server)
	if os.Getenv("SAFEDELIVR_TEST_CLUSTERS") == "" {
		var err error
		dir, err = os.MkdirTemp("", "safedelivr-cluster-")
		require.NoError(t, err)
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
	}
	c.environ = append(os.Environ(),
		"SAFEDELIVR_SERVICES_ENGINE=packages",
		"SAFEDELIVR_SERVICES_DIR="+dir,
		"SAFEDELIVR_CASSANDRA_HEAP=384M")
	c.ports = map[string]int{}
	for _, name := range []string{
		"RABBIT_PORT", "RABBIT_TLS_PORT", "RABBIT_API_PORT", "RABBIT_DIST_PORT", "RABBIT_EPMD_PORT", "CQL_PORT",
		"CASSANDRA_STORAGE_PORT", "POSTGRES_PORT",
	} {
		c.ports[name] = freePorts(t, slices.Collect(maps.Values(c.ports)))
		c.environ = append(c.environ, "SAFEDELIVR_"+name+"="+strconv.Itoa(c.ports[name]))
	}
	began := time.Now()
	t.Cleanup(func() {
		_, err := c.services(context.Background(), "down", c.server) //nolint:usetesting // the test's context has ended
		require.NoError(t, err)
	})
	_, err := c.services(t.Context(), "up", "--nodes", strconv.Itoa(clusterNodes), c.server)
	require.NoError(t, err)
	t.Logf("%d nodes of %s are up after %.1f s", clusterNodes, c.server, time.Since(began).Seconds())
	var list []string
	for i := range clusterNodes {
		if c.server == "rabbitmq" {
			list = append(list, "amqp://guest:guest@"+c.addr(i)+"/")
		} else {
			list = append(list, c.addr(i))
		}
	}
	switch c.server {
	case "rabbitmq":
		c.settings = []string{"SAFEDELIVR_AMQP_URL=" + strings.Join(list, ",")}
	case "cassandra":
		c.settings = []string{"SAFEDELIVR_CASSANDRA_HOSTS=" + strings.Join(list, ","),
			fmt.Sprintf("SAFEDELIVR_CASSANDRA_REPLICATION="+
				"{'class': 'NetworkTopologyStrategy', 'datacenter1': %d}", clusterNodes)}
	}
}

// freePorts returns the first of consecutive free ports, one for each node.
func freePorts(t *testing.T, taken []int) int {
	t.Helper()
	for range 100 {
		first := 20_000 + 10*rand.IntN(1_200) //nolint:gosec // any free ones will do
		if slices.Contains(taken, first) {
			continue
		}
		var all []net.Listener
		for i := range clusterNodes {
			l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(first+i)))
			if err == nil {
				all = append(all, l)
			}
		}
		for _, l := range all {
			_ = l.Close()
		}
		if len(all) == clusterNodes {
			return first
		}
	}
	require.Fail(t, "no free ports")
	return 0
}

func (c *cluster) services(ctx context.Context, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "../../scripts/services", args...) //nolint:gosec // of this suite
	cmd.Env = c.environ
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("scripts/services %v: %w: %s", args, err, errs.String())
	}
	return out, err
}

// addr returns the address of node i, from 0, for clients.
func (c *cluster) addr(i int) string {
	switch c.server {
	case "rabbitmq":
		return net.JoinHostPort("127.0.0.1", strconv.Itoa(c.ports["RABBIT_PORT"]+i))
	case "postgres":
		return net.JoinHostPort("127.0.0.1", strconv.Itoa(c.ports["POSTGRES_PORT"]+i))
	}
	return net.JoinHostPort("127.0.0."+strconv.Itoa(i+1), strconv.Itoa(c.ports["CQL_PORT"]))
}

// name returns the name of node i for scripts/services.
func (c *cluster) name(i int) string { return c.server + "-" + strconv.Itoa(i+1) }

// down reports whether node i refuses connections.
func (c *cluster) down(ctx context.Context, i int) bool {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", c.addr(i))
	if err == nil {
		_ = conn.Close()
	}
	return err != nil && ctx.Err() == nil
}

// without kills node i, requires that mail is sent and a worker starts without it, and starts it again.
func (c *cluster) without(ctx context.Context, d *drill, i int, holds func() error) error {
	if _, err := c.services(ctx, "kill", c.name(i)); err != nil {
		return err
	}
	killed := time.Now()
	if err := d.until(ctx, c.name(i)+" is down", func() bool { return c.down(ctx, i) }); err != nil {
		return err
	}
	d.say("%s is down", c.name(i))
	before, unanswered := d.sim.taken(""), d.mail.unanswered.Load()
	if err := d.flows(ctx, killed, before+int64(d.mail.recipients/10)); err != nil {
		return fmt.Errorf("without %s: %w: %d mails were sent, %d requests had no answer",
			c.name(i), err, d.sim.taken("")-before, d.mail.unanswered.Load()-unanswered)
	}
	flowing := time.Since(killed)
	// A worker that starts now must work without the node, too.
	d.servers.kill(d.servers.worker)
	if err := d.servers.restart(ctx); err != nil {
		return err
	}
	if err := d.flows(ctx, time.Now(), d.sim.taken("")+int64(d.mail.recipients/20)); err != nil {
		return err
	}
	if err := holds(); err != nil {
		return err
	}
	if !c.down(ctx, i) {
		return fmt.Errorf("%s was meant to be down all the time", c.name(i))
	}
	d.say("%d mails were sent without %s, new ones were delivered after %.1f s, %d requests had no answer at first",
		d.sim.taken("")-before, c.name(i), flowing.Seconds(), d.mail.unanswered.Load()-unanswered)
	_, err := c.services(ctx, "start", c.name(i))
	return err
}

// flows waits until a number of mails were sent and a batch that was posted after a time is done.
func (d *drill) flows(ctx context.Context, after time.Time, mails int64) error {
	return poll(ctx, 2*d.mail.bound(patience), "mail is sent", func() (bool, error) {
		if d.sim.taken("") < mails && !d.quiet() {
			return false, nil
		}
		for _, b := range d.mail.all() {
			if b.at.After(after) {
				got, err := d.user.batch(ctx, b.id)
				return err == nil && got.State == client.BatchDone, nil
			}
		}
		return false, nil
	})
}

// brokerNodeKilled kills the node of RabbitMQ that leads the most queues of those that have connections of the product.
func brokerNodeKilled(c *cluster) *scenario {
	return &scenario{
		name:   "broker-node-killed",
		story:  "kill -9 of one of three nodes of RabbitMQ; it is started again",
		apart:  true,
		longer: 2 * time.Minute,
		holds:  callsCutOff,
		inject: func(ctx context.Context, d *drill) error {
			all := clusterNodes
			if err := c.replicated(ctx, d, 0, all); err != nil {
				return err
			}
			victim, err := c.busiest(ctx, d)
			if err != nil {
				return err
			}
			d.broken()
			err = c.without(ctx, d, victim, func() error {
				asked := (victim + 1) % all
				if err := c.replicated(ctx, d, asked, all-1); err != nil {
					return err
				}
				return c.connected(ctx, d, asked)
			})
			d.healed()
			if err != nil {
				return err
			}
			return c.replicated(ctx, d, victim, all)
		},
	}
}

// storeNodeKilled kills each node of Cassandra in turn. Nodes keep no hints and nothing is repaired, so only quorums
// make up for the writes that a node missed.
func storeNodeKilled(c *cluster) *scenario {
	return &scenario{
		name:   "store-node-killed",
		story:  "kill -9 of each of three nodes of Cassandra in turn; it is started again",
		apart:  true,
		longer: 6 * time.Minute,
		holds:  callsCutOff | appendsLost,
		inject: func(ctx context.Context, d *drill) error {
			d.broken()
			var err error
			for _, i := range d.rnd.Perm(clusterNodes) {
				if err = c.without(ctx, d, i, func() error { return nil }); err != nil {
					break
				}
			}
			d.healed()
			return err
		},
	}
}

// rabbitQueue is the state of a queue as RabbitMQ reports it.
type rabbitQueue struct {
	Name    string   `json:"name"`
	Type    string   `json:"type"`
	Leader  string   `json:"leader"`
	Members []string `json:"members"`
	Online  []string `json:"online"`
}

// rabbit runs rabbitmqctl on node i.
func (c *cluster) rabbit(ctx context.Context, i int, out any, args ...string) error {
	args = append([]string{"rabbitmqctl", "-q", "-n", rabbitNode(i), "--formatter", "json"}, args...)
	text, err := c.services(ctx, args...)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, out)
}

func rabbitNode(i int) string {
	if i == 0 {
		return "safedelivr@localhost"
	}
	return fmt.Sprintf("safedelivr-%d@localhost", i+1)
}

// queues lists the queues of the drill.
func (c *cluster) queues(ctx context.Context, d *drill, asked int) (out []rabbitQueue, err error) {
	var all []json.RawMessage
	if err := c.rabbit(ctx, asked, &all, "list_queues", "name", "type", "leader", "members", "online"); err != nil {
		return nil, err
	}
	for _, raw := range all {
		var q struct{ Name string }
		if err := json.Unmarshal(raw, &q); err != nil {
			return nil, err
		}
		own := strings.HasPrefix(q.Name, d.environment.name+".")
		if !own || strings.HasPrefix(q.Name, d.environment.name+".wakes.") { // which are of one process, and on one node
			continue
		}
		out = append(out, rabbitQueue{})
		if err := json.Unmarshal(raw, &out[len(out)-1]); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// replicated waits until every queue of the drill has a member on each node, as many as online of them are running, and
// one of these leads.
func (c *cluster) replicated(ctx context.Context, d *drill, asked, online int) error {
	var wrong error
	err := poll(ctx, patience, "queues are on all nodes", func() (bool, error) {
		list, err := c.queues(ctx, d, asked)
		if err != nil {
			return false, err
		}
		wrong = nil
		if len(list) < 10 {
			wrong = fmt.Errorf("there are %d queues", len(list))
		}
		for _, q := range list {
			whole := q.Type == "quorum" && len(q.Members) == clusterNodes && len(q.Online) == online
			if !whole || !slices.Contains(q.Online, q.Leader) {
				wrong = fmt.Errorf("%+v", q)
			}
		}
		return wrong == nil, nil
	})
	return errors.Join(err, wrong)
}

// connections counts the product's connections by node.
func (c *cluster) connections(ctx context.Context, asked int) (map[string]int, error) {
	var list []struct {
		Port   int             `json:"port"` // of the node
		Client json.RawMessage `json:"client_properties"`
	}
	if err := c.rabbit(ctx, asked, &list, "list_connections", "port", "client_properties"); err != nil {
		return nil, err
	}
	out := map[string]int{}
	for _, l := range list {
		if bytes.Contains(l.Client, []byte("safedelivr")) {
			out[rabbitNode(l.Port-c.ports["RABBIT_PORT"])]++
		}
	}
	return out, nil
}

// busiest returns the node with the most leaders of queues of those that have connections of the product.
func (c *cluster) busiest(ctx context.Context, d *drill) (int, error) {
	leads := map[string]int{}
	list, err := c.queues(ctx, d, 0)
	if err != nil {
		return 0, err
	}
	for _, q := range list {
		leads[q.Leader]++
	}
	connected, err := c.connections(ctx, 0)
	if err != nil {
		return 0, err
	}
	d.say("queues led by node: %v; connections: %v", leads, connected)
	best := 0
	for i := range clusterNodes {
		if n, b := rabbitNode(i), rabbitNode(best); connected[n] > 0 && (leads[n] > leads[b] || connected[b] == 0) {
			best = i
		}
	}
	if best := rabbitNode(best); leads[best] == 0 || connected[best] == 0 {
		return 0, fmt.Errorf("no node both leads queues (%v) and has connections (%v)", leads, connected)
	}
	return best, nil
}

// connected waits until all processes have both their connections to the running nodes.
func (c *cluster) connected(ctx context.Context, d *drill, asked int) error {
	return poll(ctx, patience, "all processes are connected", func() (bool, error) {
		got, err := c.connections(ctx, asked)
		n := 0
		for _, m := range got {
			n += m
		}
		return n >= 2*len(d.servers.all()), err
	})
}
