package problem

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

// TestManyMistakes: an error lists the first maxFieldErrors mistakes and counts all.
func TestManyMistakes(t *testing.T) {
	t.Parallel()
	var f Form
	require.NoError(t, f.Err())
	for i := range maxFieldErrors + 2 {
		f.Wrong("/a", "invalid_value", "%d is wrong.", i)
	}
	var e *Error
	require.ErrorAs(t, f.Err(), &e)
	require.Len(t, e.Fields, maxFieldErrors)
	require.Equal(t, FieldError{Pointer: "/a", Code: "invalid_value", Detail: "0 is wrong."}, e.Fields[0])
	require.Equal(t, maxFieldErrors+2, e.Total)
}

// TestPointer: names are escaped as RFC 6901 says.
func TestPointer(t *testing.T) {
	t.Parallel()
	require.Empty(t, Pointer())
	require.Equal(t, "/to/a~1b~0c", Pointer("to", "a/b~c"))
}

// TestQuoteCutsLongText: Quote cuts after 60 characters, not bytes.
func TestQuoteCutsLongText(t *testing.T) {
	t.Parallel()
	require.Equal(t, `"a\nb"`, Quote("a\nb"))
	require.Equal(t, `"`+strings.Repeat("ë", 60)+`…"`, Quote(strings.Repeat("ë", 61)))
}

// TestFromStore: only an unavailable store asks for a retry, and the cause is not shown.
func TestFromStore(t *testing.T) {
	t.Parallel()
	for want, cause := range map[string]error{
		"not_found":            models.ErrNotFound,
		"stored_value_damaged": models.ErrDamaged,
		"store_unavailable":    errors.New("secret"),
	} {
		var e *Error
		require.ErrorAs(t, FromStore("read", cause), &e)
		require.Equal(t, want, e.Code)
		require.Equal(t, want == "store_unavailable", e.RetryAfter > 0)
		require.NotContains(t, e.Detail, "secret")
	}
}
