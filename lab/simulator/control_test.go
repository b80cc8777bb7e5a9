package simulator_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/safedelivr/safedelivr/internal/testkit"
	"github.com/safedelivr/safedelivr/lab/simulator"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/simtest"
)

func TestMain(m *testing.M) { testkit.VerifyNoLeaks(m) }

func TestClientControlsEverything(t *testing.T) {
	t.Parallel()
	r := simtest.New(t, simulator.Options{})
	c := &simulator.Client{URL: r.URL + "/", HTTP: r.HTTP}
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	// call makes a request to the control API that must succeed.
	call := func(method, path string, in, out any) {
		t.Helper()
		must(c.Call(ctx, method, path, in, out))
	}
	var info simulator.Account
	call("POST", "/accounts", simulator.Account{
		Name:       "sg-eu",
		Kind:       simulator.SendGrid,
		Key:        simtest.SendGridKey,
		WebhookURL: r.Accounts()[0].WebhookURL + "-eu",
	}, &info)
	if len(info.PublicKey) != 124 {
		t.Errorf("account %+v", info)
	}
	list, err := c.Accounts(ctx)
	must(err)
	if len(list) != 3 || list[2].PublicKey != info.PublicKey || list[1].Domain != simtest.Domain ||
		list[1].SigningKey != simtest.SigningKey || list[1].PublicKey != "" {
		t.Errorf("accounts %+v", list)
	}

	id, err := c.Inject(ctx, simulator.Fault{Account: "sg-eu", Mode: "status:503", Times: 1, Delay: time.Millisecond})
	must(err)
	var faults []simulator.Fault
	call("GET", "/faults", nil, &faults)
	if len(faults) != 1 || faults[0].ID != id || faults[0].Delay != time.Millisecond || faults[0].Times != 1 {
		t.Errorf("faults %+v", faults)
	}
	if result, _, _ := r.Attempt(t, "sg-eu", "r", "a@example.com"); result != "503" {
		t.Error(result)
	}
	r.Send(t, "sg-eu", "r", "a@example.com", "b@example.com")
	r.Send(t, "sg", "r", "a@example.com")
	call("POST", "/flush?timeout=1h", nil, nil)
	call("POST", "/flush?timeout=1h&settle=true", nil, nil)
	st, err := c.Stats(ctx, "sg-eu")
	must(err)
	if st.Copies != 2 || st.ByStatus[503] != 1 || st.EventsOK+st.EventsGivenUp+st.EventsPending == 0 {
		t.Errorf("stats %+v", st)
	}
	copies, err := c.Copies(ctx, "r0")
	must(err)
	if len(copies) != 2 || copies[0].Account != "sg-eu" || copies[0].Metadata["sd_a"] != "attempt-1" ||
		copies[0].At.IsZero() {
		t.Errorf("copies %+v", copies)
	}
	// lines returns the lines of the list of copies.
	lines := func(min string) (seen map[string]map[string]int) {
		t.Helper()
		resp, err := r.HTTP.Get(r.URL + "/control/copies?min=" + min)
		must(err)
		defer resp.Body.Close()
		seen = map[string]map[string]int{}
		for dec := json.NewDecoder(resp.Body); dec.More(); {
			var line simulator.CopyCount
			must(dec.Decode(&line))
			seen[line.ID] = line.Accounts
		}
		return seen
	}
	if seen := lines("1"); fmt.Sprint(seen) != "map[r0:map[sg:1 sg-eu:1] r1:map[sg-eu:1]]" {
		t.Errorf("listing %v", seen)
	}
	if seen := lines("2"); fmt.Sprint(seen) != "map[r0:map[sg:1 sg-eu:1]]" {
		t.Errorf("doubled %v", seen)
	}
	var calls []simulator.Call
	call("GET", "/calls?account=sg-eu", nil, &calls)
	if len(calls) != 2 || calls[0].Status != 503 || calls[1].Recipients != 2 {
		t.Errorf("calls %+v", calls)
	}

	minute, delay, hook := simulator.Duration(time.Minute), simulator.Duration(time.Hour), "http://elsewhere/"
	call("POST", "/settings", simulator.Settings{Account: "sg", Latency: &minute}, nil)
	call("POST", "/settings", simulator.Settings{Account: "mg", WebhookURL: &hook}, nil)
	call("POST", "/settings", simulator.Settings{EventDelay: &delay}, nil)
	var settings []simulator.Settings
	call("GET", "/settings", nil, &settings)
	if len(settings) != 3 || time.Duration(*settings[0].Latency) != time.Minute ||
		*settings[1].WebhookURL != "http://elsewhere/" || *settings[2].EventDelay != delay || *settings[1].Latency != 0 {
		t.Errorf("settings %+v", settings)
	}

	for _, mode := range []string{simulator.ModeHang, simulator.ModeTruncate} {
		_, err := c.Inject(ctx, simulator.Fault{Account: "mg", Mode: mode})
		must(err)
	}
	id, err = c.Inject(ctx, simulator.Fault{Mode: simulator.ModeHang})
	must(err)
	call("DELETE", "/faults?account=mg", nil, nil)
	if n := len(r.Faults()); n != 1 {
		t.Errorf("%d faults", n)
	}
	call("DELETE", "/faults/"+id, nil, nil)
	if n := len(r.Faults()); n != 0 {
		t.Errorf("%d faults", n)
	}
	call("POST", "/reset", nil, nil)
	if st, err := c.Stats(ctx, ""); err != nil || st.Calls != 0 || st.Copies != 0 {
		t.Errorf("%v %+v", err, st)
	}

	for name, err := range map[string]error{
		"bad fault":       second(c.Inject(ctx, simulator.Fault{Mode: "nonsense"})),
		"no such account": second(c.Inject(ctx, simulator.Fault{Mode: simulator.ModeHang, Account: "unknown"})),
		"stats":           second(c.Stats(ctx, "unknown")),
		"url":             c.Call(ctx, "POST", "/settings", map[string]string{"account": "mg", "webhook_url": "ftp://x"}, nil),
		"latency":         c.Call(ctx, "POST", "/settings", map[string]string{"account": "unknown", "latency": "1s"}, nil),
		"account":         c.Call(ctx, "POST", "/accounts", simulator.Account{Name: "sg", Kind: simulator.SendGrid, Key: "k"}, nil),
	} {
		if err == nil || !strings.Contains(err.Error(), "simulator: ") || strings.HasSuffix(err.Error(), ": ") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if copies, err := c.Copies(ctx, "unknown"); err != nil || len(copies) != 0 {
		t.Errorf("%v %v", copies, err)
	}
}

func second[T any](_ T, err error) error { return err }

// TestControlAPI sends the requests that a person sends with curl.
func TestControlAPI(t *testing.T) {
	t.Parallel()
	r := simtest.New(t, simulator.Options{})
	for _, c := range []struct {
		method, path, body string
		status             int
		want               string
	}{
		{"POST", "/control/faults", `{"mode":"delay:1s","account":"sg","retry_after":"2m"}`, 200, `{"id":"f1"}`},
		{"GET", "/control/faults", "", 200, `"delay":"1s"`},
		{"POST", "/control/faults", `{"mode":"hang","tims":1}`, 400, `unknown field`},
		{"POST", "/control/faults", `{"mode":"hang","delay":"soon"}`, 400, `error`},
		{"DELETE", "/control/faults/f1", "", 200, `{"cleared":1}`},
		{"DELETE", "/control/faults/f1", "", 200, `{"cleared":0}`},
		{"POST", "/control/settings", `{"latency":"x"}`, 400, `error`},
		{"POST", "/control/flush?timeout=x", "", 400, `error`},
		{"POST", "/control/flush?timeout=1s", "", 200, `{}`},
		{"GET", "/control/copies?id=none", "", 200, `[]`},
		{"GET", "/control/copies", "", 200, ``},
		{"GET", "/control/copies?min=x", "", 400, `error`},
		{"GET", "/control/calls", "", 200, `[]`},
		{"GET", "/control/nothing", "", 404, `no GET /control/nothing`},
		{"GET", "/control", "", 404, `error`},
		{"GET", "/control/stats?account=unknown", "", 404, `no such account`},
		{"POST", "/control/accounts", `{"name":"control","kind":"sendgrid","key":"k"}`, 400, `account name`},
	} {
		req, _ := http.NewRequest(c.method, r.URL+c.path, strings.NewReader(c.body))
		resp, err := r.HTTP.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != c.status || !strings.Contains(string(body), c.want) {
			t.Errorf("%s %s: %d %s", c.method, c.path, resp.StatusCode, body)
		}
	}

	// A flush that cannot end is an error.
	r.Hooks.Status = func(*http.Request, []byte) int { return 500 }
	r.Send(t, "mg", "r", "a@example.com")
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := (&simulator.Client{URL: r.URL, HTTP: r.HTTP}).Call(ctx, "POST", "/flush", nil, nil); err == nil {
		t.Error("flush ended")
	}
	resp, err := r.HTTP.Post(r.URL+"/control/flush?timeout=10ms", "", nil)
	if err != nil || resp.StatusCode != 504 {
		t.Errorf("%v %v", resp, err)
	}
	resp.Body.Close()
}

func TestAddAccountRefusesInvalidAccounts(t *testing.T) {
	t.Parallel()
	s := simulator.New(simulator.Options{})
	key := simulator.Account{Name: "a", Kind: simulator.SendGrid, Key: "k"}
	if err := s.AddAccount(key); err != nil {
		t.Fatal(err)
	}
	// The key of one account can be given to another one, as it is or as PEM.
	key.Name, key.SigningKey = "b", s.Accounts()[0].SigningKey
	if err := s.AddAccount(key); err != nil || s.PublicKey("a") != s.PublicKey("b") {
		t.Error(err)
	}
	key.Name, key.SigningKey = "c", "-----BEGIN PRIVATE KEY-----\n"+key.SigningKey+"\n-----END PRIVATE KEY-----\n"
	if err := s.AddAccount(key); err != nil || s.PublicKey("a") != s.PublicKey("c") {
		t.Error(err)
	}
	for name, a := range map[string]simulator.Account{
		"no name":     {Kind: simulator.SendGrid, Key: "k"},
		"odd name":    {Name: "A b", Kind: simulator.SendGrid, Key: "k"},
		"control":     {Name: "control", Kind: simulator.SendGrid, Key: "k"},
		"exists":      {Name: "a", Kind: simulator.SendGrid, Key: "k"},
		"no kind":     {Name: "x", Key: "k"},
		"no key":      {Name: "x", Kind: simulator.SendGrid},
		"url":         {Name: "x", Kind: simulator.SendGrid, Key: "k", WebhookURL: "x"},
		"signing key": {Name: "x", Kind: simulator.SendGrid, Key: "k", SigningKey: "x"},
		"not a key":   {Name: "x", Kind: simulator.SendGrid, Key: "k", SigningKey: "AAAA"},
		"no domain":   {Name: "x", Kind: simulator.Mailgun, Key: "k"},
		"no signing":  {Name: "x", Kind: simulator.Mailgun, Key: "k", Domain: "d", WebhookURL: "http://x"},
	} {
		if s.AddAccount(a) == nil {
			t.Errorf("%s: added", name)
		}
	}
	if s.PublicKey("unknown") != "" || s.CallLog("unknown") != nil || s.Stats("unknown").Calls != 0 {
		t.Error("an unknown account has state")
	}
	s.Close()
	s.Close()
	if s.AddAccount(simulator.Account{Name: "late", Kind: simulator.SendGrid, Key: "k"}) == nil {
		t.Error("added after Close")
	}
}
