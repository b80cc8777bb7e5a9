package postgres

import (
	"context"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/internal/testkit/life"
)

// TestLife: the statements of a mail's whole life are those that the documents say.
func TestLife(t *testing.T) {
	c := newConfig(t)
	n := &statementCount{schema: c.Schema}
	c.tracer = n
	e, err := newEngine(t.Context(), &c)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.Close()) })
	life.Verify(t, "..", "PostgreSQL", life.Record(t, false).Replay(t, e, &n.Counter))
}

// statementCount counts statements by what they do and their table, and round trips.
type statementCount struct {
	life.Counter
	schema string
}

// statement counts a statement about a table of the schema.
func (n *statementCount) statement(text string) {
	_, table, found := strings.Cut(text, n.schema+".")
	if !found {
		n.Add("lock")
		return
	}
	for _, verb := range []string{"INSERT", "UPDATE", "DELETE", "SELECT"} {
		if strings.Contains(text, verb+" ") {
			n.Add(strings.ToLower(verb) + " " + regexp.MustCompile(`^\w+`).FindString(table))
			return
		}
	}
}

func (n *statementCount) TraceQueryStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceQueryStartData) context.Context {
	n.statement(d.SQL)
	n.Add("Round trip")
	return ctx
}

func (n *statementCount) TraceBatchStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceBatchStartData) context.Context {
	for _, q := range d.Batch.QueuedQueries {
		n.statement(q.SQL)
	}
	n.Add("Round trip")
	return ctx
}

func (*statementCount) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (*statementCount) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

func (*statementCount) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}
