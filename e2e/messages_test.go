package e2e

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/internal/testkit"
	"github.com/safedelivr/safedelivr/lab/simulator"
	"github.com/safedelivr/safedelivr/models"
)

// TestMessagesChangedThroughKills changes and cancels messages while they are being sent and the process is killed.
// Each has one copy, of the version that was answered last, or none if it was cancelled. The sums and the feed of
// updates agree with that.
func TestMessagesChangedThroughKills(t *testing.T) {
	testkit.OnBackends(t, func(t *testing.T, b testkit.Backend) {
		const n = 120
		r := newRig(t, b, simulator.Options{Latency: 200 * time.Millisecond},
			"SAFEDELIVR_PROVIDERS_SG_CONCURRENCY=1", "SAFEDELIVR_PROVIDERS_MG_CONCURRENCY=1",
			"SAFEDELIVR_PROVIDERS_SG_CHUNK_LIMIT=10", "SAFEDELIVR_PROVIDERS_MG_CHUNK_LIMIT=10")
		p := r.start(r.addr, nil, "serve")
		version := make([]string, n) // that was answered last; empty: cancelled
		for round := range 3 {
			var changes []client.MessageChange
			for i := range n {
				c := client.MessageChange{ID: fmt.Sprint("m-", i), Action: client.UpdateMessage}
				if round > 0 && (i+round)%5 == 0 {
					c.Action = client.CancelMessage
				}
				c.From, c.To, c.Subject, c.Text = "a@demo.test", plainAddress(i), fmt.Sprint("v", round), "t"
				changes = append(changes, c)
			}
			if round > 0 {
				victim, after := p.cmd.Process, rand.N(100*time.Millisecond) //nolint:gosec // a test
				time.AfterFunc(after, func() { _ = victim.Kill() })
				_, _ = r.client.PutMessages(t.Context(), slices.Values(changes))
				p.kill()
				p = r.start(r.addr, nil, "serve")
			}
			var results []client.ChangeResult
			require.Eventually(t, func() bool {
				answered, err := r.client.PutMessages(t.Context(), slices.Values(changes))
				results = answered
				return err == nil
			}, testkit.Patience, 100*time.Millisecond)
			for i, c := range results {
				switch {
				case c.Status == "rejected":
					require.Contains(t, []string{"in_flight", "already_delivered", "already_failed"}, c.Code)
				case changes[i].Action == client.CancelMessage:
					version[i] = ""
				default:
					version[i] = fmt.Sprint("v", round)
				}
			}
		}
		r.checkMessages(version)
	})
}

// checkMessages waits until all messages have ended and compares them with the versions that were answered.
func (r *rig) checkMessages(version []string) {
	r.t.Helper()
	var batches []models.ID
	for b, err := range r.client.Batches(r.t.Context(), client.ListOptions{}) {
		require.NoError(r.t, err)
		batches = append(batches, r.id(b.ID))
	}
	for _, id := range batches {
		r.done(id)
	}
	r.statsAgree(batches...)
	copies, _ := r.copies()
	state, owner := map[string]client.State{}, map[string]string{}
	cancelled := 0
	for i, want := range version {
		m, err := r.client.Message(r.t.Context(), fmt.Sprint("m-", i))
		require.NoError(r.t, err)
		sent := 0
		for _, v := range m.History {
			sent += copies[v.Log]
			state[v.Log], owner[v.Log] = v.State, m.ID
		}
		unknown := m.Log.Reason == string(models.OutcomeUnknown) || m.Log.Reason == string(models.NoFinalEvent)
		require.LessOrEqual(r.t, sent, 1, "%+v", m)
		if want == "" {
			cancelled++
			require.Equal(r.t, client.Cancelled, m.Log.State)
			require.Zero(r.t, sent)
			continue
		}
		require.Equal(r.t, want, m.Log.Subject)
		require.True(r.t, sent == 1 || unknown, "%+v", m)
	}
	r.t.Logf("%d of %d cancelled, in %d batches", cancelled, len(version), len(batches))
	require.Eventually(r.t, func() bool {
		last := map[string]client.State{}
		for u, err := range r.client.Updates(client.UpdateOptions{}).All(r.t.Context()) {
			require.NoError(r.t, err)
			if owner[u.Log] != "" {
				require.Equal(r.t, owner[u.Log], u.ID)
				last[u.Log] = u.State
			}
		}
		for log, s := range state {
			if last[log] != s {
				return false
			}
		}
		return true
	}, testkit.Patience, 100*time.Millisecond)
}

// TestManyMessagesAreFewCalls: thousands of messages of one content are few calls, each with a thousand recipients.
func TestManyMessagesAreFewCalls(t *testing.T) {
	testkit.OnBackends(t, func(t *testing.T, b testkit.Backend) {
		n := testkit.Mails(3_000, 10_000)
		r := newRig(t, b, simulator.Options{},
			"SAFEDELIVR_PROVIDERS_SG_TIMEOUT=30s", "SAFEDELIVR_PROVIDERS_MG_TIMEOUT=30s")
		r.start(r.addr, nil, "serve")
		results, err := r.client.PutMessages(t.Context(), func(yield func(client.MessageChange) bool) {
			for i := range n {
				c := client.MessageChange{
					ID: fmt.Sprint("m-", i), From: "a@demo.test", To: plainAddress(i),
					Subject: "Hi {{n}}", Text: "t", Vars: map[string]any{"n": i},
				}
				if !yield(c) {
					return
				}
			}
		})
		require.NoError(t, err)
		require.Len(t, results, n)
		log, err := models.ParseID(results[0].Log)
		require.NoError(t, err)
		r.done(log.Batch())
		copies, _ := r.copies()
		require.Len(t, copies, n)
		require.EqualValues(t, n/1000, r.sim.Stats("").Calls)
	})
}
