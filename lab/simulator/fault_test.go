package simulator_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/safedelivr/safedelivr/lab/simulator"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/simtest"
)

func TestFaultReplacesAnswer(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		fault  simulator.Fault
		sg, mg string // result
		sgText string
		mgText string
		stored bool
	}{
		{simulator.Fault{Mode: "status:500"}, "500", "500", `{"errors":[{"message":"Internal Server Error"}]}`,
			`{"message":"Internal Server Error"}`, false},
		{simulator.Fault{Mode: "status:500", Store: true}, "500", "500", "", "", true},
		{simulator.Fault{Mode: "status", Status: 502}, "502", "502", "<html>", "<html>", false},
		{simulator.Fault{Mode: "status:503"}, "503", "503", "Service Unavailable", "Service Temporarily Unavailable", false},
		{simulator.Fault{Mode: "status:504"}, "504", "504", "", "", false},
		{simulator.Fault{Mode: "status:418"}, "418", "418", "teapot", "teapot", false},
		{simulator.Fault{Mode: "status:429"}, "429", "429", "too many requests", "try again after", false},
		{simulator.Fault{Mode: "status", Status: 400, Body: `{"message":"mine"}`}, "400", "400", "mine", "mine", false},
		{simulator.Fault{Mode: simulator.ModeCredits}, "401", "402", "Maximum credits exceeded", "Payment Required", false},
		{simulator.Fault{Mode: simulator.ModeUnverified}, "403", "400", "does not match a verified Sender Identity",
			"is not allowed to send: ", false},
		{simulator.Fault{Mode: simulator.ModeBlocked}, "403", "403", "access forbidden",
			"can't be used to send the message", false},
		{simulator.Fault{Mode: simulator.ModeNotAllowed}, "401", "400", "not authorized to send mail",
			"is not allowed to send: ", false},
		{simulator.Fault{Mode: simulator.ModeFull}, "401", "420", "Maximum credits exceeded",
			`is not allowed to send: recipient limit exceeded"}`, false},
		{simulator.Fault{Mode: simulator.ModeFull, RetryAfter: time.Hour}, "401", "420", "Maximum credits exceeded",
			"recipient limit exceeded, try again after ", false},
		{simulator.Fault{Mode: simulator.ModeLargeBatch, Above: 1}, "202", "200", "", "", true},
		{simulator.Fault{Mode: simulator.ModeLargeBatch}, "403", "403", "", "is not allowed to send large batches yet",
			false},
		{simulator.Fault{Mode: simulator.ModeTooLarge}, "413", "413", "30 MB", "request size exceeds 52.4MiB limit", false},
		{simulator.Fault{Mode: simulator.ModeRate}, "429", "429",
			`{"errors":[{"field":null,"message":"too many requests"}]}`, "request limit exceeded, try again after ", false},
		{simulator.Fault{Mode: simulator.ModeRefuse}, "400", "400", "personalizations.0.to.0.email",
			"to parameter is not a valid address", false},
		{simulator.Fault{Mode: simulator.ModeGarbage}, "200", "200 no JSON", "It works!", "", false},
		{simulator.Fault{Mode: simulator.ModeGarbage, Store: true}, "200", "200 no JSON", "", "", true},
		{simulator.Fault{Mode: simulator.ModeHang}, "hang", "hang", "", "", false},
		{simulator.Fault{Mode: simulator.ModeHangAfterBody}, "hang", "hang", "", "", true},
		{simulator.Fault{Mode: simulator.ModeAcceptThenClose}, "cut", "cut", "", "", true},
		{simulator.Fault{Mode: simulator.ModeCloseUnread}, "cut", "cut", "", "", false},
		{simulator.Fault{Mode: simulator.ModeCloseUnread, Pattern: "a@*"}, "cut", "cut", "", "", false},
		{simulator.Fault{Mode: simulator.ModeTruncate}, "202 cut", "cut", "", "unexpected EOF", true},
		{simulator.Fault{Mode: "delay:1ms"}, "202", "200", "", "", true},
	} {
		c.fault.Times = 1
		name := c.fault.Mode + strconv.Itoa(c.fault.Status) + c.fault.Body + c.fault.Pattern
		if c.fault.Store {
			name += " stored"
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := simtest.New(t, simulator.Options{})
			for account, want := range map[string][2]string{"sg": {c.sg, c.sgText}, "mg": {c.mg, c.mgText}} {
				c.fault.Account = account
				r.Inject(c.fault)
				result, body, header := r.Attempt(t, account, account, "a@example.com")
				if result != want[0] || !strings.Contains(body, want[1]) {
					t.Errorf("%s: %s %s", account, result, body)
				}
				if account == "sg" && strings.HasPrefix(result, "202") && header.Get("X-Message-Id") == "" {
					t.Errorf("no message id: %v", header)
				}
				stored := len(r.Copies(account+"0")) == 1
				if stored != c.stored {
					t.Errorf("%s: stored %v", account, stored)
				}
				r.ClearAll(account)
				// The fault was for one call only.
				if result, _, _ := r.Attempt(t, account, "again", "a@example.com"); result != "202" && result != "200" {
					t.Errorf("%s: second call: %s", account, result)
				}
			}
			r.SettleAll(t)
			for _, account := range []string{"sg", "mg"} {
				want := 2
				if c.stored {
					want = 4 // stored mail has events after every answer
				}
				if have := r.Hooks.Events(account); len(have) != want {
					t.Errorf("%s: events %v", account, simtest.Summaries(have))
				}
			}
		})
	}
}

