package consumers

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/models"
)

// envelope stores a batch with one address in To, two in Cc and one in Bcc.
func (r *rig) envelope(change func(*models.Batch, []models.Recipient)) *models.Batch {
	r.t.Helper()
	return r.batch(4, true, func(b *models.Batch, rs []models.Recipient) {
		b.Envelope = &models.Envelope{CC: 2, BCC: 1}
		b.Providers = []string{"sg", "mg"}
		b.Content.Text = "{{code}} for {{email}}"
		rs[0].Vars = map[string]string{"code": "A-17"}
		if change != nil {
			change(b, rs)
		}
	})
}

// shapes returns the addresses of the calls of a provider, with their roles.
func (p *scripted) shapes() (out []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.calls {
		var all []string
		for i := range c.Recipients {
			local, _, _ := strings.Cut(c.Recipients[i].Email, "@")
			all = append(all, strings.TrimSuffix(string(c.Recipients[i].Role)+":"+local, ":"))
		}
		out = append(out, strings.Join(all, " "))
	}
	return out
}

const wholeEnvelope = "to:u1 cc:u2 cc:u3 bcc:u4"

// report files an event about an address of the first attempt, with the log of the address in To,
// as providers do.
func (r *rig) report(provider string, b *models.Batch, n int, kind models.EventKind, reason models.Reason) {
	r.t.Helper()
	body, err := json.Marshal([]models.ParsedEvent{{
		Log:     b.ID.Log(1),
		Address: fmt.Sprintf("U%d@x.test", n),
		Event: models.Event{
			ID:      fmt.Sprint(provider, n, kind),
			Attempt: 1,
			Kind:    kind,
			Reason:  reason,
			At:      time.Now(),
		},
	}})
	require.NoError(r.t, err)
	r.inbox(models.Inbox{ID: models.NewInboxID(time.Now()), Provider: provider, Posts: []models.Post{{Body: body}}})
}

// TestEnvelopeMovesAsOne: all addresses are in one call. A provider that refuses it gets none of them, and the next
// one all.
func TestEnvelopeMovesAsOne(t *testing.T) {
	t.Parallel()
	for _, class := range []models.Class{
		models.RejectedHereClass, models.Throttled, models.Unavailable, models.AccountClass,
	} {
		t.Run(string(class), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				sg, mg := newScripted("sg", always(class)), newScripted("mg", always(models.Accepted))
				r := emptyRig(t, nil, "sg", "mg")
				r.withEvents(fast(), sg, mg)
				b := r.envelope(nil)
				r.taken(b)
				require.Equal(t, []string{wholeEnvelope}, mg.shapes())
				for _, shape := range sg.shapes() {
					require.Equal(t, wholeEnvelope, shape)
				}
				mg.mu.Lock()
				defer mg.mu.Unlock()
				for i := range mg.calls[0].Recipients { // all read the values of the address in To
					vars := mg.calls[0].Recipients[i].Vars
					require.Equal(t, "A-17 u1@x.test", vars["code"]+" "+vars["email"])
				}
			})
		})
	}
}

// TestBounceOfOneAddress: a bounce that another provider could cure reroutes the one address, and says so. The others
// have one copy.
func TestBounceOfOneAddress(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sg, mg := newScripted("sg", always(models.Accepted)), newScripted("mg", always(models.Accepted))
		r := emptyRig(t, nil, "sg", "mg")
		r.withEvents(fast(), sg, mg)
		b := r.envelope(nil)
		r.taken(b)
		r.report("sg", b, 3, models.Blocked, models.PolicyReputation)
		for _, n := range []int{1, 2, 4} {
			r.report("sg", b, n, models.Delivered, "")
		}
		require.Eventually(t, func() bool { return mg.count() == 1 }, patience, 20*time.Millisecond)
		r.event("mg", b.ID.Log(3), models.Event{ID: "again", Attempt: 2, Kind: models.Delivered, At: time.Now()})
		v := r.done(b)
		require.Equal(t, []string{wholeEnvelope}, sg.shapes())
		require.Equal(t, []string{":u3"}, mg.shapes())
		require.Equal(t, "A-17", mg.calls[0].Recipients[0].Vars["code"], "the content is the same")
		for n := 1; n <= 4; n++ {
			s := v.Status(n)
			require.Equal(t, models.Success, s.State)
			require.Equal(t, 1, s.Copies)
			require.Equal(t, n == 3, s.Attempts == 2)
		}
		require.Contains(t, v.Entries[1].Because, "sent to this address alone")
		require.False(t, v.Entries[1].Together)
	})
}

