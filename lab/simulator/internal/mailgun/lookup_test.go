package mailgun_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	mgsdk "github.com/mailgun/mailgun-go/v4"
	"github.com/mailgun/mailgun-go/v4/events"

	"github.com/safedelivr/safedelivr/lab/simulator"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/simtest"
)

func ids(page []mgsdk.Event) (list []string) {
	for _, e := range page {
		list = append(list, e.GetID())
	}
	return list
}

func TestPagesHoldEachEventOnce(t *testing.T) {
	t.Parallel()
	r := simtest.New(t, simulator.Options{TimeScale: 1e6})
	begun := time.Now().Add(-time.Second)
	r.Send(t, "mg", "r", simtest.Addresses(250)...)
	r.Send(t, "mg", "s", "hardbounce@sim.test", "softbounce@sim.test", "Deliver@sim.test")
	r.SettleAll(t)
	total := 2*250 + 2 + 3 + 2

	read := func(o mgsdk.ListEventOptions) (list []string) {
		t.Helper()
		o.Limit = 60
		it := r.MailgunClient().ListEvents(&o)
		var page []mgsdk.Event
		last := time.Time{}
		for it.Next(t.Context(), &page) {
			if len(page) > 60 {
				t.Errorf("page of %d", len(page))
			}
			for _, e := range page {
				if at := e.GetTimestamp(); !last.IsZero() && (o.ForceAscending && at.Before(last) ||
					o.ForceDescending && at.After(last)) {
					t.Errorf("out of order: %v after %v", at, last)
				}
				last = e.GetTimestamp()
			}
			list = append(list, ids(page)...)
		}
		if it.Err() != nil || it.Paging.Next == "" {
			t.Fatal(it.Err(), it.Paging)
		}
		return list
	}
	up, down := read(mgsdk.ListEventOptions{ForceAscending: true}), read(mgsdk.ListEventOptions{ForceDescending: true})
	slices.Reverse(down)
	if len(up) != total || !slices.Equal(up, down) {
		t.Fatalf("%d up, %d down", len(up), len(down))
	}
	slices.Sort(down)
	if len(slices.Compact(down)) != total {
		t.Error("an event came twice")
	}
	if list := read(mgsdk.ListEventOptions{Begin: begun, End: time.Now().Add(time.Minute)}); !slices.Equal(list, up) {
		t.Errorf("%d within the time", len(list))
	}
	if list := read(mgsdk.ListEventOptions{Begin: begun.Add(-time.Hour), End: begun.Add(-time.Minute)}); len(list) != 0 {
		t.Errorf("%d before the time", len(list))
	}

	// Back and forth through the pages.
	it := r.MailgunClient().ListEvents(&mgsdk.ListEventOptions{ForceAscending: true, Limit: 60})
	var page []mgsdk.Event
	step := func(name string, ok bool, want []string) {
		t.Helper()
		if !ok || it.Err() != nil || !slices.Equal(ids(page), want) {
			t.Errorf("%s: %v %v, %d events", name, ok, it.Err(), len(page))
		}
	}
	ctx := t.Context()
	step("next", it.Next(ctx, &page), up[:60])
	step("next", it.Next(ctx, &page), up[60:120])
	step("previous", it.Previous(ctx, &page), up[:60])
	step("next", it.Next(ctx, &page), up[60:120])
	step("last", it.Last(ctx, &page), up[total-60:])
	step("previous", it.Previous(ctx, &page), up[total-120:total-60])
	step("first", it.First(ctx, &page), up[:60])
	if it.Previous(ctx, &page) {
		t.Errorf("%d events before the first page", len(page))
	}
}

