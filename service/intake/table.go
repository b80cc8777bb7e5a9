package intake

import (
	"errors"
	"io"
	"iter"
	"maps"
	"slices"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/nearest"
	"github.com/safedelivr/safedelivr/service/problem"
	"github.com/safedelivr/safedelivr/service/table"
)

// Columns gives the meanings of columns in files of recipients, by their headings: email, name, deliver_at, time_zone,
// the name of a variable, or "" to leave the column out.
type Columns struct {
	names map[string]string
	taken map[string]bool
}

// Add says what a column is. It reports mistakes.
func (c *Columns) Add(heading, name string, m reporter) {
	at := "/columns" + problem.Pointer(heading)
	_, again := c.names[heading]
	again = again || c.taken[name] && name != ""
	switch {
	case name != "" && (!models.ValidVar(name) || models.IsSlot(name)):
		m.Wrong(
			at,
			"invalid_name",
			"A column is email, name, empty to leave it out, or a variable: a letter or _, then letters, "+
				"digits, _, - or a dot, at most 64 characters.",
		)
	case again:
		m.Wrong(at, "repeated", "Another column is %s, or the heading is repeated.", problem.Quote(name))
	}
	if c.names == nil {
		c.names, c.taken = map[string]string{}, map[string]bool{}
	}
	c.names[heading], c.taken[name] = name, true
}

// timeColumns are the columns of a file that are times of the recipient, and no variables.
var timeColumns = []string{DeliverAt, TimeZone}

// IsTimeColumn reports whether a column of a file is a time of the recipient.
func IsTimeColumn(name string) bool { return slices.Contains(timeColumns, name) }

// TimesOf removes the times from the columns of a row and returns them.
func TimesOf(columns map[string]string) (t Times) {
	for _, name := range timeColumns {
		*t.Time(name) = columns[name]
		delete(columns, name)
	}
	return t
}

// Table returns the recipients of a CSV file, whose columns are what their headings say if columns is nil. It reports
// mistakes in the file. Errors: those of the file; a *table.Error if the rest of it cannot be read, which the caller
// reports.
func (in *Intake) Table(file io.Reader, columns *Columns) iter.Seq2[*Recipient, error] {
	var names map[string]string
	if columns != nil {
		names = columns.names
	}
	return func(yield func(*Recipient, error) bool) {
		t, err := table.New(file, names)
		if t == nil {
			yield(nil, err)
			return
		}
		for _, heading := range t.Unknown {
			in.Wrong("/columns"+problem.Pointer(heading), "unknown_column", "The file has no column with this heading.%s",
				nearest.Meant(heading, slices.Sorted(maps.Values(t.Headings))))
		}
		in.SetColumns(t.Headings)
		defer in.SetRow(0)
		var r Recipient
		for err == nil {
			var row table.Row
			row, err = t.Next()
			in.SetRow(row.Line)
			r = Recipient{Email: row.Email, Name: row.Name, Vars: row.Vars, Times: TimesOf(row.Vars)}
			var mistake *table.Error
			if errors.As(err, &mistake) && mistake.Line > 0 {
				in.Wrong(pointerTo(in.index), mistake.Code, "%s", mistake.Text)
				r.Flawed, err = true, nil
			}
			if err == nil && !yield(&r, nil) {
				return
			}
		}
		if !errors.Is(err, io.EOF) {
			yield(nil, err)
		}
	}
}