// TestEnvelopeWithUnknownOutcome: the outcome is unknown for all addresses. Without evidence they are held, or sent
// together again if the batch wants that. An event about one address shows that the provider has the mail of all.
func TestEnvelopeWithUnknownOutcome(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		policy   models.UnknownPolicy
		evidence bool
		calls    int // of mg
		reason   models.Reason
	}{
		"held":                  {models.Hold, false, 0, models.OutcomeUnknown},
		"sent again":            {models.Resend, false, 1, ""},
		"held with evidence":    {models.Hold, true, 0, models.NoFinalEvent},
		"not sent, by evidence": {models.Resend, true, 0, models.NoFinalEvent},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				cfg := fast()
				cfg.EvidenceWindow, cfg.FinalEvent = 300*time.Millisecond, time.Second
				sg, mg := newScripted("sg", always(models.Unknown)), newScripted("mg", always(models.Accepted))
				r := emptyRig(t, nil, "sg", "mg")
				b := r.envelope(func(b *models.Batch, _ []models.Recipient) { b.OnUnknown = c.policy })
				if c.evidence {
					cfg.EvidenceWindow = time.Second
				}
				r.withEvents(cfg, sg, mg)
				require.Eventually(t, func() bool { return len(r.view(b).Entries) > 0 }, patience, 20*time.Millisecond)
				if c.evidence {
					r.report("sg", b, 2, models.Delivered, "")
				}
				if c.calls > 0 {
					r.taken(b)
					require.Equal(t, []string{wholeEnvelope}, mg.shapes())
					return
				}
				v := r.done(b)
				require.Zero(t, mg.count())
				for n := 1; n <= 4; n++ {
					if s := v.Status(n); c.evidence && n == 2 {
						require.Equal(t, models.Success, s.State)
					} else {
						require.Equal(t, c.reason, s.Reason, "recipient %d", n)
					}
				}
			})
		})
	}
}

