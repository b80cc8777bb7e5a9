package api

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/drift"
)

// fakeLists are the suppression lists of a provider.
type fakeLists struct {
	models.ProviderLists
	cleared []string
	err     error
}

func (*fakeLists) Lists() []models.ProviderList {
	return []models.ProviderList{{Name: "bounces", Reason: models.HardBounce}, {Name: "blocks"}}
}

func (l *fakeLists) Unlist(_ context.Context, list, address string) error {
	l.cleared = append(l.cleared, list+" "+address)
	return l.err
}

// listed stores entries that a provider suppresses and we do not.
func (f *fixture) listed(es ...drift.Entry) {
	f.Helper()
	for _, e := range es {
		require.NoError(f, drift.Note(f.Context(), f.store, &e))
	}
}

// checkProviderLists checks the calls about the suppression lists of providers. own is a key without the scope operate.
func (c *contract) checkProviderLists(own string) {
	c.Helper()
	const path = "/v1/providers/sg/suppressions"
	at := time.Now().UTC()
	c.listed(drift.Entry{Email: "ann@example.com", Provider: "sg", List: "blocks", Text: "550 no", At: at},
		drift.Entry{Email: "bob@example.com", Provider: "sg", List: "bounces", Reason: models.HardBounce, At: at})
	st := drift.State{Read: at, Error: "list bounces: 500", Lists: map[string]*drift.Cover{"bounces": {Refused: true}}}
	require.NoError(c, drift.PutState(c.Context(), c.store, "sg", &st, 1))
	c.check("GET", "/v1/providers", "", "", 200)
	c.check("GET", path+"?limit=1", "", "", 200)
	c.check("GET", path+"?cursor=x", "", "", 400)
	c.check("GET", path, "", "", 403, "Authorization", "Bearer "+own)
	c.check("GET", "/v1/providers/mg/suppressions", "", "", 409)
	c.check("GET", "/v1/providers/other/suppressions", "", "", 404)
	c.check("DELETE", path+"/ann@example.com?list=blocks&why=asked", "", "", 204)
	c.check("DELETE", path+"/ann@example.com?list=other", "", "", 400)
	c.check("DELETE", path+"/ann@example.com", "", "", 403, "Authorization", "Bearer "+own)
	c.check("DELETE", path+"/x", "", "", 404)
}

// TestProviderSuppressions: addresses that a provider suppresses and we do not are listed in pages until they are
// cleared there, with the user who removed them here. Addresses that are suppressed here meanwhile are not listed.
func TestProviderSuppressions(t *testing.T) {
	t.Parallel()
	f := newFixture(t).operator()
	at := time.Now().Add(-time.Hour).UTC().Truncate(time.Second)
	const n = 30
	for i := range n {
		f.listed(drift.Entry{Email: fmt.Sprintf("a%d@example.com", i), Provider: "sg", List: "blocks", At: at},
			drift.Entry{Email: fmt.Sprintf("a%d@example.com", i), Provider: "mg", List: "bounces", At: at})
	}
	pages := func() map[string]client.ProviderSuppression {
		t.Helper()
		all := map[string]client.ProviderSuppression{}
		for query := "?limit=7"; ; {
			page := read[client.ProviderSuppressionPage](f, "/v1/providers/sg/suppressions"+query)
			require.LessOrEqual(t, len(page.Suppressions), 7)
			for _, e := range page.Suppressions {
				require.NotContains(t, all, e.Email)
				all[e.Email] = e
			}
			if page.Next == "" {
				return all
			}
			query = "?limit=7&cursor=" + page.Next
		}
	}
	require.Len(t, pages(), n)
	f.do("POST", "/v1/suppressions?everyone=true", "application/json", strings.NewReader(`{"email": "a1@example.com"}`))
	require.NotContains(t, pages(), "a1@example.com")

	joined := models.NewSuppression("ann@example.com", models.HardBounce, models.FromProvider, at)
	joined.By, joined.Why = "sg", "bounces: 550 no"
	require.NoError(t, f.store.PutSuppressions(t.Context(), models.EveryonesList, joined))
	require.NotContains(t, pages(), "ann@example.com")
	r := f.do("DELETE", "/v1/suppressions/ann@example.com?everyone=true&why=works+now", "", nil)
	require.Equal(t, 200, r.Status)
	require.Equal(t, client.ProviderSuppression{Email: "ann@example.com", List: "bounces", Reason: "hard_bounce",
		Text: "550 no", At: at, RemovedBy: f.user, RemovedWhy: "works now"}, pages()["ann@example.com"])
}

// TestClearProviderSuppression: an address is removed at the provider, which is recorded; if that fails, it stays
// listed and the error says why.
func TestClearProviderSuppression(t *testing.T) {
	t.Parallel()
	f := newFixture(t).operator()
	api := f.deps.Lists["sg"].(*fakeLists)
	for _, list := range []string{"bounces", "blocks"} {
		f.listed(drift.Entry{Email: "ann@example.com", Provider: "sg", List: list, At: time.Now()},
			drift.Entry{Email: "ann@example.com", Provider: "mg", List: list, At: time.Now()})
	}
	left := func() (out []string) {
		t.Helper()
		es, err := drift.Entries(t.Context(), f.store, "", 100)
		require.NoError(t, err)
		for _, e := range es {
			out = append(out, e.Provider+" "+e.List)
		}
		return out
	}
	const path = "/v1/providers/sg/suppressions/Ann@example.com"
	for code, err := range map[string]error{
		"provider_lists_refused": fmt.Errorf("403: %w", models.ErrNoLists),
		"provider_unavailable":   errors.New("it answered 500"),
	} {
		api.err = err
		r := f.do("DELETE", path, "", nil)
		require.Equal(t, code, r.problem(t).Code)
		require.Len(t, left(), 4)
	}
	api.err, api.cleared = nil, nil
	require.Equal(t, 204, f.do("DELETE", path+"?list=blocks&why=asked", "", nil).Status)
	require.Equal(t, []string{"blocks Ann@example.com"}, api.cleared)
	require.Equal(t, []string{"mg blocks", "mg bounces", "sg bounces"}, left())
	require.Equal(t, "provider.unlist asked", f.commands()[2])
	require.Equal(t, 204, f.do("DELETE", path, "", nil).Status)
	require.Equal(t, []string{"mg blocks", "mg bounces"}, left())

	f.erase("ann@example.com")
	require.Empty(t, left())
}
