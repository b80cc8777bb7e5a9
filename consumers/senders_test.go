package consumers

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// verifiedOnly refuses mail from a@bad.test, as SendGrid refuses a sender that is not
// verified.
func verifiedOnly(_ context.Context, c *models.Call) []models.Part {
	if c.Content.From.Email == "a@bad.test" {
		return []models.Part{
			{Class: models.AccountClass, Reason: models.SenderNotVerified, Status: 403, Recipients: c.Numbers()},
		}
	}
	return part(models.Accepted, c)
}

func from(address string, providers ...string) func(*models.Batch, []models.Recipient) {
	return func(b *models.Batch, _ []models.Recipient) {
		b.Content.From.Email, b.Providers = address, providers
	}
}

// Mail of a sender that one provider has not verified goes through another one. The
// provider stays in use for other senders.
func TestSenderNotVerified(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := fast()
		cfg.Hold = time.Hour
		sg, mg := newScripted("sg", verifiedOnly), newScripted("mg", always(models.Accepted))
		r := newRig(t, cfg, nil, sg, mg)
		b := r.batch(3, true, from("a@bad.test", "sg", "mg"))
		v := r.done(b)
		require.Equal(t, int64(3), v.Summary().Success)
		require.Equal(t, "sg returned 403 (the sender is not verified at the provider)", v.Entry(2).Because)
		require.Equal(t, 1, sg.count())

		h := r.engine.providers.Get("sg").Health
		is := h.Report(time.Now(), control.ProviderMode{})
		require.Equal(t, telemetry.Healthy, is.State)
		require.Equal(t, []string{"bad.test"}, is.Senders)
		require.Equal(t, int64(3), r.done(r.batch(3, true, from("a@BAD.test", "sg", "mg"))).Summary().Success)
		require.Equal(t, 1, sg.count(), "not asked again, however the domain is written")
		require.Equal(t, int64(3), r.done(r.batch(3, true, from("a@good.test", "sg"))).Summary().Success)
		require.Equal(t, 2, sg.count())
	})
}

// If no provider has verified the sender, its mail fails when the retries are used up, and
// says why.
func TestSenderVerifiedNowhere(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := fast()
		cfg.Retries = 2
		r := newRig(t, cfg, nil, newScripted("sg", verifiedOnly))
		s := r.done(r.batch(1, true, from("a@bad.test"))).Status(1)
		require.Equal(t, models.RetriesUsedUp, s.EndedBy)
		require.Equal(t, models.SenderNotVerified, s.Reason)
		require.Equal(t, "sg returned 403 (the sender is not verified at the provider)", s.Detail)
	})
}