func TestDelayedCallIsStoredAtOnce(t *testing.T) {
	t.Parallel()
	r := simtest.New(t, simulator.Options{})
	r.Inject(simulator.Fault{Account: "sg", Mode: "delay:1h", Times: 1})
	ctx, leave := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		_, err := r.SendGrid(ctx, "sg", simtest.SendGridMail("x", "a@example.com"))
		done <- err
	}()
	r.Hooks.Wait(t, "the mail is stored", func() bool { return len(r.Copies("x0")) == 1 })
	if st := r.Stats("sg"); st.InFlight != 1 {
		t.Errorf("stats %+v", st)
	}
	leave()
	if err := <-done; err == nil {
		t.Error("the call was answered")
	}
	r.Send(t, "sg", "y", "b@example.com") // the fault was for one call only
}

func TestHangingCallEndsWithClientAndClose(t *testing.T) {
	t.Parallel()
	r := simtest.New(t, simulator.Options{})
	r.Inject(simulator.Fault{Account: "sg", Mode: simulator.ModeHangAfterBody})
	if result, _, _ := r.Attempt(t, "sg", "r", "a@example.com"); result != "hang" {
		t.Fatal(result)
	}
	r.SettleAll(t)
	done := make(chan error)
	go func() {
		_, err := r.SendGrid(context.Background(), "sg", simtest.SendGridMail("x", "b@example.com"))
		done <- err
	}()
	r.Hooks.Wait(t, "the second call hangs", func() bool { return r.Stats("sg").Hung == 2 })
	r.SettleAll(t)
	if list := r.Hooks.Events("sg"); len(list) != 4 {
		t.Errorf("events %v", simtest.Summaries(list))
	}
	if st := r.Stats("sg"); st.Hung != 2 || st.Copies != 2 {
		t.Errorf("stats %+v", st)
	}
	r.Close()
	if err := <-done; err == nil {
		t.Error("the call was answered")
	}
	if resp, err := r.HTTP.Get(r.URL + "/sg/v3/scopes"); err != nil || resp.StatusCode != 503 {
		t.Errorf("after Close: %v %v", resp, err)
	} else {
		resp.Body.Close()
	}
	if st := r.Stats("sg"); st.InFlight != 0 || st.ByStatus[0] != 2 {
		t.Errorf("stats %+v", st)
	}
}

