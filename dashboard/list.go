package dashboard

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/intake"
	"github.com/safedelivr/safedelivr/service/table"
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

// maxRows is the limit of a list. The API takes larger batches.
const maxRows = 500_000

const tooManyRows = "The list has more than 500,000 recipients. Send larger batches through the API."

// parseList parses a list. If it cannot read all of it, it returns the part before
// the error and sets Problem.
func parseList(s string) *addressList {
	first, rest, _ := strings.Cut(strings.TrimLeft(s, "\n \t"), "\n")
	if strings.HasPrefix(first, "sep=") { // for Excel alone
		first, _, _ = strings.Cut(rest, "\n")
	}
	if table.IsHead(first) {
		return parseTable(s)
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
func parseTable(s string) *addressList {
	l := &addressList{}
	t, err := table.New(strings.NewReader(s))
	if err == nil {
		l.Columns = t.Columns
	}
	for err == nil {
		if len(l.Rows) == maxRows {
			l.Problem = tooManyRows
			return l
		}
		var row table.Row
		if row, err = t.Next(); err == nil {
			l.Rows = append(l.Rows, listed(row))
		}
	}
	if !errors.Is(err, io.EOF) {
		l.Problem = err.Error()
	}
	return l
}

// exportBatch is GET /batches/{id}/export.csv, streamed page by page.
func (d *Dashboard) exportBatch(w http.ResponseWriter, r *http.Request, v *visitor) error {
	id, who, f := r.PathValue("id"), v.caller(), d.filterOf(listQuery(r.URL.Query())).LogFilter
	b, err := d.service.ListedBatch(r.Context(), who, id)
	if err != nil {
		return err
	}
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
	out, columns := csv.NewWriter(w), metadataColumns(&b, logs.Logs)
	write := func(row []string) {
		for k := range row {
			row[k] = harmlessCell(row[k])
		}
		_ = out.Write(row) // Flush keeps the error, and the browser may be gone
	}
	head := slices.Clone(exportColumns)
	for _, key := range columns {
		head = append(head, "metadata."+key)
	}
	write(append(head, "other_metadata"))
	for {
		for i := range logs.Logs {
			write(exportRow(&b, &logs.Logs[i], columns))
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

// exportColumns are the columns of an export before those of the metadata.
var exportColumns = []string{
	"id", "email", "name", "state", "reason", "reason_text", "detail", "providers_tried", "delivered_by", "attempts",
	"copies", "tags", "category",
}

// maxColumns is the number of keys of metadata that have a column of their own.
const maxColumns = 100

// metadataColumns returns the keys of metadata that have a column: those of the batch, and
// those of the first recipients.
func metadataColumns(b *service.BatchView, logs []service.LogView) []string {
	keys := maps.Clone(b.Metadata)
	if keys == nil {
		keys = map[string]string{}
	}
	for i := range logs {
		maps.Copy(keys, logs[i].Metadata)
	}
	out := slices.Sorted(maps.Keys(keys))
	return out[:min(len(out), maxColumns)]
}

// exportRow returns the row of a recipient. Its metadata replaces that of the batch. What has
// no column is JSON in the last one.
func exportRow(b *service.BatchView, l *service.LogView, columns []string) []string {
	delivered := ""
	for _, a := range viaOf(l) {
		if a.Delivered {
			delivered = a.Provider
		}
	}
	row := []string{
		l.ID.String(), l.Email, l.Name, string(l.State), string(l.Reason), l.ReasonText, l.Detail,
		strings.Join(l.Route, " "), delivered, strconv.Itoa(l.Attempts), strconv.Itoa(l.Copies),
		strings.Join(b.Tags, " "), b.Category,
	}
	metadata := maps.Clone(b.Metadata)
	if metadata == nil {
		metadata = map[string]string{}
	}
	maps.Copy(metadata, l.Metadata)
	for _, key := range columns {
		row = append(row, metadata[key])
		delete(metadata, key)
	}
	if len(metadata) == 0 {
		return append(row, "")
	}
	text, _ := toJSON(metadata) // a map of strings always encodes
	return append(row, text)
}
