package simulator

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	mgsdk "github.com/mailgun/mailgun-go/v4"
)

func TestOutcomeOf(t *testing.T) {
	t.Parallel()
	for addr, want := range map[string]outcome{
		"hardbounce@sim.test":              outHardBounce,
		"hardbounce+17@sim.test":           outHardBounce,
		"hardbounce.x.y@a.b.test":          outHardBounce,
		"HardBounce@SIM.TEST":              outHardBounce,
		"hardbounces@sim.test":             outDeliver,
		"hardbounce@example.com":           outDeliver,
		"hardbounce@test":                  outDeliver,
		"hardbounce@.test":                 outDeliver,
		"softbounce@sim.test":              outDefer,
		"defer-then-deliver@sim.test":      outDefer,
		"suppressed-bounce@sim.test":       outSuppressedBounce,
		"blocked-sg+1@sim.test":            outBlocked,
		"blocked-mg+1@sim.test":            outDeliver,
		"suppressed-bounce-sg@sim.test":    outSuppressedBounce,
		"suppressed-bounce-mg@sim.test":    outDeliver,
		"nonsense-sg@sim.test":             outDeliver,
		"-sg@sim.test":                     outDeliver,
		"sg@sim.test":                      outDeliver,
		"refused-sg.7@sim.test":            outRefused,
		"no address":                       outDeliver,
		"somebody.hardbounce@sim.test":     outDeliver,
		"defer-then-deliver-sg+9@sim.test": outDefer,
	} {
		if have := outcomeOf([]byte(addr), "sg"); have != want {
			t.Errorf("%s: %s, want %s", addr, have, want)
		}
	}
	for _, name := range Outcomes() {
		if outcomeOf([]byte(name+"+1@sim.test"), "sg").String() == "deliver" && name != "deliver" {
			t.Errorf("%s has no outcome", name)
		}
	}
}

// TestOutcomes sends to every magic address at both providers and compares all
// webhooks with golden files. Ids, times and signatures follow from seed and
// clock; what follows from the clock is replaced.
func TestOutcomes(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{TimeScale: 1e6, WebhookWorkers: 1})
	var addrs []string
	for _, name := range Outcomes() {
		if name != "refused" {
			addrs = append(addrs, name+"@sim.test")
		}
	}
	r.send(t, "sg", "r", addrs...)
	r.send(t, "mg", "r", addrs...)
	r.flush(t)

	for _, account := range []string{"sg", "mg"} {
		list := r.hooks.of(account)
		recipient := func(e event) string { return e.str("email") + e.str("recipient") }
		slices.SortStableFunc(list, func(a, b event) int { return strings.Compare(recipient(a), recipient(b)) })
		var out bytes.Buffer
		for _, e := range list {
			text, err := json.Marshal(e)
			if err != nil {
				t.Fatal(err)
			}
			if account == "mg" {
				if _, err := mgsdk.ParseEvent(text); err != nil {
					t.Errorf("mailgun-go cannot read %s: %v", text, err)
				}
			}
			if ts := e["timestamp"].(float64); time.Since(time.Unix(int64(ts), 0)).Abs() > time.Minute {
				t.Errorf("timestamp %v", ts)
			}
			e["timestamp"] = 0
			if id := e.str("sg_message_id"); id != "" {
				e["sg_message_id"] = id[:strings.LastIndexByte(id[:len(id)-2], '.')] + ".TIME.0"
			}
			if m, ok := e["message"].(map[string]any); ok {
				headers := m["headers"].(map[string]any)
				_, rest, _ := strings.Cut(headers["message-id"].(string), ".")
				headers["message-id"] = "TIME." + rest
			}
			text, _ = json.MarshalIndent(e, "", " ")
			out.Write(append(text, '\n'))
		}
		golden(t, account+"-events.json", out.Bytes())
	}
	if st := r.Stats("sg"); st.EventsMuted != 3 { // lostevent one, silent two
		t.Errorf("stats %+v", st)
	}
	if st := r.Stats("mg"); st.EventsMuted != 3 {
		t.Errorf("stats %+v", st)
	}
}

// TestAccountOutcome: an address that is blocked by one account is delivered by
// the other.
func TestAccountOutcome(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{})
	r.send(t, "sg", "r", "blocked-sg+1@sim.test")
	r.send(t, "mg", "r", "blocked-sg+1@sim.test")
	r.flush(t)
	if have := fmt.Sprint(told(r.hooks.of("sg"))); have != "[blocked-sg+1@sim.test processed blocked-sg+1@sim.test bounce/blocked]" {
		t.Error(have)
	}
	have := told(r.hooks.of("mg"))
	if slices.Sort(have); fmt.Sprint(have) != "[blocked-sg+1@sim.test accepted blocked-sg+1@sim.test delivered]" {
		t.Error(have)
	}
	if st := r.Stats(""); st.Copies != 2 || st.Distinct != 1 || st.Doubled != 1 {
		t.Errorf("stats %+v", st)
	}
	if c := r.Copies("r0"); len(c) != 2 || c[0].Account != "sg" || c[1].Account != "mg" || c[0].Outcome != "blocked" || c[1].Outcome != "deliver" {
		t.Errorf("copies %+v", c)
	}
}
