package api

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
)

type foundList struct {
	Logs []struct {
		ID    models.ID `json:"id"`
		Email string    `json:"email"`
		Batch models.ID `json:"batch_id"`
	} `json:"logs"`
	Next string `json:"next_cursor"`
	Prev string `json:"previous_cursor"`
}

// TestSearch: pages list the user's own logs of an address, newest first, across batches.
func TestSearch(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ctx := t.Context()
	var want []models.ID
	for n := range 7 {
		a, _, _ := f.accepted(
			f.post(batchOf(t, fmt.Sprintf(`{"to": ["other%d@b.de", "Ann+%d@b.de", "ann@b.de", "zoe@bücher.example"]}`, n, n))),
		)
		rs, err := f.store.Recipients(ctx, a.ID)
		require.NoError(t, err)
		// The first attempt stores the index.
		require.NoError(t, f.store.PutAddressIndex(ctx, f.user, models.NewAddressIndex(a.ID, rs)))
		want = append([]models.ID{a.ID.Log(3)}, want...)
	}
	middle := want[3].ChunkID()
	slices.SortFunc(want, func(a, b models.ID) int { return b.Compare(a) }) // several may be of one millisecond
	search := func(address string) (got []models.ID) {
		for cursor := ""; ; {
			page := read[foundList](f, "/v1/logs?limit=2&email="+url.QueryEscape(address)+""+after(cursor))
			for _, l := range page.Logs {
				require.Equal(t, l.ID.Batch(), l.Batch)
				got = append(got, l.ID)
			}
			if cursor = page.Next; cursor == "" {
				return got
			}
		}
	}
	require.Equal(t, want, search("ANN@b.de"))
	require.Equal(t, []models.ID{middle.Log(2)}, search("ann+3@b.de"))
	require.Empty(t, search("unknown@b.de"))
	require.Equal(t, want, search(" Ann Lee <ann@B.de> (home)"), "as a batch may give it")
	require.Len(t, read[foundList](f, "/v1/logs?email=ann+3@b.de").Logs, 1, "a plus sign that is not encoded")
	require.Len(t, read[foundList](f, "/v1/logs?limit=2&email=Ann+Lee+%3Cann@b.de%3E").Logs, 2, "a plus sign for a space")
	require.Len(t, search("Zoe@BÜCHER.example"), 7)
	require.Len(t, search("zoe@xn--bcher-kva.example"), 7)
	f.secret = f.foreign
	require.Empty(t, search("ann@b.de"), "the logs of another user")
	for bad, want := range map[string]string{
		"/v1/logs?from=today":              "/from invalid_value",
		"/v1/logs?state=done":              "/state invalid_value",
		"/v1/logs?result=wrong":            "/result invalid_value",
		"/v1/logs?rerouted=yes":            "/rerouted invalid_value",
		"/v1/logs?email=ann":               "/email invalid_value",
		"/v1/logs?email=a@b":               "/email invalid_value",
		"/v1/logs?email=a@b.de,c@d.de":     "/email invalid_value",
		"/v1/logs?email=a@b.de&cursor=x":   "/cursor invalid_value",
		"/v1/logs?email=a@b.de&limit=0":    "/limit invalid_value",
		"/v1/logs?email=a@b.de&mail=x":     "/mail unknown_field",
		"/v1/logs?email=a@b.de&email=c@de": "/email repeated",
	} {
		r := f.get(bad)
		require.Equal(t, http.StatusBadRequest, r.Status, bad)
		p := r.problem(t)
		require.Equal(t, []string{want}, p.pointers(), bad)
	}
}

// TestLogsWithoutContent: the logs of a batch can be read after its content and addresses were
// removed.
func TestLogsWithoutContent(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b := f.four()
	f.story(b)
	require.NoError(t, f.store.Redact(t.Context(), b.ID))
	page := read[foundList](f, batchPath(b.ID)+"/logs")
	require.Len(t, page.Logs, 4)
	for _, l := range page.Logs {
		require.Empty(t, l.Email)
	}
	require.Equal(t, http.StatusOK, f.get("/v1/logs/"+b.ID.Log(1).String()).Status)
}

