package consumers

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/models"
)

// TestConfirmedSuppressionEndsLog: a provider suppresses two addresses that bounced before. Earlier
// mail of the user to the first bounced for good, so that its log ends. The other one is
// sent through another provider, although another user's mail to it bounced, and the
// user's older mail, too, before newer mail arrived.
func TestConfirmedSuppressionEndsLog(t *testing.T) {
	t.Parallel()
	sg, mg := newScripted("sg", always(models.Accepted)), newScripted("mg", always(models.Accepted))
	r := emptyRig(t, nil, "sg", "mg")
	var specs []provider.Spec
	for _, p := range []*scripted{sg, mg} {
		specs = append(specs, provider.Spec{Adapter: p, Provider: models.Provider{Name: p.name, Weight: 1,
			Concurrency: 4, ChunkLimit: 1000, Timeout: time.Second, Events: models.EventsWebhook}})
	}
	r.engine = r.start(fast(), specs)
	report := func(log models.ID, kind models.EventKind, reason models.Reason) {
		ev := models.Event{ID: fmt.Sprint(log, kind), Attempt: 1, Kind: kind, Reason: reason, At: time.Now()}
		r.event("sg", log, ev)
	}
	send := func(n int, user string) *models.Batch {
		b := r.batch(n, true, func(b *models.Batch, _ []models.Recipient) {
			b.User, b.Providers = user, []string{"sg", "mg"}
		})
		r.taken(b)
		return b
	}
	older := send(2, r.user)
	report(older.ID.Log(1), models.Delivered, "")
	report(older.ID.Log(2), models.Bounced, models.MailboxInvalid)
	r.done(older)
	newer := send(2, r.user)
	report(newer.ID.Log(1), models.Bounced, models.MailboxInvalid)
	report(newer.ID.Log(2), models.Delivered, "")
	r.done(newer)
	foreign := send(2, models.NewUserID())
	report(foreign.ID.Log(2), models.Bounced, models.MailboxInvalid)
	report(foreign.ID.Log(1), models.Delivered, "")
	r.done(foreign)

	b := send(2, r.user)
	report(b.ID.Log(1), models.Dropped, models.SuppressedBounce)
	report(b.ID.Log(2), models.Dropped, models.SuppressedBounce)
	require.Eventually(t, func() bool {
		return r.view(b).Status(1).State == models.Failed && mg.copiesOf(b.ID.Log(2)) == 1
	}, patience, 5*time.Millisecond)
	s := r.view(b).Status(1)
	require.Equal(t, models.SuppressedBounce, s.Reason)
	require.Contains(t, s.Detail, "earlier mail to this address bounced")
	require.Zero(t, mg.copiesOf(b.ID.Log(1)))
}
