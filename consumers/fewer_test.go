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

// atMost refuses calls with more recipients, as Mailgun does for new accounts, and names no number.
func atMost(n int) func(context.Context, *models.Call) []models.Part {
	return func(_ context.Context, c *models.Call) []models.Part {
		if len(c.Recipients) > n {
			return []models.Part{{Class: models.RejectedHereClass, Status: 403, Fewer: len(c.Recipients) - 1,
				Text: "not allowed to send large batches yet", Recipients: c.Numbers()}}
		}
		return part(models.Accepted, c)
	}
}

// sizes returns how many recipients the calls of a provider had, after the first ones.
func (p *scripted) sizes(first int) (out []int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.calls[first:] {
		out = append(out, len(c.Recipients))
	}
	return out
}

// TestTooManyRecipients: a provider that refuses the number of recipients gets all mail in smaller calls, and the calls
// after that have no more than it takes.
func TestTooManyRecipients(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sg, mg := newScripted("sg", atMost(10)), newScripted("mg", always(models.Accepted))
		cfg := fast()
		cfg.Retries = 1 // smaller calls are no retries
		r := newRig(t, cfg, nil, sg, mg)
		v := r.done(r.batch(100, true, from("a@b.test", "sg", "mg")))
		require.Equal(t, int64(100), v.Summary().Success)
		require.Zero(t, mg.count(), "the provider takes all of it in smaller calls")
		require.Contains(t, v.Entry(2).Because, "sg")
		sizes := sg.sizes(0)
		require.Equal(t, []int{100, 50}, sizes[:2])
		require.Less(t, len(sizes), 40, "each refusal halves the calls of all that follow: %v", sizes)
		before := sg.count()
		require.Equal(t, int64(20), r.done(r.batch(20, true, from("a@b.test", "sg", "mg"))).Summary().Success)
		require.Equal(t, []int{6, 6, 6, 2}, sg.sizes(before), "it is remembered for the provider")
		h := r.engine.providers.Get("sg").Health
		require.Equal(t, telemetry.Healthy, h.Report(time.Now(), control.ProviderMode{}).State)
	})
}

// TestTooManyAddressesOfOneMail: a mail to more addresses than a provider takes is not divided. It goes to another
// provider, and the next one does so at once.
func TestTooManyAddressesOfOneMail(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sg, mg := newScripted("sg", atMost(3)), newScripted("mg", always(models.Accepted))
		r := emptyRig(t, nil, "sg", "mg")
		r.withEvents(fast(), sg, mg)
		for range 2 {
			r.taken(r.envelope(nil))
		}
		require.Equal(t, 1, sg.count())
		require.Equal(t, []string{wholeEnvelope, wholeEnvelope}, mg.shapes())
	})
	synctest.Test(t, func(t *testing.T) {
		sg := newScripted("sg", atMost(3))
		r := emptyRig(t, nil, "sg")
		r.withEvents(fast(), sg)
		for range 2 { // it is asked each time: there is no other way
			s := r.done(r.envelope(func(b *models.Batch, _ []models.Recipient) { b.Providers = nil })).Status(1)
			require.Equal(t, models.NoProviderLeft, s.EndedBy)
			require.Equal(t, models.RejectedHere, s.Reason)
		}
		require.Equal(t, 2, sg.count())
	})
}

// TestFullAccount: a provider that says until when its account is full gets no mail until then, and others get it
// meanwhile. Without another one, the mail waits and is sent then.
func TestFullAccount(t *testing.T) {
	t.Parallel()
	full := func(until time.Time) func(context.Context, *models.Call) []models.Part {
		return func(_ context.Context, c *models.Call) []models.Part {
			if time.Now().Before(until) {
				return []models.Part{{Class: models.AccountClass, Status: 420, RetryAt: until, Recipients: c.Numbers()}}
			}
			return part(models.Accepted, c)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		until := time.Now().Add(4 * time.Second)
		sg, mg := newScripted("sg", full(until)), newScripted("mg", always(models.Accepted))
		r := newRig(t, fast(), nil, sg, mg)
		for range 3 {
			require.Equal(t, int64(3), r.done(r.batch(3, true, from("a@b.test", "sg", "mg"))).Summary().Success)
		}
		require.Equal(t, 1, sg.count(), "the first batch found it out for the others")
		is := r.engine.providers.Get("sg").Health.Report(time.Now(), control.ProviderMode{})
		require.Equal(t, telemetry.Suspended, is.State)
		require.Equal(t, until.UTC(), is.Until)
	})
	synctest.Test(t, func(t *testing.T) {
		until := time.Now().Add(4 * time.Second)
		sg := newScripted("sg", full(until))
		r := newRig(t, fast(), nil, sg)
		b := r.batch(3, true, nil)
		time.Sleep(time.Until(until) - time.Second)
		require.Equal(t, 1, sg.count())
		require.Equal(t, int64(3), r.view(b).Summary().Queued)
		require.Equal(t, int64(3), r.done(b).Summary().Success)
		require.Less(t, time.Since(until), time.Second)
	})
}
