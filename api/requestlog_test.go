package api

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
)

// TestRequestLog: the log of a key has its requests with their answers, also those that failed,
// and is shown to the owner of the key and to operators.
func TestRequestLog(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	b := f.four()
	f.get("/v1/batches/" + b.ID.String())
	f.get("/v1/logs/"+b.ID.Log(2).String(), "X-Request-Id", "mine")
	f.get("/v1/batches?limit=x")
	require.Equal(t, http.StatusUnprocessableEntity, f.post("{}").Status)
	require.Equal(t, http.StatusForbidden, f.get("/v1/queues").Status)
	require.Equal(t, http.StatusUnauthorized, f.get("/v1/batches", "Authorization", "Bearer x").Status)
	page := read[client.RequestPage](f, "/v1/requests")
	var got []string
	for i := range page.Requests {
		r := &page.Requests[i]
		got = append(got, r.Method+" "+r.Path+" "+http.StatusText(r.Status)+" "+r.Code)
		require.NotEmpty(t, r.RequestID)
		require.False(t, r.At.IsZero())
	}
	require.Equal(t, []string{
		"GET /v1/queues Forbidden scope_missing",
		"POST /v1/batches Unprocessable Entity invalid_request",
		"GET /v1/batches Bad Request invalid_query",
		"GET /v1/logs/:id OK ",
		"GET /v1/batches/:id OK ",
		"POST /v1/batches Accepted ",
	}, got)
	require.Equal(t, "mine", page.Requests[3].RequestID)
	for _, n := range []int{3, 4, 5} {
		require.Equal(t, b.ID.String(), page.Requests[n].BatchID, n)
	}
	require.Empty(t, page.Requests[0].BatchID)

	first := read[client.RequestPage](f, "/v1/requests?limit=2")
	require.Equal(t, "/v1/requests", first.Requests[0].Path)
	require.Equal(t, page.Requests[0], first.Requests[1])
	next := read[client.RequestPage](f, "/v1/requests?limit=2&cursor="+first.Next)
	require.Equal(t, page.Requests[1:3], next.Requests)

	other := *f
	other.secret = f.foreign
	require.Equal(t, http.StatusNotFound, other.get("/v1/requests?key="+page.Key).Status, "of another user")
	require.Len(t, read[client.RequestPage](f.operator(), "/v1/requests?limit=500&key="+page.Key).Requests, 9)
}