func TestRateLimitNamesRetryTime(t *testing.T) {
	t.Parallel()
	r := simtest.New(t, simulator.Options{TimeScale: 60})
	r.Inject(simulator.Fault{Account: "sg", Mode: simulator.ModeRate, Times: 1, RetryAfter: time.Hour,
		Header: map[string]string{"X-Own": "yes"}})
	r.Inject(simulator.Fault{Account: "sg", Mode: simulator.ModeRate, Times: 1})
	_, _, header := r.Attempt(t, "sg", "r", "a@example.com")
	reset, _ := strconv.ParseInt(header.Get("X-RateLimit-Reset"), 10, 64)
	if until := time.Until(time.Unix(reset, 0)); until < 59*time.Minute || until > time.Hour ||
		header.Get("X-Own") != "yes" {
		t.Errorf("headers %v", header)
	}
	if result, _, header := r.Attempt(t, "sg", "r", "a@example.com"); result != "429" ||
		header.Get("X-RateLimit-Reset") != "" {
		t.Errorf("%s, headers %v", result, header)
	}
	for after, want := range map[time.Duration]time.Duration{0: time.Second, time.Minute: time.Minute} {
		r.Inject(simulator.Fault{Account: "mg", Mode: simulator.ModeRate, Times: 1, RetryAfter: after})
		begun := time.Now()
		_, body, _ := r.Attempt(t, "mg", "r", "a@example.com")
		ended := time.Now()
		_, text, _ := strings.Cut(strings.TrimSuffix(body, `"}`), "try again after ")
		at, err := time.Parse(time.RFC1123, text)
		if err != nil || at.Before(begun.Add(want-2*time.Second)) || at.After(ended.Add(want+2*time.Second)) ||
			!strings.HasSuffix(text, "UTC") {
			t.Errorf("after %v: %q from %v to %v, %v", after, text, begun, ended, err)
		}
	}
}

func TestFaultAppliesByAccountPatternTimesShareAndAfter(t *testing.T) {
	t.Parallel()
	r := simtest.New(t, simulator.Options{})
	expect := func(account, addr, want string) {
		t.Helper()
		if have, _, _ := r.Attempt(t, account, "r", addr); have != want {
			t.Errorf("%s %s: %s, want %s", account, addr, have, want)
		}
	}
	glob := r.Inject(simulator.Fault{Mode: "status:500", Pattern: "*@Bad.example.com"})
	expr := r.Inject(simulator.Fault{Account: "sg", Mode: "status:501", Pattern: `/^x\d+@/`, Times: 2})
	expect("sg", "a@bad.example.com", "500")
	expect("mg", "a@bad.example.com", "500")
	expect("sg", "a@good.example.com", "202")
	expect("sg", "x1@bad.example.com", "500") // the first fault decides and leaves the other's times alone
	expect("sg", "x1@good.example.com", "501")
	expect("mg", "x1@good.example.com", "200")
	if list := r.Faults(); len(list) != 2 || list[1].Times != 1 || list[1].ID != expr {
		t.Errorf("faults %+v", list)
	}
	if all, some := r.Met(glob), r.Met(expr); all != 3 || some != 1 {
		t.Errorf("met %d and %d", all, some)
	}
	expect("sg", "x2@good.example.com", "501")
	expect("sg", "x3@good.example.com", "202")
	r.Clear(glob)
	expect("sg", "a@bad.example.com", "202")
	if list := r.Faults(); len(list) != 0 {
		t.Errorf("faults %+v", list)
	}

	r.Inject(simulator.Fault{Account: "sg", Mode: "status:500"})
	r.Inject(simulator.Fault{Account: "mg", Mode: "status:500"})
	r.ClearAll("sg")
	expect("sg", "a@b.cd", "202")
	expect("mg", "a@b.cd", "500")
	r.ClearAll("")
	expect("mg", "a@b.cd", "200")

	half := r.Inject(simulator.Fault{Account: "sg", Mode: "status:500", Share: 0.5})
	failed := 0
	for range 100 {
		if result, _, _ := r.Attempt(t, "sg", "r", "a@b.cd"); result == "500" {
			failed++
		}
	}
	if failed != 51 || r.Met(half) != failed { // follows from the seed
		t.Errorf("%d of 100 calls failed, %d met it", failed, r.Met(half))
	}
	r.ClearAll("")

	later := r.Inject(simulator.Fault{Account: "sg", Mode: "status:500", After: 2, Times: 1})
	expect("sg", "a@b.cd", "202")
	expect("mg", "a@b.cd", "200")
	expect("sg", "a@b.cd", "202")
	if met := r.Met(later); met != 0 {
		t.Errorf("met %d", met)
	}
	expect("sg", "a@b.cd", "500")
	expect("sg", "a@b.cd", "202")
}

