package compose

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTableWithoutKnownHeading: only a text that cannot be a list of addresses is a table without a known heading.
func TestTableWithoutKnownHeading(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]struct {
		of      mapping
		isTable bool
	}{
		"first,contact\nAnn,ann@example.com":        {mapping{"contact": "email"}, true},
		"first,work,home\nAnn,a@example.com,b@c.de": {nil, true},
		"annexample.com\nbob@example.com":           {nil, false},
		"annexample.com,x\nbob@example.com,y":       {nil, false},
		"ann@example.com, bob@example.com":          {nil, false},
		"first,contact\nAnn,none":                   {nil, false},
	} {
		of, isTable := mapping(nil).of(text)
		require.Equal(t, want.isTable, isTable, text)
		require.Equal(t, want.of, of, text)
	}
}
