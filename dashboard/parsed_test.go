package dashboard

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPagesAreParsed: each page of each room can be parsed. A process parses a page when somebody visits it.
func TestPagesAreParsed(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("*/*.html")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	d := newRig(t, nil).board
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".html")
		_, err := d.web.Parts(name, nil, "layout without a name")
		require.ErrorContains(t, err, `"layout without a name" is undefined`, file)
	}
	_, err = d.web.Parts("no page", nil)
	require.Error(t, err)
}
