package compose

import (
	"encoding/json"
	"fmt"
	"iter"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/dashboard/web"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/intake"
	"github.com/safedelivr/safedelivr/service/table"
)

const (
	shownRows     = 3  // of a table, below the choice of its columns
	guessRows     = 20 // rows by which the column of the addresses is found
	shownMistakes = 10
)

// mapping says what the columns of a table are, by their headings, as table.NewMapped does.
type mapping map[string]string

// mappingOf returns the choices of a form: the headings, and what each is.
func mappingOf(headings, names []string) mapping {
	if len(headings) == 0 || len(headings) != len(names) {
		return nil
	}
	m := mapping{}
	for i, h := range headings {
		m[h] = names[i]
	}
	return m
}

// String returns the mapping as a draft keeps it.
func (m mapping) String() string {
	if len(m) == 0 {
		return ""
	}
	raw, _ := json.Marshal(m) // strings always encode
	return string(raw)
}

// of returns what the columns of a text are, and whether the text is a table. A mapping of another table is ignored. If
// no heading is that of the address, and the cells of one column are addresses, that is the column.
func (m mapping) of(text string) (found mapping, isTable bool) {
	if len(m) > 0 {
		s := table.Look([]byte(text), m, 0)
		if len(s.Columns) == len(m) && len(s.Unknown) == 0 {
			return m, true
		}
	}
	if table.IsHead(text) {
		return nil, true
	}
	first, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	if strings.Contains(first, "@") {
		return nil, false
	}
	s := table.Look([]byte(text), nil, guessRows)
	if len(s.Columns) < 2 {
		return nil, false
	}
	var of []string
	for i := range s.Columns {
		if slices.ContainsFunc(s.Rows, func(row []string) bool { return strings.Contains(row[i], "@") }) {
			of = append(of, s.Columns[i].Heading)
		}
	}
	switch {
	case len(of) == 0 || strings.Contains(of[0], "."): // "annexample.com" is no heading
		return nil, false
	case len(of) == 1:
		return mapping{of[0]: "email"}, true
	}
	return nil, true
}

// columnsView is what a list of recipients has: the columns of a table, and the rows with mistakes.
type columnsView struct {
	Columns  []columnView
	Rows     [][]string
	Count    int // of recipients
	Problem  string
	Bad      int // recipients with mistakes
	Mistakes []string
	Skip     bool
}

// columnView is a column of a table, and what it may be.
type columnView struct{ table.Column }

// Own returns the variable that the column is, or can be; "": it can be none.
func (c columnView) Own() string {
	for _, name := range []string{c.Name, table.Variable(c.Heading)} {
		if name != "" && name != "email" && name != "name" {
			return name
		}
	}
	return ""
}

// look returns what the form shows about its recipients.
func (c *composeView) look(in *intake.Intake) (*columnsView, error) {
	list := parseList(c.To, c.Mapping)
	v := &columnsView{Count: len(list.Rows), Problem: list.Problem, Skip: c.Skip}
	if list.Table {
		s := table.Look([]byte(c.To), list.Mapping, shownRows)
		for _, column := range s.Columns {
			v.Columns = append(v.Columns, columnView{column})
		}
		v.Rows = s.Rows
	}
	in.Permit()
	if err := in.Read(list.recipients(in, nil, nil)); err != nil {
		refused := web.Refused(err)
		if refused == nil {
			return nil, err
		}
		v.Problem = refused.Detail
	}
	first, err := in.FirstRejected()
	v.Bad, v.Mistakes = in.Rejected(), mistakesOf(first)
	return v, err
}

// recipients returns the recipients as a request has them, with variables of every recipient, and reports the mistakes
// of their rows.
func (l *addressList) recipients(
	in *intake.Intake, shared map[string]string, isJSON []string,
) iter.Seq2[*service.Recipient, error] {
	return func(yield func(*service.Recipient, error) bool) {
		for i := range l.Rows {
			row := &l.Rows[i]
			in.SetRow(row.Line)
			if row.Mistake != nil {
				in.Wrong(fmt.Sprint("/to/", i), row.Mistake.Code, "%s", row.Mistake)
			}
			r := service.Recipient{Email: row.Email, Name: row.Name, Times: row.Times, Flawed: row.Mistake != nil}
			r.Vars, r.JSON = withShared(row.Vars, shared, isJSON)
			if !yield(&r, nil) {
				return
			}
		}
	}
}

// mistakesOf lists the first recipients that are left out, with their lines.
func mistakesOf(list []models.Rejection) (out []string) {
	for _, r := range list[:min(len(list), shownMistakes)] {
		out = append(out, fmt.Sprintf("Line %d: %s", r.Row, r.Detail))
	}
	return out
}

// showColumns is POST /compose/columns: what the recipients of the form are, as a part of its page.
func (p *Pages) showColumns(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	c, err := readCompose(w, r, nil)
	if err != nil {
		return err
	}
	in := p.service.NewIntake(r.Context(), v.Caller())
	defer in.Close()
	view, err := c.look(in)
	if err != nil {
		return err
	}
	return p.web.WritePart(w, "compose", "columns", view)
}

// When says when the batch is sent, as the sender thinks of it; "" if that is at once.
func (c *composeView) When() string {
	if day := c.day(); day != "" {
		return "Goes out on " + day + "."
	}
	return ""
}

// day returns the day and time at which the batch is sent, where its sender is; "" if that is at once.
func (c *composeView) day() string {
	at, err := time.Parse("2006-01-02T15:04", c.DeliverAt[:min(len(c.DeliverAt), 16)])
	if err != nil {
		return ""
	}
	place := c.TimeZone[strings.LastIndexByte(c.TimeZone, '/')+1:]
	return at.Format("Monday, 2 January 2006, 15:04") + " in " + strings.ReplaceAll(place, "_", " ")
}