func TestInvalidFaultIsRefused(t *testing.T) {
	t.Parallel()
	r := simtest.New(t, simulator.Options{})
	for _, f := range []simulator.Fault{
		{}, {Mode: "nonsense"}, {Mode: "status"}, {Mode: "status:99"}, {Mode: "status:x"}, {Mode: "delay:x"},
		{Mode: "hang:1"},
		{Mode: "outcome"}, {Mode: "outcome:x"}, {Mode: simulator.ModeHang, Pattern: "/(/"}, {Mode: simulator.ModeHang,
			Share: 2}, {Mode: simulator.ModeHang, Times: -1}, {Mode: simulator.ModeHang, After: -1},
	} {
		if f.Validate() == nil {
			t.Errorf("%+v is valid", f)
		}
	}
	for _, f := range []simulator.Fault{{Mode: "nonsense"}, {Mode: simulator.ModeHang, Account: "unknown"}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("Inject(%+v) did not panic", f)
				}
			}()
			r.Inject(f)
		}()
	}
}

func TestFaultOfAcceptedMailChangesItsEvents(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fault simulator.Fault
		sg    string // events of a@, b@ has the usual ones
		mg    string
		log   string // what the Events API returns for a@
	}{
		"suspend": {simulator.Fault{Mode: simulator.ModeSuspend}, "", "", ""},
		"suspend released": {simulator.Fault{Mode: simulator.ModeSuspend, Release: true}, "processed delivered",
			"accepted delivered", "accepted delivered"},
		"suspend final": {simulator.Fault{Mode: simulator.ModeSuspend, Events: "delivered"}, "processed", "accepted",
			"accepted"},
		"events-off": {simulator.Fault{Mode: simulator.ModeEventsOff}, "", "", "accepted delivered"},
		"delivered off": {simulator.Fault{Mode: simulator.ModeEventsOff, Events: "delivered"}, "processed", "accepted",
			"accepted delivered"},
		"delay": {simulator.Fault{Mode: "events-delay:1ms"}, "processed delivered", "accepted delivered",
			"accepted delivered"},
		"async": {simulator.Fault{Mode: simulator.ModeAsyncBounce}, "processed delivered bounce",
			"accepted delivered failed", "accepted delivered failed"},
		"outcome": {simulator.Fault{Mode: "outcome:blocked"}, "processed bounce", "accepted failed",
			"accepted failed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := simtest.New(t, simulator.Options{TimeScale: 1e6, WebhookWorkers: 1})
			c.fault.Pattern, c.fault.Times = "a@*", 2
			id := r.Inject(c.fault)
			for _, account := range []string{"sg", "mg"} {
				r.Send(t, account, "r", "a@example.com", "b@example.com")
				r.Send(t, account, "s", "b@example.com") // not concerned
			}
			r.SettleAll(t)
			if c.fault.Release {
				if list := r.Hooks.Events("sg"); len(list) != 4 {
					t.Errorf("before the release: %v", simtest.Summaries(list))
				}
				r.Clear(id)
				r.SettleAll(t)
			}
			of := func(list []simtest.Event, addr string) string {
				var out []string
				for _, e := range list {
					if e.Text("email")+e.Text("recipient") == addr {
						out = append(out, e.Text("event"))
					}
				}
				return strings.Join(out, " ")
			}
			if a, b := of(r.Hooks.Events("sg"), "a@example.com"), of(r.Hooks.Events("sg"), "b@example.com"); a != c.sg ||
				b != "processed processed delivered delivered" && b != "processed delivered processed delivered" {
				t.Errorf("sg: %q %q", a, b)
			}
			if a, b := of(r.Hooks.Events("mg"), "a@example.com"), of(r.Hooks.Events("mg"), "b@example.com"); a != c.mg ||
				strings.Count(b, "accepted") != 2 || strings.Count(b, "delivered") != 2 {
				t.Errorf("mg: %q %q", a, b)
			}
			if list := strings.Join(r.LookUp(t, map[string]string{"recipient": "a@example.com"}), " "); list != c.log {
				t.Errorf("log %q", list)
			}
			for _, c2 := range r.Copies("a@example.com") {
				if want := strings.HasPrefix(name, "suspend") && !c.fault.Release && c.fault.Events == ""; c2.Swallowed != want {
					t.Errorf("swallowed: %v", c2.Swallowed)
				}
			}
			if st := r.Stats(""); st.Copies != 6 || st.EventsPending != 0 {
				t.Errorf("stats %+v", st)
			}
		})
	}
}

