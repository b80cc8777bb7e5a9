package simulator_test

import (
	"encoding/json"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/safedelivr/safedelivr/lab/simulator"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/simtest"
)

// eachAccount runs the test for both providers.
func eachAccount(t *testing.T, test func(t *testing.T, account string)) {
	t.Helper()
	for _, account := range []string{"sg", "mg"} {
		t.Run(account, func(t *testing.T) {
			t.Parallel()
			test(t, account)
		})
	}
}

func TestDuplicatedEventsAreSentTwice(t *testing.T) {
	t.Parallel()
	eachAccount(t, func(t *testing.T, account string) {
		addrs := simtest.Addresses(50)
		r := simtest.New(t, simulator.Options{})
		r.Inject(simulator.Fault{Account: account, Mode: simulator.ModeEventsDuplicate, Pattern: "user000?@*"})
		r.Send(t, account, "r", addrs...)
		r.SettleAll(t)
		count := map[string]int{}
		ids := map[string]int{}
		for _, e := range r.Hooks.Events(account) {
			count[e.Text("email")+e.Text("recipient")]++
			ids[e.Text("sg_event_id")+e.Text("id")]++
		}
		if len(ids) != 100 || count[addrs[3]] != 4 || count[addrs[30]] != 2 {
			t.Errorf("%d ids, %v", len(ids), count)
		}
		if st := r.Stats(account); st.EventsDoubled != 20 || st.EventsOvertaken != 0 || st.EventsLate != 0 {
			t.Errorf("stats %+v", st)
		}
		tokens := map[string]bool{}
		for _, p := range r.Hooks.Requests() {
			var body struct{ Signature struct{ Token string } }
			if json.Unmarshal(p.Body, &body) == nil && tokens[body.Signature.Token] {
				t.Error("a token was used twice")
			}
			tokens[body.Signature.Token] = true
		}
	})
}

func TestShuffledEventsAreCounted(t *testing.T) {
	t.Parallel()
	eachAccount(t, func(t *testing.T, account string) {
		addrs := simtest.Addresses(50)
		r := simtest.New(t, simulator.Options{WebhookWorkers: 1})
		r.Inject(simulator.Fault{Account: account, Mode: simulator.ModeEventsShuffle})
		r.Send(t, account, "r", addrs...)
		r.SettleAll(t)
		list := r.Hooks.Events(account)
		first := map[string]string{}
		early := 0 // copies whose last event comes first
		for _, e := range list {
			addr := e.Text("email") + e.Text("recipient")
			if first[addr] == "" {
				first[addr] = e.Text("event")
				if e.Text("event") == "delivered" {
					early++
				}
			}
		}
		sorted := simtest.Summaries(list)
		slices.Sort(sorted)
		if len(slices.Compact(sorted)) != 100 || early < 10 || early > 40 {
			t.Errorf("%d events, %d out of order", len(list), early)
		}
		if st := r.Stats(account); st.EventsOvertaken != int64(early) || st.EventsDoubled != 0 || st.EventsLate != 0 {
			t.Errorf("%d out of order, stats %+v", early, st)
		}
	})
}

func TestWebhookFaultsIgnoreOtherRecipients(t *testing.T) {
	t.Parallel()
	eachAccount(t, func(t *testing.T, account string) {
		addrs := simtest.Addresses(50)
		r := simtest.New(t, simulator.Options{WebhookWorkers: 1})
		for _, mode := range []string{simulator.ModeEventsShuffle, simulator.ModeEventsDuplicate,
			simulator.ModeEventsDelay + ":1ms"} {
			r.Inject(simulator.Fault{Account: account, Mode: mode, Pattern: "other@*"})
		}
		r.Send(t, account, "r", addrs...)
		r.SettleAll(t)
		first := map[string]string{}
		for _, e := range r.Hooks.Events(account) {
			if addr := e.Text("email") + e.Text("recipient"); first[addr] == "" {
				if first[addr] = e.Text("event"); first[addr] == "delivered" {
					t.Errorf("%s is out of order", addr)
				}
			}
		}
		if st := r.Stats(""); len(first) != 50 || st.EventsDoubled != 0 || st.EventsOvertaken != 0 || st.EventsLate != 0 {
			t.Errorf("%d copies, stats %+v", len(first), st)
		}
	})
}

func TestLateEventsAreCountedOnce(t *testing.T) {
	t.Parallel()
	eachAccount(t, func(t *testing.T, account string) {
		addrs := simtest.Addresses(50)
		r := simtest.New(t, simulator.Options{TimeScale: 6000})
		r.Inject(simulator.Fault{Account: account, Mode: simulator.ModeEventsDelay, Delay: 50 * time.Millisecond,
			Pattern: "user000?@*"})
		r.Inject(simulator.Fault{Account: account, Mode: simulator.ModeEventsOff, Times: 1, Pattern: "user0009@*"})
		r.Hooks.Status = func(*http.Request, []byte) int {
			return 200 + 300*int(1-min(1,
				r.Stats(account).Posts))
		} // the first is repeated
		r.Send(t, account, "r", addrs...)
		r.SettleAll(t)
		if st := r.Stats(account); st.EventsLate != 18 {
			t.Errorf("stats %+v", st)
		}
		for _, i := range []int{8, 9} {
			if c := r.Copies(addrs[i]); len(c) != 1 || c[0].Muted != (i == 9) {
				t.Errorf("copies %+v", c)
			}
		}
	})
}

func TestBadSignatureAppliesToOneRequest(t *testing.T) {
	t.Parallel()
	eachAccount(t, func(t *testing.T, account string) {
		r := simtest.New(t, simulator.Options{})
		r.Inject(simulator.Fault{Account: account, Mode: simulator.ModeBadSignature, Times: 1})
		r.Send(t, account, "r", "a@example.com")
		r.SettleAll(t)
		r.Send(t, account, "s", "a@example.com")
		r.SettleAll(t)
		if r.Hooks.Forged() != 1 || len(r.Hooks.Events(account)) < 2 {
			t.Errorf("%d forged, events %v", r.Hooks.Forged(), simtest.Summaries(r.Hooks.Events(account)))
		}
	})
}

func TestEventsOffMutesMailAcceptedBefore(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{simulator.SendGrid, simulator.Mailgun} {
		w := &wire{status: func(int, []byte) int { return 200 }}
		in(t, kind, simulator.Options{EventDelay: time.Minute}, w,
			func(t *testing.T, s *simulator.Simulator, send sendFunc) {
				send("a@example.com", "b@example.com")
				s.Inject(simulator.Fault{Mode: simulator.ModeEventsOff, Pattern: "a@*"}) // before they happen
				if err := s.Settle(t.Context()); err != nil {
					t.Fatal(err)
				}
				if list := w.events(t); len(list) != 2 || s.Stats("x").EventsMuted != 2 {
					t.Errorf("events %v, stats %+v", simtest.Summaries(list), s.Stats("x"))
				}
			})
	}
}