// TestEveryone: keys with the scope operate list and count the mail of all users; other keys
// are refused.
func TestEveryone(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	own := f.four()
	f.story(own)
	other := *f
	other.secret = f.foreign
	theirs := other.four()
	other.story(theirs)
	boss := f.operator()
	for _, path := range []string{"/v1/batches", "/v1/logs", "/v1/stats"} {
		r := f.get(path + "?everyone=true")
		require.Equal(t, http.StatusForbidden, r.Status, path)
		require.Equal(t, "scope_missing", r.problem(t).Code, path)
		require.Equal(t, http.StatusBadRequest, f.get(path+"?everyone=yes").Status, path)
	}
	require.Equal(t, http.StatusForbidden, f.get("/v1/batches?user="+theirs.User).Status)
	list := func(path string) (out []models.ID) {
		for _, b := range read[batchList](boss, path).Batches {
			require.Equal(t, b.ID == theirs.ID, b.User == theirs.User, "the owner of %s", b.ID)
			out = append(out, b.ID)
		}
		return out
	}
	require.Equal(t, []models.ID{own.ID}, list("/v1/batches"))
	require.Equal(t, []models.ID{theirs.ID}, list("/v1/batches?user="+theirs.User))
	both := []models.ID{theirs.ID, own.ID}
	slices.SortFunc(both, func(a, b models.ID) int { return b.Compare(a) }) // both may be of one millisecond
	require.Equal(t, both, list("/v1/batches?everyone=true"))
	require.Len(t, read[foundList](boss, "/v1/logs?everyone=true&state=failed").Logs, 4)
	require.Len(t, read[foundList](boss, "/v1/logs?state=failed").Logs, 2)
	total := func(path string) int64 {
		return read[struct {
			Totals struct{ Accepted int64 }
		}](boss, path).Totals.Accepted
	}
	require.EqualValues(t, 4, total("/v1/stats"))
	require.EqualValues(t, 8, total("/v1/stats?everyone=true"))
}

// TestPagesBothWays: a page has the cursors of the pages before and after it, the number of its
// first log and the number of all logs.
func TestPagesBothWays(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b := f.four()
	f.story(b)
	type page struct {
		foundList
		First int
		Total *int64
	}
	first := read[page](f, batchPath(b.ID)+"/logs?limit=3")
	require.Equal(t, 1, first.First)
	require.EqualValues(t, 4, *first.Total)
	require.Empty(t, first.Prev)
	second := read[page](f, batchPath(b.ID)+"/logs?limit=3&cursor="+first.Next)
	require.Equal(t, 4, second.First)
	require.Empty(t, second.Next)
	require.Equal(t, first, read[page](f, batchPath(b.ID)+"/logs?limit=3&cursor="+second.Prev))
	require.EqualValues(t, 2, *read[page](f, batchPath(b.ID)+"/logs?state=failed").Total)
	whole := read[page](f, batchPath(b.ID)+"/logs?state=failed&provider=sg")
	require.EqualValues(t, 2, *whole.Total, "the page is the list")
	require.EqualValues(t, 2, *read[page](f, batchPath(b.ID)+"/logs?state=failed&provider=sg&limit=1").Total, "counted")
	f.story(f.four())
	before := b.Created().Add(-time.Minute).UTC().Format(time.RFC3339)
	for path, want := range map[string]int64{
		"/v1/batches?limit=1":                2,
		"/v1/batches?limit=1&from=" + before: 2,
		"/v1/logs?limit=1":                   8,
		"/v1/logs?limit=1&state=failed":      4,
		"/v1/logs?limit=1&rerouted=true":     2,
	} {
		total := read[page](f, path).Total
		require.NotNil(t, total, path)
		require.Equal(t, want, *total, path)
	}
	require.EqualValues(t, 4, *read[page](f, "/v1/logs?limit=1&state=failed&provider=sg").Total, "counted")
	wrong := f.get(batchPath(b.ID) + "/logs?state=failed&cursor=" + first.Next).problem(t)
	require.Equal(t, []string{"/cursor invalid_value"}, wrong.pointers(), "a cursor of another filter")
}