// TestEnvelopeIsLookedUp: what a look-up finds about an address of an envelope with an unknown outcome decides about
// that address. The others wait for their own events, and get no second copy, also if the batch wants that and if one
// address is sent to again because its mail was blocked.
func TestEnvelopeIsLookedUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := fast()
		cfg.EvidenceWindow, cfg.FinalEvent, cfg.LookUpPause = 400*time.Millisecond, 2*time.Second, 50*time.Millisecond
		sg := &reporting{scripted: newScripted("sg", always(models.Unknown)), down: true}
		mg := newScripted("mg", always(models.Accepted))
		r := emptyRig(t, nil, "sg", "mg")
		var specs []provider.Spec
		for name, adapter := range map[string]models.Adapter{"sg": sg, "mg": mg} {
			specs = append(specs, provider.Spec{Adapter: adapter, Provider: models.Provider{Name: name, Weight: 1,
				Concurrency: 4, ChunkLimit: 1000, Timeout: 100 * time.Millisecond, Events: models.EventsWebhook,
				Carries: models.Capabilities{Copies: true, Variables: true}}})
		}
		r.engine = r.start(cfg, specs)
		b := r.envelope(func(b *models.Batch, _ []models.Recipient) { b.OnUnknown = models.Resend })
		require.Eventually(t, func() bool { return sg.queries() > 0 }, patience, 5*time.Millisecond)
		require.Zero(t, mg.count(), "while sg cannot be queried, nothing is sent again")
		made := r.view(b).Status(1).Last.Attempt // on a busy machine the first attempt may have passed its start-by
		about := func(n int, kind models.EventKind, reason models.Reason) models.ParsedEvent {
			return models.ParsedEvent{Log: b.ID.Log(1), Address: fmt.Sprintf("u%d@x.test", n), Event: models.Event{
				ID: fmt.Sprint(n, kind), Attempt: made, Kind: kind, Reason: reason, At: time.Now()}}
		}
		sg.reportAll(about(1, models.Delivered, ""), about(2, models.Bounced, models.MailboxInvalid),
			about(3, models.Blocked, models.PolicyReputation))
		sg.mu.Lock()
		sg.down = false
		sg.mu.Unlock()
		require.Eventually(t, func() bool { return mg.count() > 0 }, patience, 5*time.Millisecond)
		again := r.view(b).Status(3).Last.Attempt
		r.event("mg", b.ID.Log(3), models.Event{ID: "again", Attempt: again, Kind: models.Delivered, At: time.Now()})
		v := r.done(b)
		require.Equal(t, []string{wholeEnvelope}, sg.shapes())
		require.Equal(t, []string{":u3"}, mg.shapes())
		require.Equal(t, models.Success, v.Status(1).State)
		require.Equal(t, models.MailboxInvalid, v.Status(2).Reason)
		require.Equal(t, models.Success, v.Status(3).State)
		require.Equal(t, models.NoFinalEvent, v.Status(4).Reason, "sg has the mail, and said nothing about it")
	})
}

// TestAddressOfEnvelopeCannotGetMail: an address that is suppressed, refused or blocked is left out. Without the one in
// To, none gets the mail.
func TestAddressOfEnvelopeCannotGetMail(t *testing.T) {
	t.Parallel()
	suppress := func(r *rig, n int) {
		e := models.NewSuppression(fmt.Sprintf("u%d@x.test", n), models.Manual, models.FromAPI, time.Now())
		require.NoError(r.t, r.engine.suppressions.Add(context.Background(), r.user, e))
	}
	block := func(r *rig, n int) {
		r.order(models.Command{
			Kind:  models.AddBlock,
			Block: &models.Block{ID: models.NewUserID(), Domain: fmt.Sprintf("d%d.test", n), Fail: true},
		})
	}
	for name, c := range map[string]struct {
		before func(r *rig, n int)
		reason models.Reason
	}{
		"suppressed": {suppress, models.Suppressed},
		"blocked":    {block, models.BlockedByRule},
		"refused":    {nil, models.MailboxInvalid},
	} {
		for n, want := range map[int]string{1: "", 2: "to:u1 cc:u3 bcc:u4", 4: "to:u1 cc:u2 cc:u3"} {
			t.Run(fmt.Sprint(name, " ", n), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					sg := newScripted("sg", func(_ context.Context, call *models.Call) []models.Part {
						all := call.Numbers()
						if bad := models.SetOf(n); c.before == nil && all.Has(n) {
							return []models.Part{
								{Class: models.RejectedRecipient, Recipients: bad, Reason: models.MailboxInvalid},
								{Class: models.Split, Recipients: all.Minus(bad)},
							}
						}
						return part(models.Accepted, call)
					})
					mg := newScripted("mg", always(models.Accepted))
					r := emptyRig(t, nil, "sg", "mg")
					r.withEvents(fast(), sg, mg)
					if c.before != nil {
						c.before(r, n)
					}
					b := r.envelope(func(_ *models.Batch, rs []models.Recipient) {
						if name == "blocked" {
							rs[n-1].Email = fmt.Sprintf("u%d@d%d.test", n, n)
						}
					})
					if want == "" {
						v := r.done(b)
						for k := 2; k <= 4; k++ {
							require.Equal(t, models.ToFailed, v.Status(k).Reason)
						}
					} else {
						require.Eventually(t, func() bool { return r.view(b).Taken() }, patience, 5*time.Millisecond)
						require.Equal(t, want, sg.shapes()[sg.count()-1])
					}
					require.Equal(t, c.reason, r.view(b).Status(n).Reason)
					require.Zero(t, mg.count())
					for _, shape := range sg.shapes()[:max(0, sg.count()-1)] {
						require.Equal(t, wholeEnvelope, shape)
					}
				})
			})
		}
	}
}

