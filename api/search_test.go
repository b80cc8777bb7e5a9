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
		a, _, _ := f.accepted(f.post(batchOf(t, fmt.Sprintf(`{"to": ["other%d@b.de", "Ann+%d@b.de", "ann@b.de"]}`, n, n))))
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
	f.secret = f.foreign
	require.Empty(t, search("ann@b.de"), "the logs of another user")
	for _, bad := range []string{
		"/v1/logs",
		"/v1/logs?email=ann",
		"/v1/logs?email=a@b.de&cursor=x",
		"/v1/logs?email=a@b.de&limit=0",
	} {
		require.Equal(t, http.StatusBadRequest, f.get(bad).Status, bad)
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
