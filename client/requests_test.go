package client_test

import (
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
)

// TestStreamedBatchIsTheSame streams a batch and compares it with the same batch sent at once.
func TestStreamedBatchIsTheSame(t *testing.T) {
	var bodies []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		bodies = append(bodies, string(body))
		w.WriteHeader(http.StatusAccepted)
		_, _ = w.Write([]byte(`{"id":"x"}`))
	}))
	defer server.Close()
	c := client.New(server.URL, "key")
	to := []client.Recipient{{Email: "a@example.com", Vars: map[string]any{"n": 1}}, {Email: "b@example.com"}}
	b := client.NewBatch{From: "me@example.com", Subject: "Hi", HTML: "<p>Hi</p>"}
	_, err := c.StreamBatch(t.Context(), b, slices.Values(to))
	require.NoError(t, err)
	b.To = to
	_, err = c.CreateBatch(t.Context(), b)
	require.NoError(t, err)
	require.JSONEq(t, bodies[1], bodies[0])
	_, err = c.CreateBatchJSON(t.Context(), strings.NewReader(bodies[0]))
	require.NoError(t, err)
	require.Equal(t, bodies[0], bodies[2])
	_, err = c.StreamBatch(t.Context(), b, slices.Values(to))
	require.Error(t, err, "recipients in both places")
}

// TestStreamStopsWithTheRequest requires that no more recipients are read when the server has refused the batch.
func TestStreamStopsWithTheRequest(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "no", http.StatusForbidden)
	}))
	defer server.Close()
	endless := func(yield func(client.Recipient) bool) {
		for yield(client.Recipient{Email: "a@example.com"}) {
		}
	}
	_, err := client.New(server.URL, "key").StreamBatch(t.Context(), client.NewBatch{}, endless)
	require.Error(t, err)
}

func TestPagesAreReadUntilTheLast(t *testing.T) {
	var queries []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		queries = append(queries, r.URL.RawQuery)
		switch r.URL.Query().Get("cursor") {
		case "":
			_, _ = w.Write([]byte(`{"logs":[{"id":"1"},{"id":"2"}],"next_cursor":"two"}`))
		case "two":
			_, _ = w.Write([]byte(`{"logs":[],"next_cursor":"three"}`)) // a page may be empty
		case "three":
			_, _ = w.Write([]byte(`{"logs":[{"id":"3"}],"next_cursor":""}`))
		}
	}))
	defer server.Close()
	c := client.New(server.URL, "key")
	logs := c.Logs(t.Context(), "b", client.LogOptions{State: client.Failed, ListOptions: client.ListOptions{PageSize: 2}})
	for range 2 { // an iterator begins anew each time
		var ids []string
		queries = nil
		for l, err := range logs {
			require.NoError(t, err)
			ids = append(ids, l.ID)
		}
		require.Equal(t, []string{"1", "2", "3"}, ids)
		require.Equal(t, []string{"limit=2&state=failed", "cursor=two&limit=2&state=failed",
			"cursor=three&limit=2&state=failed"}, queries)
	}
	for range logs {
		break
	}
	require.Len(t, queries, 4, "a loop that ends early reads no further page")
}

func TestErrors(t *testing.T) {
	var status int
	var body string
	header := http.Header{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		maps.Copy(w.Header(), header)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}))
	defer server.Close()
	c := client.New(server.URL+"/", "key")

	status, body = http.StatusUnprocessableEntity, `{"status":422,"code":"invalid_request","detail":"Wrong.",
		"request_id":"r1","errors":[{"pointer":"/to/17/email","code":"invalid_address","detail":"no address"}]}`
	var r client.Response
	_, err := c.CreateBatch(t.Context(), client.NewBatch{}, client.Into(&r))
	var e *client.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, "POST /v1/batches: 422 invalid_request: Wrong.; /to/17/email: no address (request r1)", err.Error())
	require.Equal(t, "/to/17/email", e.Fields[0].Pointer)
	require.Equal(t, http.StatusUnprocessableEntity, r.Status)
	require.False(t, client.Repeatable(err))

	header.Set("Retry-After", "3")
	header.Set("X-Request-Id", "r2")
	status, body = http.StatusServiceUnavailable, `{"status":503,"code":"acceptance_unknown","batch_id":"b1"}`
	_, err = c.CreateBatch(t.Context(), client.NewBatch{})
	require.ErrorAs(t, err, &e)
	require.Equal(t, "b1", e.BatchID)
	require.Equal(t, 3*time.Second, e.RetryAfter)
	require.Equal(t, "r2", e.RequestID)
	require.True(t, client.Repeatable(err))
	require.Equal(t, "acceptance_unknown", client.ErrorCode(err))

	status, body = http.StatusConflict, `{"status":409,"code":"request_running"}`
	_, err = c.CreateBatch(t.Context(), client.NewBatch{})
	require.True(t, client.Repeatable(err))

	status, body = http.StatusBadGateway, "<html>a proxy\n"
	_, err = c.RemoveBlock(t.Context(), "x", "")
	require.ErrorAs(t, err, &e)
	require.Empty(t, e.Code)
	require.Contains(t, err.Error(), "Bad Gateway: <html>a proxy")

	status, body = http.StatusServiceUnavailable, `{"status":"not ready","missing":["store"],"checks":{"store":"gone"}}`
	ready, err := c.Readiness(t.Context())
	require.NoError(t, err)
	require.False(t, ready.Ready())
	require.Equal(t, "gone", ready.Checks["store"])

	gone := client.New("http://127.0.0.1:1", "key")
	require.True(t, client.Repeatable(gone.Health(t.Context())), "no answer arrived")
	require.False(t, client.Repeatable(nil))
}