// TestOneOfSeveralInTo: a mail with several addresses in To is sent while one of them can get it, with the values of the
// first. If the first was erased, its values are gone, and none gets the mail.
func TestOneOfSeveralInTo(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		suppressed []int
		erased     string
		want       []string
		reasons    string
	}{
		"all":                 {nil, "", []string{"to:u1 to:u2 cc:u3 bcc:u4"}, "    "},
		"without the first":   {[]int{1}, "", []string{"to:u2 cc:u3 bcc:u4"}, "suppressed    "},
		"without the second":  {[]int{2}, "", []string{"to:u1 cc:u3 bcc:u4"}, " suppressed   "},
		"without both":        {[]int{1, 2}, "", nil, "suppressed suppressed to_failed to_failed "},
		"the first is erased": {nil, "u1@x.test", nil, "erased erased erased erased "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				texts := make(chan string, 1)
				sg := newScripted("sg", func(_ context.Context, call *models.Call) []models.Part {
					code, _ := call.Recipients[0].Value("code")
					texts <- code
					return part(models.Accepted, call)
				})
				r := emptyRig(t, nil, "sg")
				r.withEvents(fast(), sg)
				for _, n := range c.suppressed {
					e := models.NewSuppression(fmt.Sprintf("u%d@x.test", n), models.Manual, models.FromAPI, time.Now())
					require.NoError(t, r.engine.suppressions.Add(context.Background(), r.user, e))
				}
				r.order(models.Command{Kind: models.ProviderOffline, Provider: "sg"})
				b := r.envelope(func(b *models.Batch, _ []models.Recipient) {
					b.Envelope, b.Providers = &models.Envelope{To: 2, CC: 1, BCC: 1}, nil
				})
				if c.erased != "" {
					r.erase(b, c.erased)
				}
				r.order(models.Command{Kind: models.ProviderOnline, Provider: "sg"})
				r.announce(b)
				if c.want == nil {
					r.done(b)
				} else {
					r.taken(b)
					require.Equal(t, "A-17", <-texts)
				}
				require.Equal(t, c.want, sg.shapes())
				got := ""
				for n := 1; n <= 4; n++ {
					if s := r.view(b).Status(n); s.State == models.Failed {
						got += string(s.Reason)
					}
					got += " "
				}
				require.Equal(t, c.reasons, got)
			})
		})
	}
}

