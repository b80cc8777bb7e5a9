package feed

import (
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/store/memory"
)

// A notice is published although another one is published between its reading and its writing, and knows of that one.
func TestOvertakenNoticeIsPublished(t *testing.T) {
	t.Parallel()
	s := memory.Open(t)
	suspend := func(st *Status, provider string) []models.Notice {
		st.Suspended[provider] = time.Unix(1, 0).UTC()
		return []models.Notice{{Kind: models.ProviderSuspended, Provider: provider}}
	}
	var known []int
	require.NoError(t, Announce(t.Context(), s, func(st *Status) []models.Notice {
		if known = append(known, len(st.Suspended)); len(known) == 1 {
			require.NoError(t, Announce(t.Context(), s, func(st *Status) []models.Notice { return suspend(st, "mg") }))
		}
		return suspend(st, "sg")
	}))
	require.Equal(t, []int{0, 1}, known)
	var published []string
	for _, u := range readAll(t, s, Installation, 10) {
		published = append(published, u.Notice.Provider)
	}
	require.Equal(t, []string{"mg", "sg"}, published)
}

// TestAnnounceTogether: if many notice the same at the same time, one of them publishes it. Notices have numbers
// without a hole, in the order of the feed, and can be read in pages of any size. Published notices outlive closed
// ranges and removed entries.
func TestAnnounceTogether(t *testing.T) {
	t.Parallel()
	s := memory.Open(t)
	const things, callers = 20, 6
	var all sync.WaitGroup
	failed := make(chan error, callers*things)
	for range callers {
		all.Go(func() {
			for n := range things {
				failed <- Announce(t.Context(), s, func(st *Status) []models.Notice {
					provider := "p" + strconv.Itoa(n)
					if _, ok := st.Suspended[provider]; ok {
						return nil
					}
					st.Suspended[provider] = time.Unix(int64(n), 0).UTC()
					return []models.Notice{
						{Kind: models.FailoverStarted, Provider: provider}, {Kind: models.ProviderSuspended, Provider: provider},
					}
				})
			}
		})
	}
	all.Wait()
	close(failed)
	for err := range failed {
		require.NoError(t, err)
	}
	for _, limit := range []int{1, 3, 1000} {
		got := readAll(t, s, Installation, limit)
		require.Len(t, got, 2*things)
		for i := range got {
			require.Equal(t, i+1, got[i].Number)
			require.Equal(t, "p"+strconv.Itoa(i/2), got[i].Notice.Provider)
		}
	}
	page, err := Read(t.Context(), s, Installation, Query{After: Begin, Limit: 5, Notice: func(n *models.Notice) bool {
		return n.Kind == models.ProviderSuspended && n.Number > 4
	}})
	require.NoError(t, err)
	require.Equal(t, []int{6, 8, 10, 12, 14}, numbers(page.Updates))

	require.NoError(t, Complete(t.Context(), s, Installation, time.Now()))
	require.NoError(t, Drop(t.Context(), s, Installation, time.Now().Add(time.Hour)))
	require.Empty(t, readAll(t, s, Installation, 10))
	require.NoError(t, Announce(t.Context(), s, func(st *Status) []models.Notice {
		require.Len(t, st.Suspended, things)
		return []models.Notice{{Kind: models.CheckDifference}}
	}))
	require.Equal(t, []int{2*things + 1}, numbers(readAll(t, s, Installation, 10)))
}

func numbers(us []Update) (out []int) {
	for i := range us {
		out = append(out, us[i].Number)
	}
	return out
}

// TestNearQuota: of all callers that notice a limit, one publishes it in its hour, and one in the next hour.
func TestNearQuota(t *testing.T) {
	t.Parallel()
	s := memory.Open(t)
	hour := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	for _, began := range []time.Time{hour, hour, hour.Add(time.Hour), hour.Add(time.Hour)} {
		for _, user := range []string{"a", "b"} {
			require.NoError(t, NearQuota(t.Context(), s, models.Notice{
				User: user, Limit: models.RecipientsPerHour, Count: 9, Most: 10, Since: began, Until: began.Add(time.Hour),
			}))
		}
	}
	var got []string
	for _, u := range readAll(t, s, Installation, 10) {
		got = append(got, u.Notice.User+" "+u.Notice.Since.Format("15:04"))
	}
	require.Equal(t, []string{"a 12:00", "b 12:00", "a 13:00", "b 13:00"}, got)
}

// TestDisabledIsPublished: operators get one notice of a disabled endpoint, however often a worker is killed after
// that, and its user gets at least one. When it is disabled another time, there are new notices.
func TestDisabledIsPublished(t *testing.T) {
	t.Parallel()
	store := memory.Open(t)
	e := models.FailedEndpoint{ID: "e", Why: "it answered 410: the address is gone", Since: time.Now().UTC()}
	for range 2 {
		require.NoError(t, EndpointIsDisabled(t.Context(), store, "u", e))
	}
	e.Since = e.Since.Add(time.Second)
	require.NoError(t, EndpointIsDisabled(t.Context(), store, "u", e))
	read := func(owner string) []Update {
		page, err := Read(t.Context(), store, owner, Query{After: Begin, Limit: 10})
		require.NoError(t, err)
		return page.Updates
	}
	require.Len(t, read("u"), 3)
	published := read(Installation)
	require.Len(t, published, 2)
	require.Equal(t, e, *published[1].Notice.Endpoint)
	require.Equal(t, "Endpoint e of user u is disabled: it answered 410: the address is gone. Nothing is posted to it "+
		"until it is enabled.",
		published[1].Notice.Text())
}
