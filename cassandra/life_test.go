package cassandra

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/gocql/gocql"

	"github.com/safedelivr/safedelivr/internal/testkit/life"
)

// TestLife: the requests of a mail's whole life are those that the documents say.
func TestLife(t *testing.T) {
	c := sharedConfig(t)
	n := &requestCount{}
	c.observer = n
	life.Verify(t, "..", "Cassandra", life.Record(t, false).Replay(t, open(t, c).Engine(), &n.Counter))
}

// requestCount counts requests by what they do and their table.
type requestCount struct {
	life.Counter
}

var aboutTable = regexp.MustCompile(`^(SELECT|INSERT|UPDATE|DELETE)\s(?:.*?\b(?:FROM|INTO)\s+)?(\w+)`)

// about returns the name of a statement. It is empty for one that no mail is the reason of, and for the lists of
// partitions, which have a row for many mails.
func about(text string) string {
	m := aboutTable.FindStringSubmatch(text)
	switch {
	case m == nil, m[2] == "settings", strings.HasPrefix(m[2], "system"), strings.HasSuffix(m[2], "_buckets"):
		return ""
	case strings.Contains(text, " IF "):
		return "compare-and-set " + m[2]
	}
	return strings.ToLower(m[1]) + " " + m[2]
}

func (n *requestCount) ObserveQuery(_ context.Context, q gocql.ObservedQuery) {
	if what := about(q.Statement); what != "" && q.Err == nil { // one that failed is tried again
		n.Add(what)
	}
}

func (n *requestCount) ObserveBatch(_ context.Context, b gocql.ObservedBatch) {
	if b.Err != nil {
		return
	}
	n.Add(fmt.Sprintf("batch of %d: %s", len(b.Statements), about(b.Statements[0])))
}