func TestEventFilters(t *testing.T) {
	t.Parallel()
	r := simtest.New(t, simulator.Options{TimeScale: 1e6})
	m := simtest.MailgunMail(t, "r", "hardbounce@sim.test", "softbounce@sim.test", "a@example.com", "lostevent@sim.test")
	m.AddTag("news")
	id, err := r.Mailgun(t.Context(), m)
	if err != nil {
		t.Fatal(err)
	}
	r.Send(t, "mg", "s", "A@example.com")
	r.SettleAll(t)
	for filter, want := range map[string]string{
		"event=delivered":                      "5",
		"event=failed OR rejected":             "2",
		"event=failed&severity=permanent":      "1",
		"recipient=a@example.com":              "4",
		"recipient=lostevent@sim.test":         "2",
		"message-id=" + strings.Trim(id, "<>"): "9",
		"message-id=" + id + "&event=accepted": "4",
		"tags=news&recipient=A@example.com":    "2",
	} {
		f := map[string]string{}
		for _, part := range strings.Split(filter, "&") {
			key, value, _ := strings.Cut(part, "=")
			f[key] = value
		}
		have := r.LookUp(t, f)
		if filter == "event=delivered" { // a, A, softbounce, lostevent
			want = "4"
		}
		if fmt.Sprint(len(have)) != want {
			t.Errorf("%s: %v", filter, have)
		}
	}
	it := r.MailgunClient().ListEvents(&mgsdk.ListEventOptions{Filter: map[string]string{"event": "failed",
		"severity": "permanent"}})
	var page []mgsdk.Event
	it.Next(t.Context(), &page)
	if f, ok := page[0].(*events.Failed); !ok || f.DeliveryStatus.Code != 550 ||
		f.DeliveryStatus.EnhancedCode != "5.1.1" || f.Reason != "bounce" {
		t.Errorf("failed %+v", page[0])
	}
}

// local answers requests without a network, so that time may pass in a bubble of synctest.
type local struct{ http.Handler }

func (l local) RoundTrip(r *http.Request) (*http.Response, error) {
	rec := httptest.NewRecorder()
	l.ServeHTTP(rec, r)
	return rec.Result(), nil
}

// TestPollingFindsLateEvents polls for events that show after the lag.
func TestPollingFindsLateEvents(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var posts atomic.Int64
		hooks := local{http.HandlerFunc(func(http.ResponseWriter, *http.Request) { posts.Add(1) })}
		s := simulator.New(simulator.Options{LookupLag: 3 * time.Second, Transport: hooks})
		defer s.Close()
		if err := s.AddAccount(simulator.Account{
			Name: "mg", Kind: simulator.Mailgun, Key: simtest.MailgunKey, Domain: simtest.Domain,
			WebhookURL: "http://hooks/mg", SigningKey: simtest.SigningKey,
		}); err != nil {
			t.Fatal(err)
		}
		r := &simtest.Rig{Simulator: s, URL: "http://simulator", HTTP: &http.Client{Transport: local{s}}}
		r.Send(t, "mg", "r", "a@example.com")
		r.SettleAll(t)
		if list := r.LookUp(t, nil); len(list) != 0 || posts.Load() != 2 {
			t.Errorf("visible at once: %v", list)
		}
		poll := r.MailgunClient().PollEvents(&mgsdk.ListEventOptions{Begin: time.Now().Add(-time.Minute),
			PollInterval: 20 * time.Millisecond})
		var page []mgsdk.Event
		if !poll.Poll(t.Context(), &page) || len(page) != 2 {
			t.Errorf("%v %v", page, poll.Err())
		}
	})
}

func TestInvalidQueriesAreRefused(t *testing.T) {
	t.Parallel()
	r := simtest.New(t, simulator.Options{})
	for path, want := range map[string]int{
		"/mg/v3/" + simtest.Domain + "/events":                             200,
		"/mg/v3/" + simtest.Domain + "/events?limit=301":                   400,
		"/mg/v3/" + simtest.Domain + "/events?limit=x":                     400,
		"/mg/v3/" + simtest.Domain + "/events?begin=yesterday":             400,
		"/mg/v3/" + simtest.Domain + "/events?end=1700000000&ascending=no": 200,
		"/mg/v3/" + simtest.Domain + "/events/nonsense":                    400,
		"/mg/v3/" + simtest.Domain + "/events/e30":                         400,
		"/mg/v3/other.test/events":                                         404,
	} {
		req, _ := http.NewRequest("GET", r.URL+path, nil)
		req.SetBasicAuth("api", "mg-key")
		resp, err := r.HTTP.Do(req)
		if err != nil || resp.StatusCode != want {
			t.Errorf("%s: %v %v", path, resp, err)
		}
		resp.Body.Close()
	}
}
