package simulator_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/safedelivr/safedelivr/lab/simulator"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/simtest"
)

// TestAcceptedMailIsThere: accepted mail has its copies at once: no reading of the counts shows accepted mail without a
// copy.
func TestAcceptedMailIsThere(t *testing.T) {
	t.Parallel()
	r := simtest.New(t, simulator.Options{})
	var calls sync.WaitGroup
	for k := range 8 {
		calls.Go(func() {
			for range 6 {
				r.Send(t, []string{"sg", "mg"}[k%2], fmt.Sprintf("k%d-", k), simtest.Addresses(200)...)
			}
		})
	}
	ended := make(chan struct{})
	go func() {
		calls.Wait()
		close(ended)
	}()
	for {
		if st := r.Stats(""); st.Copies < st.Accepted {
			t.Errorf("%d accepted, %d copies", st.Accepted, st.Copies)
			break
		}
		select {
		case <-ended:
			return
		default:
		}
	}
	<-ended
}

// TestCountsAreExactUnderConcurrency sends overlapping sets of recipients through both
// accounts at once; the counts must be exact.
func TestCountsAreExactUnderConcurrency(t *testing.T) {
	t.Parallel()
	r := simtest.New(t, simulator.Options{})
	// Worker i sends the ids r0 to r(50*i-1), alternately through sg and mg.
	const workers = 8
	want := map[string]map[string]int{}
	var wg sync.WaitGroup
	for i := 1; i <= workers; i++ {
		account := []string{"sg", "mg"}[i%2]
		n := 50 * i
		for k := range n {
			id := fmt.Sprintf("r%d", k)
			if want[id] == nil {
				want[id] = map[string]int{}
			}
			want[id][account]++
		}
		wg.Go(func() { r.Send(t, account, "r", simtest.Addresses(n)...) })
	}
	wg.Go(func() { // reading meanwhile
		for range 20 {
			r.EachCopy(func(string, map[string]int) {})
			r.Copies("r3")
			r.Stats("")
			r.CallLog("sg")
		}
	})
	wg.Wait()
	r.SettleAll(t)

	seen := 0
	r.EachCopy(func(id string, per map[string]int) {
		seen++
		if fmt.Sprint(per) != fmt.Sprint(want[id]) {
			t.Errorf("%s: %v, want %v", id, per, want[id])
		}
		if n := len(r.Copies(id)); n != per["sg"]+per["mg"] {
			t.Errorf("%s: %d copies, want %v", id, n, per)
		}
	})
	if seen != len(want) {
		t.Errorf("%d ids, want %d", seen, len(want))
	}
	stats := map[string]simulator.Stats{}
	for _, account := range []string{"sg", "mg", ""} {
		var copies, distinct, doubled int64
		for _, per := range want {
			n := int64(per[account])
			if account == "" {
				n = int64(per["sg"] + per["mg"])
			}
			copies += n
			if n > 0 {
				distinct++
			}
			if n > 1 {
				doubled++
			}
		}
		st := r.Stats(account)
		stats[account] = st
		if st.Copies != copies || st.Accepted != copies || st.Distinct != distinct || st.Doubled != doubled ||
			st.EventsOK != 2*copies || st.EventsPending != 0 {
			t.Errorf("%q: %+v, want %d copies, %d distinct, %d doubled", account, st, copies, distinct, doubled)
		}
	}
	if stats[""].Calls != workers || stats["sg"].Posts+stats["mg"].Posts != stats[""].Posts {
		t.Errorf("stats %+v", stats)
	}
}

func TestMetadataWithManyKeys(t *testing.T) {
	t.Parallel()
	r := simtest.New(t, simulator.Options{})
	m := simtest.SendGridMail("r", "a@example.com", "b@example.com")
	for i := range 40 {
		m.Personalizations[i%2].SetCustomArg(fmt.Sprintf("key%d", i), fmt.Sprint(i))
	}
	if resp, err := r.SendGrid(t.Context(), "sg", m); err != nil || resp.StatusCode != 202 {
		t.Fatalf("%v %+v", err, resp)
	}
	r.SettleAll(t)
	if c := r.Copies("r1"); len(c) != 1 || len(c[0].Metadata) != 22 || c[0].Metadata["key39"] != "39" ||
		c[0].Metadata["key38"] != "" {
		t.Errorf("copies %+v", c)
	}
	for _, e := range r.Hooks.Events("sg") {
		if e.Text("sd_r") == "r0" && (e.Text("key38") != "38" || e.Text("key39") != "") {
			t.Errorf("event %v", e)
		}
	}
}

// TestCopiesOfOneMail: a message to several addresses has a copy for each, whose ID is that of the message and, but for
// the first, the address.
func TestCopiesOfOneMail(t *testing.T) {
	t.Parallel()
	r := simtest.New(t, simulator.Options{})
	m := simtest.MailgunMail(t, "r")
	if err := m.AddRecipient("Ann@sim.test"); err != nil {
		t.Fatal(err)
	}
	m.AddBCC("lou@sim.test")
	m.AddCC("bob@sim.test")
	if err := m.AddVariable("sd_r", "r0"); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Mailgun(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]string{
		"r0":              " Ann@sim.test [bob@sim.test]",
		"r0/bob@sim.test": "cc bob@sim.test [Ann@sim.test]",
		"r0/lou@sim.test": "bcc lou@sim.test [Ann@sim.test bob@sim.test]",
	} {
		c := r.Copies(id)
		if len(c) != 1 || fmt.Sprint(c[0].Role, " ", c[0].Address, " ", c[0].Visible) != want {
			t.Errorf("%s: %+v, want %s", id, c, want)
		}
	}
}
