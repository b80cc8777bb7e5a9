package suppressions

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/caller"
	"github.com/safedelivr/safedelivr/service/intake"
	"github.com/safedelivr/safedelivr/service/problem"
	"github.com/safedelivr/safedelivr/service/table"
)

// Export calls write for the names of the columns, and then for each entry in effect. It leaves out entries whose
// address was erased. It writes nothing if the list cannot be read from its beginning.
func (s *Lists) Export(ctx context.Context, who caller.Caller, write func([]string) error) error {
	begin := sync.OnceValue(func() error { return write(columns) })
	err := s.Each(ctx, who, func(e client.Suppression) error {
		if err := begin(); err != nil || e.Email == "" {
			return err
		}
		return write(row(&e))
	})
	if err != nil {
		return err
	}
	return begin()
}

// columns are the columns of a suppression list as CSV.
var columns = []string{"email", "reason", "category", "expires_at", "why", "at", "origin"}

// row returns an entry as a row of CSV, which begins no formula. An import undoes that.
func row(v *client.Suppression) []string {
	expires := ""
	if !v.Expires.IsZero() {
		expires = v.Expires.Format(time.RFC3339)
	}
	return table.HarmlessRow([]string{
		v.Email, v.Reason, v.Category, expires, v.Why, v.At.Format(time.RFC3339), v.Origin,
	})
}

const (
	importChunk     = 2000     // rows that are stored together
	maxImportRow    = 64 << 10 // bytes
	maxImportErrors = 100
)

// Import adds the rows of a CSV file to the caller's suppression list, or to everyone's. The first row has the names of
// the columns, as people write them: email, and any of reason, category, expires_at and why; others are ignored. Rows
// with mistakes are left out and counted. It may be repeated, also after an error, when a part of the rows is stored.
func (s *Lists) Import(
	ctx context.Context, who caller.Caller, r io.Reader, origin models.SuppressionOrigin,
) (client.SuppressionImport, error) {
	out := client.SuppressionImport{Errors: []client.FieldError{}}
	list, err := listOf(who, models.ScopeSend)
	if err != nil {
		return out, err
	}
	if err := s.Limits.CheckDisk(ctx, who.User); err != nil {
		return out, err
	}
	pace := s.pace(ctx, who)
	defer pace.Pause()
	rows, err := newSuppressionRows(pace.Body(r))
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
			var f problem.Form
			if mistake != nil {
				f.Wrong("", mistake.Code, "%s", mistake)
				reject(&out, f.Err())
				continue
			}
			if !n.wrongTime {
				es = append(es, check(&n.NewSuppression, &f, who, origin, time.Now()))
			} else {
				f.Wrong("/expires_at", "invalid_value", "expires_at must be a time like 2026-01-31T12:00:00Z.")
			}
			if err := f.Err(); err != nil {
				if !n.wrongTime {
					es = es[:len(es)-1]
				}
				reject(&out, err)
			}
		}
		pace.Pause()
		added, err := s.add(ctx, list, es)
		if err != nil {
			return out, err
		}
		out.Added += added
	}
	if out.Rows == 0 {
		return out, problem.New(problem.Invalid, "invalid_csv",
			"The file has no rows below the names of its columns. Nothing was added.")
	}
	s.Audit.Await(ctx)
	return out, ctx.Err()
}

// pace lets an import of the caller give way to other work.
func (s *Lists) pace(ctx context.Context, who caller.Caller) *intake.Pace {
	work := s.Priority.Work(who.User)
	return intake.NewPace(func() (func(), error) { return work.Enter(ctx) })
}

// reject counts a row with mistakes.
func reject(i *client.SuppressionImport, err error) {
	i.Rejected++
	var e *problem.Error
	if !errors.As(err, &e) {
		return
	}
	for _, f := range e.Fields[:min(len(e.Fields), maxImportErrors-len(i.Errors))] {
		i.Errors = append(i.Errors, client.FieldError{
			Pointer: fmt.Sprint("/", i.Rows, f.Pointer), Code: f.Code, Detail: f.Detail,
		})
	}
}

// suppressionRow is a row of a file.
type suppressionRow struct {
	client.NewSuppression
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
	if err := rows.NameColumns(columns...); err != nil {
		return nil, tableError(err)
	}
	return &suppressionRows{rows}, nil
}

// tableError returns the Error for a mistake in a table, and other errors as they are.
func tableError(err error) error {
	var mistake *table.Error
	if errors.As(err, &mistake) {
		return problem.New(problem.Invalid, "invalid_csv", "%s", mistake)
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
			n.Reason = value
		case "category":
			n.Category = value
		case "why":
			n.Why = value
		case "expires_at":
			if value != "" {
				n.Expires, err = time.Parse(time.RFC3339, value)
				n.wrongTime, err = err != nil, nil
			}
		}
	}
	return n, err
}
