package service

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/table"
)

// suppressionColumns are the columns of a suppression list as CSV.
var suppressionColumns = []string{"email", "reason", "category", "expires_at", "why", "at", "origin"}

// row returns the entry as a row of CSV, which begins no formula. An import undoes that.
func (v *SuppressionView) row() []string {
	expires := ""
	if !v.ExpiresAt.IsZero() {
		expires = v.ExpiresAt.Format(time.RFC3339)
	}
	return table.HarmlessRow([]string{
		v.Email, string(v.Reason), v.Category, expires, v.Why, v.At.Format(time.RFC3339), string(v.Origin),
	})
}

// SuppressionImport tells what an import did.
type SuppressionImport struct {
	Rows     int          `json:"rows"`
	Added    int          `json:"added"`    // entries that were not in effect before
	Rejected int          `json:"rejected"` // rows with mistakes, which were left out
	Errors   []FieldError `json:"errors"`   // the first 100 mistakes; a pointer begins with the number of the row
}

const (
	importChunk     = 2000     // rows that are stored together
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
	if err := s.Limits.CheckDisk(ctx, who.User); err != nil {
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
			var mistake *table.Error
			if err != nil && (!errors.As(err, &mistake) || mistake.Line == 0) {
				return out, tableError(err)
			}
			out.Rows++
			var f Form
			if mistake != nil {
				f.Wrong("", mistake.Code, "%s", mistake)
				out.reject(f.Err())
				continue
			}
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
	if out.Rows == 0 {
		return out, Fail(Invalid, "invalid_csv", "The file has no rows below the names of its columns. Nothing was added.")
	}
	s.Audit.Await(ctx)
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
type suppressionRows struct{ *table.Rows }

// newSuppressionRows returns a reader behind the names of the columns.
func newSuppressionRows(r io.Reader) (*suppressionRows, error) {
	rows, err := table.NewRows(r, maxImportRow)
	if err != nil {
		return nil, tableError(err)
	}
	for i, name := range rows.Head {
		name = strings.ToLower(strings.TrimSpace(name))
		if slices.Contains(rows.Head[:i], name) && slices.Contains(suppressionColumns, name) {
			return nil, Fail(Invalid, "invalid_csv", "More than one column is %q. Rename the others, or leave them out.", name)
		}
		rows.Head[i] = name
	}
	if !slices.Contains(rows.Head, "email") {
		return nil, Fail(Invalid, "invalid_csv", "The first row must have the names of the columns, and email among them.")
	}
	return &suppressionRows{rows}, nil
}

// tableError returns the Error for a mistake in a table, and other errors as they are.
func tableError(err error) error {
	var mistake *table.Error
	if errors.As(err, &mistake) {
		return Fail(Invalid, "invalid_csv", "%s", mistake)
	}
	return err
}

// next returns the next row. The errors are those of table.Rows.
func (s *suppressionRows) next() (n suppressionRow, err error) {
	record, _, err := s.Next()
	if err != nil {
		return n, err
	}
	for i, value := range record {
		value = strings.Clone(strings.TrimSpace(table.Original(value)))
		switch s.Head[i] {
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
