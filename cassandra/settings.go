package cassandra

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/store"
)

// settings returns the settings that are recorded with the keyspace when it is created: the levels, and how rows are
// spread over partitions.
func settings(c *Config) map[string]string {
	out := map[string]string{
		"replication": c.Replication,
		"consistency": c.Consistency,
		"serial":      c.Serial,
		"shards":      strconv.Itoa(store.Shards),
	}
	for _, t := range store.Tables() {
		if spread := fmt.Sprint(t.Bucket.Milliseconds(), " ", t.Group, " ", t.Stem); spread != "0 0 0" {
			out[t.Name] = spread
		}
	}
	return out
}

// agree returns an error if recorded and current settings differ. Replication and consistency may change as long as
// reads see what was written.
func agree(recorded, now map[string]string) error {
	for _, name := range slices.Sorted(maps.Keys(now)) {
		switch was := recorded[name]; {
		case was == now[name], name == "replication", name == "consistency":
		case was == "":
			return fmt.Errorf("%w: the setting %s is not recorded: run safedelivr migrate", models.ErrInvalid, name)
		case name == "serial":
			return fmt.Errorf("%w: it is used with serial consistency %s and cannot be used with %s: "+
				"the two do not see each other's decisions", models.ErrInvalid, was, now[name])
		default:
			return fmt.Errorf("%w: it was created with %s %s and this program has %s", models.ErrInvalid, name, was, now[name])
		}
	}
	return nil
}

// record records the settings if there are none, and compares them otherwise.
func (m *migrator) record(ctx context.Context) error {
	now := settings(m.config)
	for _, name := range slices.Sorted(maps.Keys(now)) {
		if _, _, err := m.cas(ctx, plain, `INSERT INTO settings (name, value) VALUES (?, ?) IF NOT EXISTS`, name,
			now[name]); err != nil {
			return err
		}
	}
	recorded, err := m.recorded(ctx)
	if err != nil {
		return err
	}
	return agree(recorded, now)
}

// recorded returns the recorded settings. There are none before the first migration.
func (m *migrator) recorded(ctx context.Context) (map[string]string, error) {
	found, err := m.tables(ctx)
	if err != nil || !found["settings"] {
		return nil, err
	}
	pairs, err := query(ctx, &m.runner, func(scan scanner) (p [2]string, err error) {
		err = scan(&p[0], &p[1])
		return p, err
	}, `SELECT name, value FROM settings`)
	out := map[string]string{}
	for _, p := range pairs {
		out[p[0]] = p[1]
	}
	return out, err
}

// replication says where the rows of a keyspace are.
type replication struct {
	factors map[string]int // by data centre; "" where all nodes count alike
	total   int
	centres []string // of the nodes, sorted; read only where factors names none
}

// readReplication returns how a keyspace is replicated. Errors: models.ErrNotFound.
func readReplication(ctx context.Context, r *runner, keyspace string) (replication, error) {
	m, err := single(ctx, r, column[map[string]string],
		`SELECT replication FROM system_schema.keyspaces WHERE keyspace_name = ?`, keyspace)
	if err != nil {
		return replication{}, err
	}
	rep, err := parseReplication(m)
	if err != nil || rep.factors[""] == 0 {
		return rep, err
	}
	rep.centres, err = readCentres(ctx, r)
	return rep, err
}

// readCentres returns the data centres of all nodes that the connected one knows, sorted.
func readCentres(ctx context.Context, r *runner) ([]string, error) {
	var out []string
	for _, table := range []string{"local", "peers"} {
		//nolint:misspell // a column of Cassandra
		found, err := query(ctx, r, column[string], `SELECT data_center FROM system.`+table)
		if err != nil {
			return nil, err
		}
		out = append(out, found...)
	}
	slices.Sort(out)
	out = slices.Compact(out)
	return slices.DeleteFunc(out, func(name string) bool { return name == "" }), nil
}

func parseReplication(m map[string]string) (replication, error) {
	rep := replication{factors: map[string]int{}}
	for k, v := range m {
		if k == "class" {
			continue
		}
		if k == "replication_factor" {
			k = ""
		}
		full, _, _ := strings.Cut(v, "/") // transient replicas do not count in quorums
		n, err := strconv.Atoi(full)
		if err != nil {
			return rep, fmt.Errorf("%w: replication %v", models.ErrInvalid, m)
		}
		if n > 0 {
			rep.factors[k] = n
			rep.total += n
		}
	}
	if rep.total == 0 {
		return rep, fmt.Errorf("%w: replication %v keeps nothing", models.ErrInvalid, m)
	}
	return rep, nil
}

// serves returns an error for levels that cannot keep the contract on this replication.
func (rep replication) serves(consistency, serial string) error {
	centres := rep.centres
	if rep.factors[""] == 0 {
		centres = slices.Sorted(maps.Keys(rep.factors))
	}
	if serial == "LOCAL_SERIAL" && len(centres) > 1 {
		return fmt.Errorf("%w: LOCAL_SERIAL with %d data centres (%s): each would decide for itself "+
			"and mail would go out twice; set SAFEDELIVR_CASSANDRA_SERIAL_CONSISTENCY=SERIAL before the keyspace is made, "+
			"or replicate it in one data centre with NetworkTopologyStrategy",
			models.ErrInvalid, len(centres), strings.Join(centres, ", "))
	}
	return rep.overlaps(consistency, consistency)
}

func (rep replication) names() string {
	return strings.Join(slices.Sorted(maps.Keys(rep.factors)), ", ")
}

// overlaps returns an error if a read at one level may miss a write at the other.
func (rep replication) overlaps(a, b string) error {
	for dc, n := range rep.factors {
		if rep.in(a, dc)+rep.in(b, dc) > n && rep.everywhere(a, b) {
			return nil // they meet in this data centre
		}
	}
	if rep.least(a)+rep.least(b) > rep.total {
		return nil
	}
	return fmt.Errorf("%w: consistency %s and %s with %d replicas (%s): "+
		"a read with one may miss a write with the other; use %s",
		models.ErrInvalid, a, b, rep.total, rep.names(), rep.advice())
}

// everywhere reports whether both levels need answers from every data centre.
func (rep replication) everywhere(a, b string) bool {
	all := func(l string) bool {
		return l == "EACH_QUORUM" || l == "ALL" || l == "LOCAL_QUORUM" && len(rep.factors) == 1
	}
	return all(a) && all(b)
}

// in returns how many replicas of a data centre must answer at a level that asks all data centres.
func (rep replication) in(level, dc string) int {
	if level == "ALL" {
		return rep.factors[dc]
	}
	return rep.factors[dc]/2 + 1
}

// least returns the least number of replicas that answer at a level, wherever they are.
func (rep replication) least(level string) int {
	quorums, smallest := 0, rep.total
	for _, n := range rep.factors {
		quorums += n/2 + 1
		smallest = min(smallest, n/2+1)
	}
	switch level {
	case "ONE", "LOCAL_ONE":
		return 1
	case "TWO":
		return 2
	case "THREE":
		return 3
	case "QUORUM":
		return rep.total/2 + 1
	case "LOCAL_QUORUM":
		return smallest
	case "EACH_QUORUM":
		return quorums
	case "ALL":
		return rep.total
	}
	return 0
}

// advice returns a level that works.
func (rep replication) advice() string {
	if len(rep.factors) > 1 {
		return "QUORUM"
	}
	return "LOCAL_QUORUM"
}
