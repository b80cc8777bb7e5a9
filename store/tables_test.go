package store

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// forms are the tables of each Form.
var forms = []string{
	1: "users user_names keys user_keys batches user_batches chunks pieces ledger facts summaries " +
		"sums_second sums_minute sums_hour sums_day agenda agenda_marks dues inbox inbox_pending " +
		"replay_guards commands rules claims claim_answers leases transients address_index " +
		"suppressions suppression_additions feed published documents",
}

// TestForm: Form was raised for each table that was added, so that existing databases get it.
func TestForm(t *testing.T) {
	t.Parallel()
	var names []string
	for _, table := range Tables() {
		require.NotContains(t, names, table.Name)
		names = append(names, table.Name)
	}
	require.Len(t, forms, Form+1, "add the tables of the new Form to forms, and keep those of the former")
	require.Equal(t, strings.Fields(forms[Form]), names,
		"existing databases have other tables: raise Form in store/store.go, and add a line to forms")
}
