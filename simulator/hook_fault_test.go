package simulator

import (
	"encoding/json"
	"net/http"
	"slices"
	"testing"
	"time"
)

func TestHookFaults(t *testing.T) {
	t.Parallel()
	addrs := addresses(50)
	for _, account := range []string{"sg", "mg"} {
		t.Run("duplicate "+account, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, Options{})
			r.Inject(Fault{Account: account, Mode: ModeEventsDuplicate, Pattern: "user000?@*"})
			r.send(t, account, "r", addrs...)
			r.flush(t)
			count := map[string]int{}
			ids := map[string]int{}
			for _, e := range r.hooks.of(account) {
				count[e.str("email")+e.str("recipient")]++
				ids[e.str("sg_event_id")+e.str("id")]++
			}
			if len(ids) != 100 || count[addrs[3]] != 4 || count[addrs[30]] != 2 {
				t.Errorf("%d ids, %v", len(ids), count)
			}
			if st := r.Stats(account); st.EventsDoubled != 20 || st.EventsOvertaken != 0 || st.EventsLate != 0 {
				t.Errorf("stats %+v", st)
			}
			tokens := map[string]bool{}
			for _, p := range r.hooks.requests() {
				var body struct{ Signature struct{ Token string } }
				if json.Unmarshal(p.body, &body) == nil && tokens[body.Signature.Token] {
					t.Error("a token was used twice")
				}
				tokens[body.Signature.Token] = true
			}
		})
		t.Run("shuffle "+account, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, Options{WebhookWorkers: 1})
			r.Inject(Fault{Account: account, Mode: ModeEventsShuffle})
			r.send(t, account, "r", addrs...)
			r.flush(t)
			list := r.hooks.of(account)
			first := map[string]string{}
			early := 0 // copies whose last event comes first
			for _, e := range list {
				addr := e.str("email") + e.str("recipient")
				if first[addr] == "" {
					first[addr] = e.str("event")
					if e.str("event") == "delivered" {
						early++
					}
				}
			}
			sorted := told(list)
			slices.Sort(sorted)
			if len(slices.Compact(sorted)) != 100 || early < 10 || early > 40 {
				t.Errorf("%d events, %d out of order", len(list), early)
			}
			if st := r.Stats(account); st.EventsOvertaken != int64(early) || st.EventsDoubled != 0 || st.EventsLate != 0 {
				t.Errorf("%d out of order, stats %+v", early, st)
			}
		})
		t.Run("nobody "+account, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, Options{WebhookWorkers: 1})
			for _, mode := range []string{ModeEventsShuffle, ModeEventsDuplicate, ModeEventsDelay + ":1ms"} {
				r.Inject(Fault{Account: account, Mode: mode, Pattern: "nobody@*"})
			}
			r.send(t, account, "r", addrs...)
			r.flush(t)
			first := map[string]string{}
			for _, e := range r.hooks.of(account) {
				if addr := e.str("email") + e.str("recipient"); first[addr] == "" {
					if first[addr] = e.str("event"); first[addr] == "delivered" {
						t.Errorf("%s is out of order", addr)
					}
				}
			}
			if st := r.Stats(""); len(first) != 50 || st.EventsDoubled != 0 || st.EventsOvertaken != 0 || st.EventsLate != 0 {
				t.Errorf("%d copies, stats %+v", len(first), st)
			}
		})
		t.Run("late "+account, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, Options{TimeScale: 6000})
			r.Inject(Fault{Account: account, Mode: ModeEventsDelay, Delay: 50 * time.Millisecond, Pattern: "user000?@*"})
			r.Inject(Fault{Account: account, Mode: ModeEventsOff, Times: 1, Pattern: "user0009@*"})
			r.hooks.status = func(*http.Request, []byte) int { return 200 + 300*int(1-min(1, r.Stats(account).Posts)) } // the first is repeated
			r.send(t, account, "r", addrs...)
			r.flush(t)
			if st := r.Stats(account); st.EventsLate != 18 {
				t.Errorf("stats %+v", st)
			}
			for _, i := range []int{8, 9} {
				if c := r.Copies(addrs[i]); len(c) != 1 || c[0].Muted != (i == 9) {
					t.Errorf("copies %+v", c)
				}
			}
		})
		t.Run("signature "+account, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, Options{})
			r.Inject(Fault{Account: account, Mode: ModeBadSignature, Times: 1})
			r.send(t, account, "r", "a@example.com")
			r.flush(t)
			r.send(t, account, "s", "a@example.com")
			r.flush(t)
			if r.hooks.forged != 1 || len(r.hooks.of(account)) < 2 {
				t.Errorf("%d forged, events %v", r.hooks.forged, told(r.hooks.of(account)))
			}
		})
		t.Run("off "+account, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, Options{EventDelay: 50 * time.Millisecond})
			r.send(t, account, "r", "a@example.com", "b@example.com")
			r.Inject(Fault{Account: account, Mode: ModeEventsOff, Pattern: "a@*"}) // before they happen
			r.flush(t)
			if list := r.hooks.of(account); len(list) != 2 || r.Stats(account).EventsMuted != 2 {
				t.Errorf("events %v, stats %+v", told(list), r.Stats(account))
			}
		})
	}
}
