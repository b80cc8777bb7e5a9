package e2e

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/internal/testkit"
	"github.com/safedelivr/safedelivr/lab/simulator"
)

// TestBelowDiskReserve: while the disk has less free space than its reserve, no batch is accepted. Those that were are
// sent, their webhooks are taken, and their sums add up.
func TestBelowDiskReserve(t *testing.T) {
	const n = 20
	r := newRig(t, testkit.Embedded(), simulator.Options{})
	for _, name := range []string{"sg", "mg"} {
		r.command("provider", "offline", name)
	}
	first := r.start(r.addr, nil, "serve")
	id := r.post(mail{n: n})
	first.kill()
	r.start(r.addr, []string{"SAFEDELIVR_LIMITS_DISK_RESERVE=" + strconv.Itoa(1<<60)}, "serve")
	_, err := r.client.StreamBatch(t.Context(), (&mail{}).batch(), (&mail{n: 1}).recipients)
	var refused *client.Error
	require.ErrorAs(t, err, &refused)
	require.Equal(t, "disk_reserve", refused.Code)
	require.EqualValues(t, n, r.batch(id).Counts.Queued)

	r.command("provider", "online", "sg")
	b := r.done(id)
	require.EqualValues(t, n, b.Counts.Delivered)
	require.Zero(t, b.Counts.Unconfirmed, "webhooks reported the deliveries")
	r.statsAgree(id)
}
