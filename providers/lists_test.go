package providers_test

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/lab/simulator"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers"
)

// listed returns all entries of a list by address, and the number of pages.
func (s *stage) listed(t *testing.T, list string, from, to time.Time) (out map[string]models.Listed, pages int) {
	t.Helper()
	out = map[string]models.Listed{}
	for q := (models.ListQuery{List: list, From: from, To: to}); ; {
		page, err := s.adapter.(models.ProviderLists).ReadList(t.Context(), q)
		require.NoError(t, err)
		require.Zero(t, page.Skipped)
		for _, e := range page.Entries {
			_, before := out[e.Email]
			require.False(t, before, "an entry is in two pages: %s", e.Email)
			out[e.Email] = e
		}
		if pages++; page.Next == "" {
			return out, pages
		}
		q.Cursor = page.Next
	}
}

// TestSimulatedLists: what bounced, complained or unsubscribed is on the provider's lists, and the
// next mail to it is dropped until it is removed there.
func TestSimulatedLists(t *testing.T) {
	for _, kind := range withLists() {
		t.Run(kind, func(t *testing.T) {
			s := newStageWith(t, kind, simulator.Options{Suppress: true})
			begun := time.Now()
			outcomes := []string{"hardbounce@a.sim.test", "complain@a.sim.test", "unsubscribe@a.sim.test"}
			s.adapter.Send(t.Context(), s.call(models.NewBatchID(begun), 0, append(outcomes, "deliver@a.sim.test")...))
			s.settle(t)
			names := map[models.SuppressionReason]string{}
			for _, l := range s.adapter.(models.ProviderLists).Lists() {
				if names[l.Reason] == "" {
					names[l.Reason] = l.Name
				}
			}
			if kind == simulator.Brevo || kind == simulator.Mailtrap { // which have one list for all reasons
				names[models.Complaint], names[models.Unsubscribe] = s.bounces(), s.bounces()
			}
			want := map[string]models.SuppressionReason{outcomes[0]: models.HardBounce, outcomes[1]: models.Complaint,
				outcomes[2]: models.Unsubscribe}
			for address, reason := range want {
				list := names[reason]
				if list == "" {
					continue // Resend has no list of those who unsubscribed
				}
				listed := func() map[string]models.Listed {
					found, _ := s.listed(t, list, time.Time{}, time.Now())
					maps.DeleteFunc(found, func(_ string, e models.Listed) bool { return e.Reason != reason })
					return found
				}
				found := listed()
				require.Len(t, found, 1, list)
				require.Equal(t, reason, found[address].Reason)
				require.WithinDuration(t, begun, found[address].At, time.Minute)

				require.NotEqual(t, address, s.outcomeOf(t, address), "it must be dropped")
				err := s.adapter.(models.ProviderLists).Unlist(t.Context(), list, address)
				if kind == simulator.Postmark && reason == models.Complaint {
					require.Error(t, err, "it never removes complaints")
					continue
				}
				require.NoError(t, err)
				require.Empty(t, listed())
				require.Equal(t, address, s.outcomeOf(t, address), "it must be accepted again")
			}
		})
	}
}

// outcomeOf sends to an address and returns its outcome as an address that chooses it.
func (s *stage) outcomeOf(t *testing.T, address string) string {
	t.Helper()
	c := s.call(models.NewBatchID(time.Now()), 0, address)
	s.adapter.Send(t.Context(), c)
	copies := s.copies(c, 0)
	if len(copies) == 0 {
		return "refused"
	}
	return copies[0].Outcome + "@a.sim.test"
}

// bounces returns the name of the list of addresses that bounced.
func (s *stage) bounces() string {
	for _, l := range s.adapter.(models.ProviderLists).Lists() {
		if l.Reason == models.HardBounce {
			return l.Name
		}
	}
	return ""
}

// simulatedList returns the simulator's name of the list of addresses that bounced.
func simulatedList(s *stage) string {
	// These have one list with all reasons.
	of := map[string]string{simulator.Brevo: "hardBounce", simulator.Mailtrap: "hard bounce"}
	return cmp.Or(of[s.kind], s.bounces())
}

// TestListsHavePages reads lists of more than one page; SendGrid's also from and to a time.
func TestListsHavePages(t *testing.T) {
	eachOf(t, withLists(), func(t *testing.T, s *stage) {
		// more than two pages of 100
		n := 310
		if slices.Contains(slices.Concat(whole, []string{simulator.SES, simulator.Mailtrap}), s.kind) { // of 1,000
			n = 2100
		}
		at := time.Now().Add(-time.Hour).Truncate(time.Second)
		for i := range n {
			require.NoError(t, s.sim.Suppress("acc", simulator.Suppressed{
				Address: fmt.Sprintf("u%d@x.test", i), List: simulatedList(s), At: at.Add(-time.Duration(i) * time.Second)}))
		}
		found, pages := s.listed(t, s.bounces(), time.Time{}, time.Now())
		require.Len(t, found, n)
		if s.kind != simulator.Postmark { // which has a whole list on one page
			require.Greater(t, pages, 2)
		}
		found, _ = s.listed(t, s.bounces(), at.Add(-9*time.Second), at.Add(-5*time.Second))
		if _, byTime := found["u4@x.test"]; !byTime {
			require.Contains(t, found, "u9@x.test")
			require.NotContains(t, found, "u10@x.test")
			require.Contains(t, found, "u5@x.test")
		}
	})
}

// TestListsWithoutPermission: a key may be one that cannot read lists, and the limit of requests is
// waited for.
func TestListsWithoutPermission(t *testing.T) {
	for _, kind := range withLists() {
		t.Run(kind, func(t *testing.T) {
			t.Parallel() // they wait for seconds
			s := newStageWith(t, kind, simulator.Options{NoLists: true})
			lists := s.adapter.(models.ProviderLists)
			_, err := lists.ReadList(t.Context(), models.ListQuery{List: s.bounces(), To: time.Now()})
			require.ErrorIs(t, err, models.ErrNoLists)
			require.ErrorIs(t, lists.Unlist(t.Context(), s.bounces(), "ann@x.test"), models.ErrNoLists)
			account, err := providers.Inspect(t.Context(), s.adapter, "")
			require.NoError(t, err)
			last := account.Findings[len(account.Findings)-1]
			require.Equal(t, providers.Warning, last.State)
			require.Contains(t, last.Text, "may not read the suppression lists "+s.bounces()+", ")

			s = newStageWith(t, kind, simulator.Options{LookupsPerSecond: 1})
			for range 3 {
				q := models.ListQuery{List: s.bounces(), To: time.Now()}
				_, err := s.adapter.(models.ProviderLists).ReadList(t.Context(), q)
				require.NoError(t, err)
			}
		})
	}
}

// TestListCursorsStayAtTheAPI: a cursor that is no page of the list is refused, and gets no key.
func TestListCursorsStayAtTheAPI(t *testing.T) {
	eachOf(t, whole, func(t *testing.T, s *stage) {
		for _, cursor := range []string{"http://elsewhere.test/v3/x", "-1", "::"} {
			q := models.ListQuery{List: s.bounces(), To: time.Now(), Cursor: cursor}
			_, err := s.adapter.(models.ProviderLists).ReadList(t.Context(), q)
			if !errors.Is(err, models.ErrInvalid) {
				t.Errorf("cursor %q: %v", cursor, err)
			}
		}
	})
}
