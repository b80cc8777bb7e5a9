package compose

import (
	"errors"
	"io"
	"slices"
	"strings"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/intake"
	"github.com/safedelivr/safedelivr/service/operation"
	"github.com/safedelivr/safedelivr/service/table"
)

// addressList is a list of recipients that was typed, pasted or uploaded: either one
// address per line, or a table with a header row whose columns become variables.
type addressList struct {
	Table    bool
	Mapping  mapping           // of the columns whose headings do not say what they are
	Columns  []string          // of a table, without email and name
	Headings map[string]string // of the columns, by their names
	Rows     []listed
	Problem  string // why the rest could not be read, or ""
}

// listed is one recipient of the list and its line.
type listed struct {
	Line        int
	Email, Name string
	Vars        map[string]string
	Times       intake.Times // empty: the message is sent when those of all others are
	Mistake     *table.Error // of its row; nil: there is none
}

// at returns the n-th recipient, from 1, or the last one if there are fewer. It
// returns nil if the list is empty.
func (l *addressList) at(n int) *listed {
	if len(l.Rows) == 0 {
		return nil
	}
	return &l.Rows[min(n, len(l.Rows))-1]
}

func (l *addressList) only(one listed) *addressList { return &addressList{Rows: []listed{one}} }

// recipient returns the recipient as placeholders use it.
func (l *listed) recipient() models.Recipient {
	r := models.Recipient{Email: l.Email, Name: l.Name, Vars: l.Vars}
	if a, err := intake.ParseAddress(l.Email); err == nil {
		r.Email = a.Email
		if r.Name == "" {
			r.Name = a.Name
		}
	}
	return r
}

// maxRows is the limit of a list. The API takes larger batches.
const maxRows = 500_000

const tooManyRows = "The list has more than 500,000 recipients. Send larger batches through the API."

// parseList parses a list, or a table with the columns that a mapping has. If it cannot read all of it, it returns the
// part before the error and sets Problem.
func parseList(s string, chosen mapping) *addressList {
	if found, isTable := chosen.of(s); isTable {
		return parseTable(s, found)
	}
	l := &addressList{}
	i := -1
	for line := range strings.SplitSeq(s, "\n") {
		i++
		for _, one := range operation.Split(line) {
			if len(l.Rows) == maxRows {
				l.Problem = tooManyRows
				return l
			}
			l.Rows = append(l.Rows, listed{Line: i + 1, Email: one})
		}
	}
	return l
}

// parseTable parses a table with a header row.
func parseTable(s string, m mapping) *addressList {
	l := &addressList{Table: true, Mapping: m}
	t, err := table.New(strings.NewReader(s), m)
	if err == nil {
		l.Headings = t.Headings
		l.Columns = slices.DeleteFunc(t.Columns, intake.IsTimeColumn)
	}
	for err == nil {
		if len(l.Rows) == maxRows {
			l.Problem = tooManyRows
			return l
		}
		var row table.Row
		row, err = t.Next()
		var mistake *table.Error
		if errors.As(err, &mistake) && mistake.Line > 0 {
			err = nil
		} else {
			mistake = nil
		}
		if err == nil {
			l.Rows = append(l.Rows, listed{row.Line, row.Email, row.Name, row.Vars, intake.TimesOf(row.Vars), mistake})
		}
	}
	if !errors.Is(err, io.EOF) {
		l.Problem = err.Error()
	}
	return l
}
