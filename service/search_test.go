package service

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/inproc/inproctest"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/sqlite/sqlitetest"
)

// TestErasureInTheAuditTrail: the audit trail says that an address was erased, by whom and why,
// and names only its domain.
func TestErasureInTheAuditTrail(t *testing.T) {
	t.Parallel()
	s := New(
		Deps{Store: sqlitetest.Open(t), Broker: inproctest.New(t, "sg"), Config: Config{SpoolDir: t.TempDir(), Sole: true}},
	)
	t.Cleanup(s.Close)
	boss := Caller{By: "cli:zoe", Operator: true}
	out, _, err := s.Erase(t.Context(), boss, "Ann <Ann@X.test>", "", "asked", Repeat{})
	require.NoError(t, err)
	for !out.Done { // a part takes a few seconds at most, however busy the machine is
		out, _, err = s.Erase(t.Context(), boss, "ann@x.test", out.Next, "asked", Repeat{})
		require.NoError(t, err)
	}
	audit, err := s.Audit(t.Context(), boss, Page{})
	require.NoError(t, err)
	var kinds []models.CommandKind
	for _, e := range audit.Commands {
		kinds = append(kinds, e.Command)
		require.Equal(t, "@x.test", e.Subject)
		require.Equal(t, "asked", e.Why)
		require.Equal(t, "cli:zoe", e.By)
	}
	require.Equal(t, []models.CommandKind{models.AddressErased, models.EraseAddress}, kinds)
	_, _, err = s.Erase(t.Context(), Caller{User: "u"}, "ann@x.test", "", "", Repeat{})
	require.ErrorContains(t, err, "operate")
}
