package consumers

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// verifiedOnly refuses mail from a@bad.test, as SendGrid refuses who is not
// verified.
func verifiedOnly(_ context.Context, c *models.Call) []models.Part {
	if c.Content.From.Email == "a@bad.test" {
		return []models.Part{{Class: models.AccountClass, Reason: models.SenderNotVerified, Status: 403, Recipients: c.Numbers()}}
	}
	return part(models.Accepted, c)
}

func from(address string, providers ...string) func(*models.Batch, []models.Recipient) {
	return func(b *models.Batch, _ []models.Recipient) {
		b.Content.From.Email, b.Providers = address, providers
	}
}

// A sender that a provider has not verified goes elsewhere, and is not tried there
// again for a while; the provider goes on for everybody else.
func TestSenderNotVerified(t *testing.T) {
	t.Parallel()
	cfg := fast()
	cfg.Hold = time.Hour
	sg, mg := newScripted("sg", verifiedOnly), newScripted("mg", always(models.Accepted))
	r := newRig(t, cfg, nil, sg, mg)
	b := r.batch(3, true, from("a@bad.test", "sg", "mg"))
	v := r.done(b)
	require.Equal(t, int64(3), v.Summary().Success)
	require.Equal(t, "sg answered 403: the sender is not verified at the provider", v.Entry(2).Because)
	require.Equal(t, 1, sg.count())

	h := r.engine.byName["sg"].health
	require.Equal(t, telemetry.Healthy, h.report().State)
	require.Equal(t, []string{"bad.test"}, h.report().Senders)
	require.Equal(t, int64(3), r.done(r.batch(3, true, from("a@BAD.test", "sg", "mg"))).Summary().Success)
	require.Equal(t, 1, sg.count(), "not asked again, however the domain is written")
	require.Equal(t, int64(3), r.done(r.batch(3, true, from("a@good.test", "sg"))).Summary().Success)
	require.Equal(t, 2, sg.count())
}

// Where no provider has verified the sender, its mail does not wait for days: it
// fails when the retries are used up, and says why.
func TestSenderVerifiedNowhere(t *testing.T) {
	t.Parallel()
	cfg := fast()
	cfg.MaxRetries = 2
	r := newRig(t, cfg, nil, newScripted("sg", verifiedOnly))
	s := r.done(r.batch(1, true, from("a@bad.test"))).Status(1)
	require.Equal(t, models.RetriesUsedUp, s.Reason)
	require.Equal(t, "sg answered 403: the sender is not verified at the provider", s.Detail)
}

// What one worker finds out about a sender the others know with the next beat,
// and nobody keeps it known by telling it again.
func TestRefusedSendersAreShared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		board, seen := newReportBoard(), &sends{}
		a, b := startHand(ctx, "a", board, 10, seen), startHand(ctx, "b", board, 10, seen)
		time.Sleep(3 * time.Second)
		usable := func(h *hand, domain string) bool {
			ok, _ := h.acc.health.usableFor(domain, time.Now(), false)
			return ok
		}
		require.True(t, usable(b, "bad.test"))
		settle, ok := a.acc.health.begin("bad.test", 1)
		require.True(t, ok)
		settle([]models.Part{{Class: models.AccountClass, Reason: models.SenderNotVerified}}, time.Millisecond)
		hold := a.acc.health.cfg.Hold
		time.Sleep(1200 * time.Millisecond)
		for _, h := range []*hand{a, b} {
			require.False(t, usable(h, "bad.test"))
			require.True(t, usable(h, "good.test"))
			require.Equal(t, telemetry.Healthy, h.acc.health.report().State)
			require.Equal(t, []string{"bad.test"}, h.acc.health.report().Senders)
			require.Equal(t, 1000, h.acc.health.callSize(1000, time.Now()), "no slow return: the provider was never away")
		}
		time.Sleep(hold + time.Second)
		for _, h := range []*hand{a, b} {
			require.True(t, usable(h, "bad.test"), "tried again")
			require.Empty(t, h.acc.health.report().Senders)
		}
		stop()
		seen.all.Wait()
	})
}

// Whoever may send names the domains: no number of them makes a worker grow.
func TestRefusedSendersAreBounded(t *testing.T) {
	t.Parallel()
	var s senders
	now := time.Now()
	for i := range 2 * mostSenders {
		s.refuse(fmt.Sprintf("d%d.test", i), now, now.Add(time.Minute))
	}
	require.Len(t, s.left(now), mostSenders)
	require.True(t, s.refuse("late.test", now.Add(time.Minute), now.Add(2*time.Minute)), "what is over makes room")
	require.Len(t, s.left(now.Add(time.Minute)), 1)
}
