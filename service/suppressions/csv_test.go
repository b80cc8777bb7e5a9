package suppressions

import (
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/service/problem"
	"github.com/safedelivr/safedelivr/service/table"
)

// FuzzSuppressionRows: any file is read to its end or to an error for its sender, and no row is
// longer than its limit.
func FuzzSuppressionRows(f *testing.F) {
	for _, s := range []string{
		"", "email\n", "email,reason\na@b.example,complaint\n", "\ufeffEmail;x\n", "email\n\"a\nb\"\n", "email\n\"",
		"a,b\nc\n",
		"email,expires_at\nx,2026-01-31T12:00:00Z\nx,soon\n", "email\r\n\r\nx\r\n",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		rows, err := newSuppressionRows(strings.NewReader(text))
		for n := 0; err == nil; n++ {
			require.LessOrEqual(t, n, len(text))
			var row suppressionRow
			row, err = rows.next()
			var mistake *table.Error
			if errors.As(err, &mistake) {
				if err = tableError(err); mistake.Line > 0 {
					err = nil
				}
			}
			require.LessOrEqual(t, len(row.Email)+len(row.Reason)+len(row.Category)+len(row.Why), maxImportRow)
		}
		var e *problem.Error
		if !errors.Is(err, io.EOF) {
			require.ErrorAs(t, err, &e)
			require.Equal(t, "invalid_csv", e.Code)
		}
	})
}
