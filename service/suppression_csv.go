package service

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// SuppressionColumns are the columns of a suppression list as CSV.
var SuppressionColumns = []string{"email", "reason", "category", "expires_at", "why", "at", "origin"}

// Row returns the entry as a row of CSV.
func (v *SuppressionView) Row() []string {
	expires := ""
	if !v.ExpiresAt.IsZero() {
		expires = v.ExpiresAt.Format(time.RFC3339)
	}
	return []string{
		v.Email, string(v.Reason), v.Category, expires, v.Why, v.At.Format(time.RFC3339), string(v.Origin),
	}
}

// SuppressionImport tells what an import did.
type SuppressionImport struct {
	Rows     int          `json:"rows"`
	Added    int          `json:"added"`    // entries that were not in effect before
	Rejected int          `json:"rejected"` // rows with mistakes, which were left out
	Errors   []FieldError `json:"errors"`   // the first 100 mistakes; a pointer begins with the number of the row
}

const (
	importChunk     = 1000     // rows that are stored together
	maxImportRow    = 64 << 10 // bytes
	maxImportErrors = 100
)

// ImportSuppressions adds the rows of a CSV file to the caller's suppression list, or to
// everyone's. The first row has the names of the columns: email, and any of reason, category,
// expires_at and why; others are ignored. Rows with mistakes are left out and counted. It may
// be repeated, also after an error, when a part of the rows is stored.
func (s *Service) ImportSuppressions(
	ctx context.Context, who Caller, r io.Reader, origin models.SuppressionOrigin,
) (SuppressionImport, error) {
	out := SuppressionImport{Errors: []FieldError{}}
	if err := who.Need(models.ScopeSend); err != nil {
		return out, err
	}
	list, err := suppressionList(who)
	if err != nil {
		return out, err
	}
	rows, err := newSuppressionRows(r)
	if err != nil {
		return out, err
	}
	for more := true; more; {
		var es []models.Suppression
		for len(es) < importChunk {
			n, err := rows.next()
			if errors.Is(err, io.EOF) {
				more = false
				break
			}
			if err != nil {
				return out, err
			}
			out.Rows++
			var f Form
			if !n.wrongTime {
				es = append(es, n.check(&f, who, origin, time.Now()))
			} else {
				f.Wrong("/expires_at", "invalid_value", "expires_at must be a time like 2026-01-31T12:00:00Z.")
			}
			if err := f.Err(); err != nil {
				if !n.wrongTime {
					es = es[:len(es)-1]
				}
				out.reject(err)
			}
		}
		added, err := s.addSuppressions(ctx, list, es)
		if err != nil {
			return out, err
		}
		out.Added += added
	}
	s.awaitPropagation(ctx)
	return out, ctx.Err()
}

// reject counts a row with mistakes.
func (i *SuppressionImport) reject(err error) {
	i.Rejected++
	var e *Error
	if !errors.As(err, &e) {
		return
	}
	for _, f := range e.Fields[:min(len(e.Fields), maxImportErrors-len(i.Errors))] {
		f.Pointer = fmt.Sprint("/", i.Rows, f.Pointer)
		i.Errors = append(i.Errors, f)
	}
}

// suppressionRow is a row of a file.
type suppressionRow struct {
	NewSuppression
	wrongTime bool
}

// suppressionRows reads the rows of a CSV file.
type suppressionRows struct {
	csv     *csv.Reader
	bounded *boundedReader
	columns []string
	line    int
}

// newSuppressionRows returns a reader behind the names of the columns.
func newSuppressionRows(r io.Reader) (*suppressionRows, error) {
	in := &boundedReader{r: r}
	rows := &suppressionRows{csv: csv.NewReader(in), bounded: in}
	rows.csv.FieldsPerRecord, rows.csv.ReuseRecord = -1, true
	head, err := rows.record()
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	for _, name := range head {
		rows.columns = append(rows.columns, strings.ToLower(strings.TrimSpace(strings.TrimPrefix(name, "\ufeff"))))
	}
	if !slices.Contains(rows.columns, "email") {
		return nil, Fail(Invalid, "invalid_csv", "The first row must have the names of the columns, and email among them.")
	}
	return rows, nil
}

// record returns the next record.
func (s *suppressionRows) record() ([]string, error) {
	s.bounded.left = maxImportRow
	record, err := s.csv.Read()
	s.line++
	var wrong *csv.ParseError
	switch {
	case errors.As(err, &wrong):
		return nil, Fail(Invalid, "invalid_csv", "The file is no CSV at line %d: %s.", wrong.Line, wrong.Err)
	case errors.Is(err, errRowTooLong):
		return nil, Fail(Invalid, "invalid_csv", "Row %d is longer than %d bytes.", s.line, maxImportRow)
	}
	return record, err
}

// next returns the next row. Errors: io.EOF.
func (s *suppressionRows) next() (n suppressionRow, err error) {
	record, err := s.record()
	for i, value := range record {
		if i == len(s.columns) {
			break
		}
		value = strings.Clone(strings.TrimSpace(value))
		switch s.columns[i] {
		case "email":
			n.Email = value
		case "reason":
			n.Reason = models.SuppressionReason(value)
		case "category":
			n.Category = value
		case "why":
			n.Why = value
		case "expires_at":
			if value != "" {
				n.ExpiresAt, err = time.Parse(time.RFC3339, value)
				n.wrongTime, err = err != nil, nil
			}
		}
	}
	return n, err
}

// errRowTooLong reports a row that is longer than maxImportRow.
var errRowTooLong = errors.New("the row is too long")

// boundedReader reads until left bytes were read since left was set.
type boundedReader struct {
	r    io.Reader
	left int
}

func (b *boundedReader) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, errRowTooLong
	}
	n, err := b.r.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}
