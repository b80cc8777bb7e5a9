package sqlite

import (
	"context"
	"database/sql/driver"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/internal/testkit/life"
)

// TestLife: the statements of a mail's whole life are those that the documents say.
func TestLife(t *testing.T) {
	l := life.Record(t, true)
	s, err := Open(t.TempDir(), Options{Readers: 1})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	n := &statementCount{}
	r := <-s.engine.readers
	for _, c := range []*conn{r, s.engine.writer.conn} {
		for _, st := range c.statements {
			require.NoError(t, st.Close())
		}
		clear(c.statements)
		c.raw = countedConn{c.raw.(rawConn), n}
	}
	s.engine.readers <- r
	life.Verify(t, "..", "SQLite", l.Replay(t, s.Engine(), &n.Counter))
}

// statementCount counts statements by what they do and their table.
type statementCount struct {
	life.Counter
}

var aboutTable = regexp.MustCompile(`^(SELECT|INSERT|UPDATE|DELETE)\s(?:[^;]*?\b(?:FROM|INTO)\s+)?(\w+)`)

func (n *statementCount) add(text string) {
	switch m := aboutTable.FindStringSubmatch(text); {
	case m != nil:
		n.Add(strings.ToLower(m[1]) + " " + m[2])
	case text == "COMMIT":
		n.Add("commit")
	}
}

// countedConn is a connection whose statements are counted.
type countedConn struct {
	rawConn
	n *statementCount
}

type rawConn interface {
	driver.Conn
	driver.ExecerContext
}

func (c countedConn) Prepare(text string) (driver.Stmt, error) {
	st, err := c.rawConn.Prepare(text)
	if err != nil {
		return nil, err
	}
	return countedStatement{st.(statement), text, c.n}, nil
}

// countedStatement is a statement that is counted.
type countedStatement struct {
	statement
	text string
	n    *statementCount
}

func (s countedStatement) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	s.n.add(s.text)
	return s.statement.ExecContext(ctx, args)
}

func (s countedStatement) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	s.n.add(s.text)
	return s.statement.QueryContext(ctx, args)
}
