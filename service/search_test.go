package service

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/inproc/inproctest"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/softbounce"
	"github.com/safedelivr/safedelivr/service/audit"
	"github.com/safedelivr/safedelivr/store/memory"
)

// TestErasureInTheAuditTrail: the audit trail says that an address was erased, by whom and why,
// and names only its domain.
func TestErasureInTheAuditTrail(t *testing.T) {
	t.Parallel()
	s := New(
		Deps{Store: memory.Open(t), Broker: inproctest.New(t, "sg"), Config: Config{SpoolDir: t.TempDir(), Sole: true}},
	)
	t.Cleanup(s.Close)
	boss := Caller{By: "cli:zoe", Operator: true}
	out, _, err := s.Erasures.Address(t.Context(), boss, "Ann <Ann@X.test>", "", "asked", Repeat{})
	require.NoError(t, err)
	for !out.Done { // a part takes a few seconds at most, however busy the machine is
		out, _, err = s.Erasures.Address(t.Context(), boss, "ann@x.test", out.Next, "asked", Repeat{})
		require.NoError(t, err)
	}
	audit, err := s.Audit.Find(t.Context(), boss, audit.Filter{}, Page{})
	require.NoError(t, err)
	var kinds []models.CommandKind
	for _, e := range audit.Commands {
		kinds = append(kinds, e.Command)
		require.Equal(t, "@x.test", e.Subject)
		require.Equal(t, "asked", e.Why)
		require.Equal(t, "cli:zoe", e.By)
	}
	require.Equal(t, []models.CommandKind{models.AddressErased, models.EraseAddress}, kinds)
	_, _, err = s.Erasures.Address(t.Context(), Caller{User: "u"}, "ann@x.test", "", "", Repeat{})
	require.ErrorContains(t, err, "operate")
}

// TestErasureOfSoftBounces: an erasure removes what is known of the soft bounces of the address, and of no other.
func TestErasureOfSoftBounces(t *testing.T) {
	t.Parallel()
	store := memory.Open(t)
	s := New(Deps{Store: store, Broker: inproctest.New(t, "sg"), Config: Config{SpoolDir: t.TempDir(), Sole: true}})
	t.Cleanup(s.Close)
	user := models.User{ID: models.NewUserID(), Name: "u", Created: time.Now()}
	require.NoError(t, store.CreateUser(t.Context(), user))
	ann, bob := models.HashAddress("ann@x.test"), models.HashAddress("bob@x.test")
	bounce := softbounce.Bounce{Log: models.NewBatchID(time.Now()).Log(1), At: time.Now(), Provider: "sg"}
	require.NoError(t, softbounce.Note(t.Context(), store, user.ID, 5, map[models.AddressHash][]softbounce.Bounce{
		ann: {bounce}, bob: {bounce}}))
	boss := Caller{By: "cli:zoe", Operator: true}
	out, _, err := s.Erasures.Address(t.Context(), boss, "Ann@X.test", "", "", Repeat{})
	for ; err == nil && !out.Done; out, _, err = s.Erasures.Address(t.Context(), boss, "Ann@X.test", out.Next, "",
		Repeat{}) {
	}
	require.NoError(t, err)
	left, err := softbounce.Records(t.Context(), store, user.ID, []models.AddressHash{ann, bob})
	require.NoError(t, err)
	require.Len(t, left, 1)
	require.Equal(t, bob, left[0].Hash)
}
