package dashboard

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/intake"
)

// addressList is a list of recipients that was typed, pasted or uploaded: either one
// address per line, or a table with a header row whose columns become variables.
type addressList struct {
	Columns []string // of a table, without email and name
	Rows    []listed
	Problem string // why the rest could not be read, or ""
}

// listed is one recipient of the list and its line.
type listed struct {
	Line        int
	Email, Name string
	Vars        map[string]string
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

// emailColumns and nameColumns are the headings of the address and name columns, as bareHeading returns them.
var (
	emailColumns = []string{"email", "mail", "address", "emailaddress", "emailadresse", "recipient", "to"}
	nameColumns  = []string{"name", "fullname"}
	firstNames   = []string{"firstname", "fname", "givenname", "vorname"}
	lastNames    = []string{"lastname", "lname", "surname", "familyname", "nachname"}
)

// bareHeading returns the letters and digits of a heading in lower case: spreadsheets and mailing lists write one
// heading in many ways.
func bareHeading(s string) string {
	return strings.Map(func(c rune) rune {
		if unicode.IsLetter(c) || unicode.IsDigit(c) {
			return unicode.ToLower(c)
		}
		return -1
	}, s)
}

// Limits of a list. The API takes larger batches.
const (
	maxRows    = 500_000
	maxColumns = 500
)

const tooManyRows = "The list has more than 500,000 recipients. Send larger batches through the API."

// parseList parses a list. If it cannot read all of it, it returns the part before
// the error and sets Problem.
func parseList(s string) *addressList {
	first, rest, _ := strings.Cut(strings.TrimLeft(s, "\n \t"), "\n")
	if separator, told := strings.CutPrefix(first, "sep="); told && len(separator) == 1 { // for Excel alone
		l := parseList(rest)
		for i := range l.Rows {
			l.Rows[i].Line += strings.Count(s[:len(s)-len(rest)], "\n")
		}
		return l
	}
	separator := separatorOf(first)
	if slices.ContainsFunc(strings.Split(first, string(separator)), isEmailColumn) {
		return parseTable(s, separator)
	}
	l := &addressList{}
	i := -1
	for line := range strings.SplitSeq(s, "\n") {
		i++
		for _, one := range splitAddresses(line) {
			if len(l.Rows) == maxRows {
				l.Problem = tooManyRows
				return l
			}
			l.Rows = append(l.Rows, listed{Line: i + 1, Email: one})
		}
	}
	return l
}

func isEmailColumn(heading string) bool { return slices.Contains(emailColumns, bareHeading(heading)) }

// separatorOf guesses the column separator of a table.
func separatorOf(heading string) rune {
	best, most := ',', 0
	for _, c := range []rune{',', ';', '\t'} {
		if n := strings.Count(heading, string(c)); n > most {
			best, most = c, n
		}
	}
	return best
}

// splitAddresses splits a line at commas and semicolons outside of quotes, comments and
// angle brackets.
func splitAddresses(line string) []string {
	var out []string
	begin, comments, quoted, angled := 0, 0, false, false
	add := func(end int) {
		if one := strings.TrimSpace(line[begin:end]); one != "" {
			out = append(out, one)
		}
		begin = end + 1
	}
	for i, c := range line {
		switch {
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '(':
			comments++
		case c == ')' && comments > 0:
			comments--
		case comments > 0:
		case c == '<' || c == '>':
			angled = c == '<'
		case (c == ',' || c == ';') && !angled:
			add(i)
		}
	}
	add(len(line))
	return out
}

// parseTable parses a table with a header row.
func parseTable(s string, separator rune) *addressList {
	l := &addressList{}
	r := csv.NewReader(strings.NewReader(s))
	r.Comma, r.FieldsPerRecord, r.TrimLeadingSpace, r.LazyQuotes, r.ReuseRecord = separator, -1, true, true, true
	var columns []string
	var first, last string // columns that make the name if no other does
	for {
		fields, err := r.Read()
		if errors.Is(err, io.EOF) {
			return l
		}
		if err != nil {
			l.Problem = "The table could not be read: " + err.Error() + "."
			return l
		}
		if len(fields) > maxColumns {
			l.Problem = "The table has more than 500 columns."
			return l
		}
		if len(l.Rows) == maxRows {
			l.Problem = tooManyRows
			return l
		}
		if columns == nil {
			columns, first, last = columnsOf(fields)
			for _, c := range columns {
				if c != "email" && c != "name" && c != "" {
					l.Columns = append(l.Columns, c)
				}
			}
			continue
		}
		line, _ := r.FieldPos(0)
		row := rowOf(columns, fields, line)
		if first != "" || last != "" {
			row.Name = strings.TrimSpace(row.Vars[first] + " " + row.Vars[last])
		}
		l.Rows = append(l.Rows, row)
	}
}

// columnsOf turns headings into names of variables: "First name" becomes First_name. If no column has whole names, it
// returns those of first and last names.
func columnsOf(fields []string) (out []string, first, last string) {
	out = make([]string, len(fields))
	for i, f := range fields {
		out[i] = variableName(f)
		switch c := bareHeading(f); {
		case isEmailColumn(f) && !slices.Contains(out[:i], "email"):
			out[i] = "email"
		case slices.Contains(nameColumns, c) && !slices.Contains(out[:i], "name"):
			out[i] = "name"
		case slices.Contains(firstNames, c) && first == "":
			first = out[i]
		case slices.Contains(lastNames, c) && last == "":
			last = out[i]
		}
	}
	if slices.Contains(out, "name") {
		return out, "", ""
	}
	return out, first, last
}

// variableName replaces the characters that a placeholder must not contain.
func variableName(s string) string {
	s = strings.Map(func(c rune) rune {
		if models.ValidVar("_" + string(c)) {
			return c
		}
		return '_'
	}, strings.TrimSpace(s))
	if first, _ := utf8.DecodeRuneInString(s); s != "" && !models.ValidVar(string(first)) {
		s = "_" + s
	}
	return strings.ToValidUTF8(s[:min(len(s), 64)], "")
}

func rowOf(columns, fields []string, line int) listed {
	out := listed{Line: line}
	for i, value := range fields {
		switch value = strings.TrimSpace(value); {
		case i >= len(columns) || columns[i] == "":
		case columns[i] == "email":
			out.Email = value
		case columns[i] == "name":
			out.Name = value
		default:
			if out.Vars == nil {
				out.Vars = map[string]string{}
			}
			out.Vars[columns[i]] = value
		}
	}
	return out
}

// exportBatch is GET /batches/{id}/export.csv, streamed page by page.
func (d *Dashboard) exportBatch(w http.ResponseWriter, r *http.Request, v *visitor) error {
	id, who, f := r.PathValue("id"), v.caller(), d.filterOf(listQuery(r.URL.Query())).LogFilter
	logs, err := d.service.Logs(r.Context(), who, id, f, service.Page{Limit: exportPage})
	if err != nil {
		return err
	}
	name := "batch-" + id
	if f.State != "" {
		name += "-" + string(f.State)
	}
	h := w.Header()
	h.Set("Content-Type", "text/csv; charset=utf-8")
	h.Set("Content-Disposition", fmt.Sprintf(`attachment; filename=%q`, name+".csv"))
	out := csv.NewWriter(w)
	_ = out.Write(
		[]string{
			"id",
			"email",
			"name",
			"state",
			"reason",
			"reason_text",
			"detail",
			"providers_tried",
			"delivered_by",
			"attempts",
			"copies",
		},
	)
	for {
		for i := range logs.Logs {
			l := &logs.Logs[i]
			delivered := ""
			for _, a := range viaOf(l) {
				if a.Delivered {
					delivered = a.Provider
				}
			}
			row := []string{l.ID.String(), l.Email, l.Name, string(l.State), string(l.Reason), l.ReasonText, l.Detail,
				strings.Join(l.Route, " "), delivered, strconv.Itoa(l.Attempts), strconv.Itoa(l.Copies)}
			for k := range row {
				row[k] = harmlessCell(row[k])
			}
			_ = out.Write(row)
		}
		out.Flush()
		if logs.Next == "" {
			return nil
		}
		logs, err = d.service.Logs(r.Context(), who, id, f, service.Page{Limit: exportPage, Cursor: logs.Next})
		if err != nil {
			d.log.Warn("export aborted", "batch_id", id, "err", err)
			panic(http.ErrAbortHandler) // the browser must not take half a file for all of it
		}
	}
}

const exportPage = 500
