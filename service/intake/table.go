package intake

import (
	"errors"
	"io"
	"slices"
	"strconv"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/problem"
	"github.com/safedelivr/safedelivr/service/table"
)

// MapColumn says what a column of the files of recipients is that are added later, by its heading: email, name,
// deliver_at, time_zone, the name of a variable, or "" if the column is to be left out. It reports mistakes.
func (b *Builder) MapColumn(heading, name string) {
	at := "/columns" + problem.Pointer(heading)
	_, again := b.mapping[heading]
	again = again || b.mapped[name] && name != ""
	switch {
	case name != "" && (!models.ValidVar(name) || models.IsSlot(name)):
		b.Wrong(
			at,
			"invalid_name",
			"A column is email, name, empty to leave it out, or a variable: a letter or _, then letters, "+
				"digits, _, - or a dot, at most 64 characters.",
		)
	case again:
		b.Wrong(at, "repeated", "Another column is %s, or the heading is repeated.", problem.Quote(name))
	}
	if b.mapping == nil {
		b.mapping, b.mapped = map[string]string{}, map[string]bool{}
	}
	b.mapping[heading], b.mapped[name] = name, true
}

// timeColumns are the columns of a file that are times of the recipient, and no variables.
var timeColumns = []string{DeliverAt, TimeZone}

// IsTimeColumn reports whether a column of a file is a time of the recipient.
func IsTimeColumn(name string) bool { return slices.Contains(timeColumns, name) }

// TimesOf removes the times from the columns of a row and returns them; nil: there are none.
func TimesOf(columns map[string]string) (t *Times) {
	for _, name := range timeColumns {
		if columns[name] != "" {
			if t == nil {
				t = new(Times)
			}
			t.SetText(name, columns[name])
		}
		delete(columns, name)
	}
	return t
}

// AddTable adds the recipients of a CSV file. It reports mistakes in it. Errors: those of in and of Add; a *table.Error
// if the rest of the file cannot be read, which the caller reports.
func (b *Builder) AddTable(in io.Reader) error {
	t, err := table.New(in, b.mapping)
	if t == nil {
		return err
	}
	for _, heading := range t.Unknown {
		b.Wrong("/columns"+problem.Pointer(heading), "unknown_column", "The file has no column with this heading.")
	}
	b.SetColumns(t.Headings)
	defer b.SetRow(0)
	for err == nil {
		var row table.Row
		row, err = t.Next()
		b.SetRow(row.Line)
		r := Recipient{Email: row.Email, Name: row.Name, Vars: row.Vars, Times: TimesOf(row.Vars)}
		var mistake *table.Error
		if errors.As(err, &mistake) && mistake.Line > 0 {
			b.Wrong("/to/"+strconv.Itoa(b.index), mistake.Code, "%s", mistake.Text)
			r.Flawed, err = true, nil
		}
		if err == nil {
			err = b.Add(&r)
		}
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
