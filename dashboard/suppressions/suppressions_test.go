package suppressions

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/dashboard/web"
	"github.com/safedelivr/safedelivr/internal/testkit"
)

// TestSuppressionIsShown: the list shows each field of a suppression.
func TestSuppressionIsShown(t *testing.T) {
	t.Parallel()
	page := func(s *client.Suppression) string {
		view := &suppressionsView{List: []client.Suppression{*s}, Form: &web.Form{}}
		parts, err := views.Parts("suppressions", web.Page{Data: view, Visitor: &web.Visitor{}}, "content")
		require.NoError(t, err)
		return string(parts["content"])
	}
	testkit.Shown(t, page, nil, func(*client.Suppression) {})
}