// TestReleaseOfOneAddress: a log of an envelope that is released is sent alone. If the mail was never sent because the
// address in To cannot get it, that does not change.
func TestReleaseOfOneAddress(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := fast()
		cfg.EvidenceWindow = 50 * time.Millisecond
		sg := newScripted("sg", always(models.Unknown))
		r := emptyRig(t, nil, "sg")
		r.withEvents(cfg, sg)
		b := r.envelope(func(b *models.Batch, _ []models.Recipient) { b.Providers = nil })
		r.done(b)
		r.order(models.Command{Kind: models.ReleaseBatch, Batch: b.ID, Log: b.ID.Log(2)})
		r.announce(b)
		require.Eventually(t, func() bool { return sg.count() == 2 }, patience, 20*time.Millisecond)
		require.Equal(t, []string{wholeEnvelope, ":u2"}, sg.shapes())

		e := models.NewSuppression("u1@x.test", models.Manual, models.FromAPI, time.Now())
		require.NoError(t, r.engine.suppressions.Add(t.Context(), r.user, e))
		b = r.envelope(func(b *models.Batch, _ []models.Recipient) { b.Providers = nil })
		r.done(b)
		for _, log := range []models.ID{b.ID.Log(2), {}} { // one of them, then all
			r.order(models.Command{Kind: models.RetryBatch, Batch: b.ID, Log: log})
			r.announce(b)
			before := len(r.view(b).Entries)
			require.Eventually(t, func() bool { return len(r.view(b).Entries) > before }, patience, 20*time.Millisecond)
			v := r.done(b)
			require.Equal(t, models.Suppressed, v.Status(1).Reason)
			require.Equal(t, models.ToFailed, v.Status(2).Reason)
		}
		require.Equal(t, 2, sg.count())
	})
}

// TestEnvelopeIsNotDivided: a provider whose calls have fewer addresses is not used.
func TestEnvelopeIsNotDivided(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sg, mg := newScripted("sg", always(models.Accepted)), newScripted("mg", always(models.Accepted))
		r := emptyRig(t, nil, "sg", "mg")
		r.engine = r.start(fast(), []provider.Spec{
			{
				Adapter: sg,
				Provider: models.Provider{Name: "sg", Weight: 1, Concurrency: 1, ChunkLimit: 3, Timeout: time.Second,
					Events: models.EventsNone, Carries: models.Capabilities{Copies: true, Variables: true}},
			},
			{
				Adapter: mg,
				Provider: models.Provider{Name: "mg", Weight: 1, Concurrency: 1, ChunkLimit: 4, Timeout: time.Second,
					Rate: 4, Events: models.EventsNone, Carries: models.Capabilities{Copies: true, Variables: true}},
			},
		})
		b := r.envelope(nil)
		r.done(b)
		require.Zero(t, sg.count())
		require.Equal(t, []string{wholeEnvelope}, mg.shapes())
	})
}

// TestErasedAddressOfEnvelope: an erased address is left out of mail that was not sent. Without the address in To none
// gets it, and of mail that was sent, nothing is sent again, because the values were erased with the address.
func TestErasedAddressOfEnvelope(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sg, mg := newScripted("sg", always(models.Accepted)), newScripted("mg", always(models.Accepted))
		r := emptyRig(t, nil, "sg", "mg")
		r.withEvents(fast(), sg, mg)
		waiting := func(erased string) *models.Batch {
			r.order(models.Command{Kind: models.ProviderOffline, Provider: "sg"})
			b := r.envelope(func(b *models.Batch, _ []models.Recipient) { b.Providers = []string{"sg"} })
			r.erase(b, erased)
			r.order(models.Command{Kind: models.ProviderOnline, Provider: "sg"})
			r.announce(b)
			return b
		}
		b := waiting("u3@x.test")
		r.taken(b)
		require.Equal(t, []string{"to:u1 cc:u2 bcc:u4"}, sg.shapes())
		require.Equal(t, models.Erased, r.view(b).Status(3).Reason)

		v := r.done(waiting("u1@x.test"))
		require.Equal(
			t,
			[]models.Reason{models.Erased, models.ToFailed},
			[]models.Reason{v.Status(1).Reason, v.Status(4).Reason},
		)

		b = r.envelope(nil)
		r.taken(b)
		r.erase(b, "u1@x.test")
		r.report("sg", b, 2, models.Blocked, models.PolicyReputation)
		r.report("sg", b, 1, models.Delivered, "") // its address is unknown now, and the only one that is
		require.Eventually(t, func() bool {
			v := r.view(b)
			return v.Status(2).Reason == models.Erased && v.Status(1).State == models.Success
		}, patience, 5*time.Millisecond)
		require.Zero(t, mg.count())
	})
}