func TestSuspensionParksMailAcceptedBefore(t *testing.T) {
	t.Parallel()
	w := &wire{status: func(int, []byte) int { return 200 }}
	in(t, simulator.SendGrid, simulator.Options{EventDelay: time.Minute}, w,
		func(t *testing.T, s *simulator.Simulator, send sendFunc) {
			settle := func() {
				t.Helper()
				if err := s.Settle(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			send("a@example.com")
			id := s.Inject(simulator.Fault{Account: "x", Mode: simulator.ModeSuspend, Release: true})
			settle()
			if n := len(w.all()); n != 0 {
				t.Errorf("%d posts", n)
			}
			if c := s.Copies("a@example.com"); len(c) != 1 || c[0].Swallowed {
				t.Errorf("copies %+v", c)
			}
			s.Clear(id)
			settle()
			if list := simtest.Summaries(w.events(t)); fmt.Sprint(list) != "[a@example.com processed a@example.com delivered]" {
				t.Errorf("events %v", list)
			}
			send("s@example.com")
			s.Clear(s.Inject(simulator.Fault{Account: "x", Mode: simulator.ModeSuspend})) // nothing was due meanwhile
			settle()
			send("t@example.com")
			s.Inject(simulator.Fault{Account: "x", Mode: simulator.ModeSuspend})
			settle()
			for addr, want := range map[string]bool{"s@example.com": false, "t@example.com": true} {
				if c := s.Copies(addr); len(c) != 1 || c[0].Swallowed != want {
					t.Errorf("copies %+v", c)
				}
			}
		})
}

func TestCallLogKeepsSizeAndResult(t *testing.T) {
	t.Parallel()
	r := simtest.New(t, simulator.Options{CallLogSize: 3, Latency: time.Millisecond})
	begun := time.Now()
	r.Send(t, "sg", "a", "a@example.com")
	r.Send(t, "sg", "b", simtest.Addresses(20)...)
	r.Inject(simulator.Fault{Mode: simulator.ModeHangAfterBody, Times: 1})
	r.Attempt(t, "sg", "c", "a@example.com")
	r.Hooks.Wait(t, "the server saw the client leave", func() bool { return r.Stats("sg").InFlight == 0 })
	r.Inject(simulator.Fault{Mode: "status:500", Times: 1})
	r.Attempt(t, "sg", "d", "a@example.com")
	log := r.CallLog("sg")
	if len(log) != 3 {
		t.Fatalf("log %+v", log)
	}
	var have []string
	for _, c := range log {
		have = append(have, fmt.Sprintf("%d %d %t %s", c.Recipients, c.Status, c.Stored, c.Fault))
		if c.At.Before(begun) || c.Took < time.Millisecond || c.Bytes < 100 {
			t.Errorf("call %+v", c)
		}
	}
	if fmt.Sprint(have) != "[20 202 true  1 0 true hang-after-body 1 500 false status]" {
		t.Errorf("log %q", have)
	}
	if st := r.Stats("sg"); st.MaxInFlight != 1 || st.Calls != 4 {
		t.Errorf("stats %+v", st)
	}
}
