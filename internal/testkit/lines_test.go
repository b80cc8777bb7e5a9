package testkit

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// failing is a test that keeps the text of its failure.
type failing struct {
	testing.TB
	text string
}

func (f *failing) Errorf(format string, args ...any) { f.text = fmt.Sprintf(format, args...) }

func TestSameLines(t *testing.T) {
	t.Parallel()
	for got, want := range map[string]string{
		"a b b": "", "a b": "why:\n- b\n", "b c a b": "why:\n+ c\n", "b a b": "why:\nthe order differs",
	} {
		f := failing{TB: t}
		SameLines(&f, []string{"a", "b", "b"}, strings.Fields(got), "why")
		require.Equal(t, want, f.text)
	}
}
