package api

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// TestUnmatched: operators list the events that fitted no message, or several, page by page, and see the post of one.
// What a replay has matched, and what names an address that was erased, is not listed.
func TestUnmatched(t *testing.T) {
	t.Parallel()
	f := newFixture(t).operator()
	require.Empty(t, read[client.UnmatchedPage](f, "/v1/unmatched").Events)
	b := f.four()
	logs := []models.ID{b.ID.Log(1), b.ID.Log(2)}
	ids := f.unmatched(logs, "ann@example.com", "bob@example.com", "eve@example.com")
	var got []string
	for cursor := ""; ; {
		p := read[client.UnmatchedPage](f, "/v1/unmatched?limit=2"+after(cursor))
		for _, e := range p.Events {
			require.Equal(t, string(models.Bounced), e.Kind)
			require.Equal(t, []string{logs[0].String(), logs[1].String()}, e.Logs)
			require.Empty(t, e.Post)
			got = append(got, e.ID)
		}
		if cursor = p.Next; cursor == "" {
			break
		}
	}
	require.Equal(t, []string{ids[0].String(), ids[1].String(), ids[2].String()}, got)
	one := read[client.UnmatchedEvent](f, "/v1/unmatched/"+ids[0].String())
	require.Equal(t, "eve@example.com", one.Email)
	require.Contains(t, one.Post, "eve@example.com")

	raw, err := json.Marshal(telemetry.Unmatched{Solved: ids[:1]})
	require.NoError(t, err)
	require.NoError(t, f.store.PutTransient(t.Context(), telemetry.UnmatchedReport, "replay/1", raw, time.Hour))
	reports, err := f.store.Transients(t.Context(), telemetry.UnmatchedReport)
	require.NoError(t, err)
	var r telemetry.Unmatched
	require.NoError(t, json.Unmarshal(reports["w"], &r))
	erased, err := f.store.EraseInbox(t.Context(), r.Events[0].Post, "ann@example.com")
	require.NoError(t, err)
	require.True(t, erased)
	left := read[client.UnmatchedPage](f, "/v1/unmatched").Events
	require.Len(t, left, 1)
	require.Equal(t, "bob@example.com", left[0].Email)
}
