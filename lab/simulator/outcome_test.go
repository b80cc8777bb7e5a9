package simulator_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	mgsdk "github.com/mailgun/mailgun-go/v4"

	"github.com/safedelivr/safedelivr/lab/simulator"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/simtest"
)

// TestOutcomeEvents sends to an address of each outcome at both providers and compares
// all webhooks with golden files. It replaces what follows from the clock; everything
// else follows from the seed.
func TestOutcomeEvents(t *testing.T) {
	t.Parallel()
	r := simtest.New(t, simulator.Options{TimeScale: 1e6, WebhookWorkers: 1})
	var addrs []string
	for _, name := range simulator.Outcomes() {
		if name != "refused" {
			addrs = append(addrs, name+"@sim.test")
		}
	}
	r.Send(t, "sg", "r", addrs...)
	r.Send(t, "mg", "r", addrs...)
	r.SettleAll(t)

	for _, account := range []string{"sg", "mg"} {
		list := r.Hooks.Events(account)
		recipient := func(e simtest.Event) string { return e.Text("email") + e.Text("recipient") }
		slices.SortStableFunc(list, func(a, b simtest.Event) int { return strings.Compare(recipient(a), recipient(b)) })
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
			if id := e.Text("sg_message_id"); id != "" {
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

func TestOutcomeOfOneAccountOnly(t *testing.T) {
	t.Parallel()
	r := simtest.New(t, simulator.Options{})
	r.Send(t, "sg", "r", "blocked-sg+1@sim.test")
	r.Send(t, "mg", "r", "blocked-sg+1@sim.test")
	r.SettleAll(t)
	sg := fmt.Sprint(simtest.Summaries(r.Hooks.Events("sg")))
	if sg != "[blocked-sg+1@sim.test processed blocked-sg+1@sim.test bounce/blocked]" {
		t.Error(sg)
	}
	mg := simtest.Summaries(r.Hooks.Events("mg"))
	if slices.Sort(mg); fmt.Sprint(mg) != "[blocked-sg+1@sim.test accepted blocked-sg+1@sim.test delivered]" {
		t.Error(mg)
	}
	if st := r.Stats(""); st.Copies != 2 || st.Distinct != 1 || st.Doubled != 1 {
		t.Errorf("stats %+v", st)
	}
	if c := r.Copies("r0"); len(c) != 2 || c[0].Account != "sg" || c[1].Account != "mg" || c[0].Outcome != "blocked" ||
		c[1].Outcome != "deliver" {
		t.Errorf("copies %+v", c)
	}
}

func golden(t *testing.T, name string, have []byte) {
	t.Helper()
	path := "testdata/" + name
	if os.Getenv("UPDATE_GOLDEN") != "" {
		if err := os.WriteFile(path, have, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(have, want) {
		t.Errorf("%s differs (UPDATE_GOLDEN=1 writes it)\nhave %s\nwant %s", path, have, want)
	}
}
