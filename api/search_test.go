package api

import (
	"fmt"
	"net/http"
	"net/url"
	"testing"

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
	search := func(address string) (got []models.ID) {
		for cursor := ""; ; {
			page := read[foundList](f, "/v1/logs?limit=2&email="+url.QueryEscape(address)+"&cursor="+cursor)
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
	require.Equal(t, []models.ID{want[3].ChunkID().Log(2)}, search("ann+3@b.de"))
	require.Empty(t, search("unknown@b.de"))
	require.Equal(t, want, search(" Ann Lee <ann@B.de> (home)"), "as a batch may give it")
	require.Len(t, read[foundList](f, "/v1/logs?email=ann+3@b.de").Logs, 1, "a plus sign that is not encoded")
	require.Len(t, read[foundList](f, "/v1/logs?limit=2&email=Ann+Lee+%3Cann@b.de%3E").Logs, 2, "a plus sign for a space")
	require.Len(t, search("Zoe@BÜCHER.example"), 7)
	require.Len(t, search("zoe@xn--bcher-kva.example"), 7)
	f.secret = f.foreign
	require.Empty(t, search("ann@b.de"), "the logs of another user")
	for bad, want := range map[string]string{
		"/v1/logs":                         "/email required",
		"/v1/logs?email=":                  "/email required",
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
