//go:build browser

package dashboard

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/dashboard/login"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
	"github.com/safedelivr/safedelivr/service"
)

// TestBrowserWaits looks at the pages of mail that waits, and at a path without a page.
func TestBrowserWaits(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	at := time.Now().UTC()
	doubt := f.batchOf("local", nil, service.Recipient{Email: "ann@example.com"})
	final := f.batchOf("local", nil, service.Recipient{Email: "bob@example.com"})
	suspended := f.batchOf("local", nil, service.Recipient{Email: "eve@example.com"})
	for _, id := range []models.ID{doubt, final, suspended} {
		require.NoError(t, f.store.Append(t.Context(), id, models.Entry{
			Number:     1,
			Token:      models.NewToken(),
			Kind:       models.Attempt,
			At:         at,
			Recipients: models.SetOf(1),
			Provider:   "sg",
			CallEnds:   at.Add(time.Minute),
		}))
	}
	for id, class := range map[models.ID]models.Class{final: models.Accepted, suspended: models.Unavailable} {
		o := models.Outcome{Attempt: 1, At: at, Parts: []models.Part{{Class: class, Recipients: models.SetOf(1)}}}
		fact := models.Fact{Key: "o", Outcome: &o}
		require.NoError(t, f.store.PutFacts(t.Context(), models.ChunkFact{Chunk: id, Fact: fact}))
	}
	state := telemetry.WorkerState{Started: at}
	for _, name := range []string{"sg", "mg"} {
		state.Providers = append(state.Providers, telemetry.ProviderState{Name: name, Health: telemetry.Health{
			State: telemetry.Suspended,
			Why:   "calls fail: 503 Service Unavailable",
			Until: at.Add(time.Hour),
		}})
	}
	raw, err := json.Marshal(state)
	require.NoError(t, err)
	require.NoError(t, f.store.PutTransient(t.Context(), telemetry.WorkerReport, "w", raw, time.Hour))

	link, err := f.board.LoginLink(t.Context(), login.LocalUser())
	require.NoError(t, err)
	b := openTab(t, f.url)
	b.open(link)
	b.sees("Overview")
	for _, c := range []struct {
		name string
		id   models.ID
		text string
	}{
		{"evidence", doubt, "the outcome at sg is not known yet"},
		{"final", final, "accepted by sg; no final event yet"},
		{"suspended", suspended, "sg is suspended: calls fail"},
	} {
		for name, path := range map[string]string{
			"waits-batch-": "/batches/" + c.id.String(), "waits-log-": "/logs/" + c.id.Log(1).String(),
		} {
			b.lookAround(name+c.name, path)
			b.sees(c.text)
			b.until(`/until |next attempt in /.test(document.body.innerText)`)
		}
	}
	b.complaints()
	b.look("no-page", "/nothing/here", 390, "light")
	b.sees("This page does not exist")
}
