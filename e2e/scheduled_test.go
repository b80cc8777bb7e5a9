//go:build full

package e2e

import (
	"log/slog"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/config"
	"github.com/safedelivr/safedelivr/internal/app"
	"github.com/safedelivr/safedelivr/internal/testkit"
	"github.com/safedelivr/safedelivr/lab/simulator"
	"github.com/safedelivr/safedelivr/models"
)

// TestScheduledMillion has mail to very many recipients wait for its time, and kills the process while it waits and
// while it goes out. Waiting mail must cost neither memory nor entries of the agenda, all of it must go out once, and
// urgent mail must not wait for it.
func TestScheduledMillion(t *testing.T) {
	testkit.OnBackends(t, func(t *testing.T, b testkit.Backend) {
		const each = 100_000
		batches := 10
		if b.Real {
			batches = 1
		}
		if testkit.Long() {
			batches *= 10
		}
		r := newRig(
			t,
			b,
			simulator.Options{},
			"SAFEDELIVR_PROVIDERS_SG_EVENTS=none",
			"SAFEDELIVR_PROVIDERS_MG_EVENTS=none",
			"SAFEDELIVR_QUOTAS_RECIPIENTS_PER_HOUR=0",
			"SAFEDELIVR_QUOTAS_RECIPIENTS_PER_DAY=0",
			"GOGC=100", // tests may run with more, and its memory is looked at
		)
		r.sim.SetWebhookURL("sg", "")
		r.sim.SetWebhookURL("mg", "")
		p := r.start(r.addr, nil, "serve")
		ids := []models.ID{r.schedule(1000)}
		p.kill()
		p = r.start(r.addr, nil, "serve")
		r.urgent()
		few := p.memory(t)
		for range batches {
			ids = append(ids, r.schedule(each))
		}
		p.kill()
		require.LessOrEqual(t, r.agendaEntries(ids), 3*len(ids), "a batch has a hundred chunks")
		p = r.start(r.addr, nil, "serve")
		r.urgent()
		require.Less(t, p.memory(t), few+64<<20, "%d bytes with 1000 recipients", few)

		at := time.Now().Add(5 * time.Second)
		for _, id := range ids {
			_, err := r.client.RescheduleBatch(t.Context(), id.String(), client.Reschedule{DeliverAt: at})
			require.NoError(t, err)
		}
		r.waitAccepted(each / 10)
		r.urgent()
		if !b.Real { // there it takes longer, and there are fewer
			sent := r.sim.Stats("sg").Accepted + r.sim.Stats("mg").Accepted
			require.Less(t, sent, int64(batches*each), "urgent mail first")
		}
		p.kill()
		r.start(r.addr, nil, "serve")
		r.sentOnce(ids, 1000+batches*each)
	})
}

// schedule posts a batch for tomorrow.
func (r *rig) schedule(n int) models.ID {
	r.t.Helper()
	m := mail{n: n}
	batch := m.batch()
	batch.DeliverAt = time.Now().Add(24 * time.Hour)
	accepted, err := r.client.StreamBatch(r.t.Context(), batch, m.recipients)
	require.NoError(r.t, err)
	return r.id(accepted.ID)
}

// urgent posts an urgent mail and waits until it is delivered.
func (r *rig) urgent() {
	r.t.Helper()
	require.EqualValues(r.t, 1, r.done(r.post(mail{n: 1})).Counts.Delivered)
}

// agendaEntries counts the entries of batches of this test and of their chunks, past ones too. No process must be
// running.
func (r *rig) agendaEntries(batches []models.ID) (n int) {
	r.t.Helper()
	cfg, err := config.Load("", r.env)
	require.NoError(r.t, err)
	store, err := app.OpenStore(r.t.Context(), &cfg, slog.New(slog.DiscardHandler))
	require.NoError(r.t, err)
	defer func() { require.NoError(r.t, store.Close()) }()
	for shard := range store.Shards() {
		for e, err := range store.Agenda(r.t.Context(), shard, batches[0].Time(), time.Now().AddDate(0, 0, 2)) {
			require.NoError(r.t, err)
			for _, id := range batches {
				if e.ID.Batch() == id {
					n++
				}
			}
		}
	}
	return n
}

// memory returns how much of the machine's memory the process has, in bytes.
func (p *process) memory(t *testing.T) int {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "ps", "-o", "rss=", "-p", strconv.Itoa(p.cmd.Process.Pid)).Output()
	require.NoError(t, err)
	kilobytes, err := strconv.Atoi(strings.TrimSpace(string(out)))
	require.NoError(t, err)
	return kilobytes << 10
}

// sentOnce waits until batches are done, and requires one copy of each of their mails, or none or one where the log
// says that the outcome is unknown.
func (r *rig) sentOnce(batches []models.ID, recipients int) {
	r.t.Helper()
	last, at := int64(-1), time.Now()
	for queued := int64(-1); queued != 0; time.Sleep(100 * time.Millisecond) { // between requests
		queued = 0
		for _, id := range batches {
			counts := r.batch(id).Counts
			queued += counts.Queued + counts.Sent
		}
		if queued != last {
			last, at = queued, time.Now()
		}
		require.Less(r.t, time.Since(at), testkit.Patience, "%d are queued, and nothing happens", queued)
	}
	var success, unknown int64
	for _, id := range batches {
		counts := r.done(id).Counts
		success += counts.Delivered
		unknown += counts.FailedReasons[string(models.OutcomeUnknown)]
	}
	require.EqualValues(r.t, recipients, success+unknown)
	of := map[models.ID]bool{}
	for _, id := range batches {
		of[id] = true
	}
	copies := int64(0)
	r.sim.EachCopy(func(log string, per map[string]int) {
		id, err := models.ParseLogID(log)
		require.NoError(r.t, err)
		if !of[id.Batch()] {
			return
		}
		n := 0
		for _, of := range per {
			n += of
		}
		require.Equal(r.t, 1, n, log)
		copies++
	})
	require.GreaterOrEqual(r.t, copies, success)
	require.LessOrEqual(r.t, copies, success+unknown)
	r.t.Logf("%d delivered, %d unknown, %d copies", success, unknown, copies)
}
