package simulator_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sendgrid/sendgrid-go/helpers/eventwebhook"

	"github.com/safedelivr/safedelivr/lab/simulator"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/simtest"
)

// A wire replaces the network between simulator and receiver, so that the providers'
// schedules of hours pass in a bubble of synctest.
type wire struct {
	mu     sync.Mutex
	posts  []simtest.Request
	status func(n int, body []byte) int // n counts from 0; -1 = no answer
}

func (w *wire) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	r.Body.Close()
	w.mu.Lock()
	defer w.mu.Unlock()
	n := len(w.posts)
	w.posts = append(w.posts, simtest.Request{Header: r.Header, Body: body, At: time.Now()})
	status := w.status(n, body)
	if status < 0 {
		return nil, io.ErrUnexpectedEOF
	}
	return &http.Response{
		StatusCode: status,
		Header:     http.Header{"Location": {"http://elsewhere/"}},
		Body:       http.NoBody,
		Request:    r,
	}, nil
}

// all returns the posts so far.
func (w *wire) all() []simtest.Request {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.posts
}

// events returns the events of all posts.
func (w *wire) events(t *testing.T) (list []simtest.Event) {
	t.Helper()
	for _, p := range w.all() {
		var one struct {
			Data simtest.Event `json:"event-data"`
		}
		var several []simtest.Event
		if json.Unmarshal(p.Body, &several) == nil {
			list = append(list, several...)
		} else if err := json.Unmarshal(p.Body, &one); err != nil {
			t.Fatal(err)
		} else {
			list = append(list, one.Data)
		}
	}
	return list
}

func (w *wire) answer(status func(n int, body []byte) int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.status = status
}

// A sendFunc sends one call to the addresses.
type sendFunc func(addrs ...string)

// in runs f in a bubble, with a simulator whose webhooks go through the wire.
func in(
	t *testing.T, kind string, o simulator.Options, w *wire, f func(*testing.T, *simulator.Simulator, sendFunc),
) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		o.Transport, o.Seed, o.RecipientKey = w, 42, simtest.RecipientKey
		s := simulator.New(o)
		defer s.Close()
		err := s.AddAccount(simulator.Account{
			Name:       "x",
			Kind:       kind,
			Key:        "k",
			Domain:     simtest.Domain,
			WebhookURL: "http://hooks/x",
			SigningKey: map[string]string{simulator.Mailgun: simtest.SigningKey}[kind],
		})
		if err != nil {
			t.Fatal(err)
		}
		f(t, s, func(addrs ...string) {
			t.Helper()
			rec := httptest.NewRecorder()
			s.ServeHTTP(rec, newCall(kind, addrs))
			if rec.Code >= 300 {
				t.Fatalf("%d %s", rec.Code, rec.Body)
			}
		})
	})
}

// newCall returns a call to the account x.
func newCall(kind string, addrs []string) (r *http.Request) {
	if kind == simulator.Mailgun {
		form := url.Values{"from": {"f@x.test"}, "text": {"t"}, "to": {strings.Join(addrs, ",")}}
		r = httptest.NewRequest("POST", "/x/v3/"+simtest.Domain+"/messages", strings.NewReader(form.Encode()))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.SetBasicAuth("api", "k")
		return r
	}
	body, err := json.Marshal(simtest.SendGridMail("r", addrs...))
	if err != nil {
		panic(err)
	}
	r = httptest.NewRequest("POST", "/x/v3/mail/send", bytes.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Authorization", "Bearer k")
	return r
}

// gaps returns the times between posts.
func (w *wire) gaps() (list []time.Duration) {
	posts := w.all()
	for i := 1; i < len(posts); i++ {
		list = append(list, posts[i].At.Sub(posts[i-1].At))
	}
	return list
}

func TestSendGridCollectsEventsUntilTimerOrCount(t *testing.T) {
	t.Parallel()
	w := &wire{status: func(int, []byte) int { return 200 }}
	in(t, simulator.SendGrid, simulator.Options{FlushCount: 100, EventDelay: time.Second}, w,
		func(t *testing.T, s *simulator.Simulator, send sendFunc) {
			begun := time.Now()
			send("a@example.com")
			time.Sleep(20 * time.Second)
			send("b@example.com")
			time.Sleep(10*time.Second + 999*time.Millisecond)
			synctest.Wait()
			if len(w.all()) != 0 {
				t.Errorf("flushed after %v", w.all()[0].At.Sub(begun))
			}
			time.Sleep(time.Millisecond)
			synctest.Wait()
			if len(w.all()) != 1 || bytes.Count(w.all()[0].Body, []byte(`"event"`)) != 4 {
				t.Errorf("%d posts", len(w.all()))
			}
			time.Sleep(time.Hour)
			send(simtest.Addresses(60)...) // 120 events: 100 at once, the rest by the timer
			time.Sleep(time.Second)
			synctest.Wait()
			if len(w.all()) != 2 || bytes.Count(w.all()[1].Body, []byte(`"event"`)) != 100 {
				t.Errorf("%d posts", len(w.all()))
			}
			time.Sleep(31 * time.Second)
			synctest.Wait()
			if len(w.all()) != 3 || s.Stats("x").EventsOK != 124 {
				t.Errorf("%d posts, %+v", len(w.all()), s.Stats("x"))
			}
		})
}

func TestSendGridSplitsLargePosts(t *testing.T) {
	t.Parallel()
	w := &wire{status: func(int, []byte) int { return 202 }}
	in(t, simulator.SendGrid, simulator.Options{FlushCount: 1 << 20}, w,
		func(t *testing.T, s *simulator.Simulator, send sendFunc) {
			for range 2 {
				send(simtest.Addresses(1000)...)
			}
			if err := s.Settle(t.Context()); err != nil {
				t.Fatal(err)
			}
			key, err := eventwebhook.ConvertPublicKeyBase64ToECDSA(s.PublicKey("x"))
			if err != nil {
				t.Fatal(err)
			}
			total := 0
			for _, p := range w.all() {
				var list []simtest.Event
				if err := json.Unmarshal(p.Body, &list); err != nil {
					t.Fatal(err)
				}
				total += len(list)
				if n := len(p.Body); n > 768<<10 || !bytes.HasSuffix(p.Body, []byte("}]\r\n")) ||
					bytes.Count(p.Body, []byte("},\r\n{")) != len(list)-1 {
					t.Errorf("post of %d bytes: ... %q", n, p.Body[n-20:])
				}
				ts := p.Header.Get(eventwebhook.TimestampHTTPHeader)
				ok, err := eventwebhook.VerifySignature(key, p.Body, p.Header.Get(eventwebhook.VerificationHTTPHeader), ts)
				if !ok || err != nil || ts != strconv.FormatInt(p.At.Unix(), 10) ||
					p.Header.Get("Content-Type") != "application/json" {
					t.Errorf("signature %v %v, header %v", ok, err, p.Header)
				}
			}
			if total != 4000 || len(w.all()) < 2 {
				t.Errorf("%d events in %d posts", total, len(w.all()))
			}
		})
}

func TestSendGridRetriesForADay(t *testing.T) {
	t.Parallel()
	for _, status := range []int{500, 302, 406, 410, -1} {
		w := &wire{status: func(int, []byte) int { return status }}
		in(t, simulator.SendGrid, simulator.Options{FlushEvery: 1}, w,
			func(t *testing.T, s *simulator.Simulator, send sendFunc) {
				send("a@example.com")
				if err := s.Settle(t.Context()); err != nil {
					t.Fatal(err)
				}
				gaps := w.gaps()
				if fmt.Sprint(gaps[:7]) != "[1m0s 2m0s 4m0s 8m0s 16m0s 32m0s 1h0m0s]" || gaps[len(gaps)-1] != time.Hour {
					t.Errorf("%d: %v", status, gaps)
				}
				if total := w.all()[len(w.all())-1].At.Sub(w.all()[0].At); total > 24*time.Hour || total < 22*time.Hour {
					t.Errorf("%d: retried for %v", status, total)
				}
				for _, p := range w.all() {
					if !bytes.Equal(p.Body, w.all()[0].Body) || fmt.Sprint(p.Header) != fmt.Sprint(w.all()[0].Header) {
						t.Errorf("the repeated post differs: %v", p.Header)
					}
				}
				if st := s.Stats("x"); st.EventsGivenUp != 2 || st.EventsOK != 0 || st.EventsSent != 2*int64(len(w.all())) ||
					st.EventsPending != 0 {
					t.Errorf("stats %+v", st)
				}
			})
	}
}

func TestSendGridRetryOptions(t *testing.T) {
	t.Parallel()
	w := &wire{status: func(n int, _ []byte) int { return []int{500, 200}[n] }}
	in(t, simulator.SendGrid, simulator.Options{ResignRetries: true, NewEventIDOnRetry: true}, w,
		func(t *testing.T, s *simulator.Simulator, send sendFunc) {
			send("a@example.com")
			if err := s.Settle(t.Context()); err != nil {
				t.Fatal(err)
			}
			stamp := func(i int) string { return w.all()[i].Header.Get(eventwebhook.TimestampHTTPHeader) }
			if stamp(0) == stamp(1) || bytes.Equal(w.all()[0].Body, w.all()[1].Body) || s.Stats("x").EventsOK != 2 {
				t.Errorf("%s %s", stamp(0), stamp(1))
			}
		})
}

func TestMailgunRetriesExceptDelivered(t *testing.T) {
	t.Parallel()
	isDelivered := func(body []byte) bool { return bytes.Contains(body, []byte(`"event":"delivered"`)) }
	for _, c := range []struct {
		status int
		o      simulator.Options
		addr   string
		posts  int // of the first kind of event: accepted
		final  int // of delivered
	}{
		{500, simulator.Options{}, "a@example.com", 7, 1},
		{204, simulator.Options{}, "a@example.com", 7, 1}, // only 200 is success
		{301, simulator.Options{}, "a@example.com", 7, 1},
		{-1, simulator.Options{}, "a@example.com", 7, 1},
		{406, simulator.Options{}, "a@example.com", 1, 1},
		{406, simulator.Options{RetryDelivered: true}, "a@example.com", 1, 1},
		{500, simulator.Options{RetryDelivered: true}, "a@example.com", 7, 7},
	} {
		w := &wire{status: func(int, []byte) int { return c.status }}
		c.o.WebhookWorkers = 1
		in(t, simulator.Mailgun, c.o, w, func(t *testing.T, s *simulator.Simulator, send sendFunc) {
			send(c.addr)
			if err := s.Settle(t.Context()); err != nil {
				t.Fatal(err)
			}
			var accepted, delivered []simtest.Request
			for _, p := range w.all() {
				if isDelivered(p.Body) {
					delivered = append(delivered, p)
				} else {
					accepted = append(accepted, p)
				}
			}
			if len(accepted) != c.posts || len(delivered) != c.final {
				t.Errorf("%+v: %d accepted, %d delivered", c, len(accepted), len(delivered))
			}
			if gaps := (&wire{posts: accepted}).gaps(); c.posts == 7 &&
				fmt.Sprint(gaps) != "[5m0s 10m0s 15m0s 1h0m0s 2h0m0s 4h0m0s]" {
				t.Errorf("gaps %v", gaps)
			}
			for _, p := range accepted {
				if !bytes.Equal(p.Body, accepted[0].Body) {
					t.Error("the repeated post differs")
				}
			}
			if st := s.Stats("x"); st.EventsGivenUp != 2 || st.EventsPending != 0 ||
				st.PostsByStatus[max(c.status, 0)] != int64(len(w.all())) {
				t.Errorf("stats %+v", st)
			}
		})
	}
}

func TestMailgunResignsRetries(t *testing.T) {
	t.Parallel()
	w := &wire{status: func(n int, _ []byte) int { return []int{500, 200, 200, 200}[n] }}
	in(t, simulator.Mailgun, simulator.Options{ResignRetries: true, RetryDelivered: true, WebhookWorkers: 1}, w,
		func(t *testing.T, s *simulator.Simulator, send sendFunc) {
			send("a@example.com")
			if err := s.Settle(t.Context()); err != nil {
				t.Fatal(err)
			}
			type signed struct {
				Signature struct{ Timestamp, Token string }
				Data      simtest.Event `json:"event-data"`
			}
			var first, last signed
			json.Unmarshal(w.all()[0].Body, &first)
			json.Unmarshal(w.all()[2].Body, &last)
			if first.Signature.Token == last.Signature.Token || first.Signature.Timestamp == last.Signature.Timestamp ||
				first.Data.Text("id") != last.Data.Text("id") {
				t.Errorf("%+v %+v", first, last)
			}
		})
}

func TestEventsFollowTheProvidersSchedule(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ kind, addr, want string }{
		{simulator.SendGrid, "softbounce@sim.test", "[0s processed 0s deferred 15m0s delivered]"},
		{simulator.SendGrid, "expire@sim.test", "[0s processed 0s deferred 1h0m0s deferred 12h0m0s deferred 72h0m0s bounce]"},
		{simulator.SendGrid, "async@sim.test", "[0s processed 0s delivered 10m0s bounce]"},
		{simulator.Mailgun, "softbounce@sim.test", "[0s accepted 0s failed 10m0s delivered]"},
		{simulator.Mailgun, "expire@sim.test", "[0s accepted 0s failed 10m0s failed 25m0s failed 55m0s failed " +
			"1h55m0s failed 3h55m0s failed 7h55m0s failed]"},
		{simulator.Mailgun, "click@sim.test", "[0s accepted 0s delivered 1m0s opened 2m0s clicked]"},
	} {
		w := &wire{status: func(int, []byte) int { return 200 }}
		in(t, c.kind, simulator.Options{FlushCount: 1, WebhookWorkers: 1}, w,
			func(t *testing.T, s *simulator.Simulator, send sendFunc) {
				begun := time.Now()
				send(c.addr)
				if err := s.Settle(t.Context()); err != nil {
					t.Fatal(err)
				}
				var have []string
				for _, p := range w.all() {
					var e simtest.Event
					if c.kind == simulator.SendGrid {
						var list []simtest.Event
						json.Unmarshal(p.Body, &list)
						e = list[0]
					} else {
						var body struct {
							Data simtest.Event `json:"event-data"`
						}
						json.Unmarshal(p.Body, &body)
						e = body.Data
					}
					have = append(have, p.At.Sub(begun).Round(time.Second).String()+" "+e.Text("event"))
					if at := time.Unix(int64(e["timestamp"].(float64)), 0); p.At.Sub(at).Abs() > time.Second {
						t.Errorf("%s at %v says %v", e.Text("event"), p.At, at)
					}
				}
				if fmt.Sprint(have) != c.want {
					t.Errorf("%s %s: %v", c.kind, c.addr, have)
				}
			})
	}
}

func TestFlushWaitsForRetriesAndEndsWithContextAndClose(t *testing.T) {
	t.Parallel()
	w := &wire{status: func(n int, _ []byte) int { return []int{500, 500, 200, 200, 200}[n] }}
	in(t, simulator.SendGrid, simulator.Options{EventDelay: time.Minute}, w,
		func(t *testing.T, s *simulator.Simulator, send sendFunc) {
			send("a@example.com")
			begun := time.Now()
			if err := s.Flush(t.Context()); err != nil || time.Since(begun) != 0 {
				t.Errorf("flush of nothing: %v after %v", err, time.Since(begun))
			}
			time.Sleep(time.Minute)
			begun = time.Now()
			if err := s.Flush(t.Context()); err != nil || time.Since(begun) != 3*time.Minute || len(w.all()) != 3 {
				t.Errorf("flush: %v after %v, %d posts", err, time.Since(begun), len(w.all()))
			}
			w.answer(func(int, []byte) int { return 500 })
			send("b@example.com")
			time.Sleep(time.Minute)
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			if err := s.Flush(ctx); err == nil || ctx.Err() == nil {
				t.Errorf("flush without success: %v", err)
			}
			done := make(chan error)
			go func() { done <- s.Settle(t.Context()) }()
			time.Sleep(time.Second)
			s.Close()
			if err := <-done; err == nil {
				t.Error("flush ended well on Close")
			}
		})
}

func TestResetDropsCopiesAndPendingEvents(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{simulator.SendGrid, simulator.Mailgun} {
		w := &wire{status: func(int, []byte) int { return 500 }}
		in(t, kind, simulator.Options{}, w, func(t *testing.T, s *simulator.Simulator, send sendFunc) {
			s.Inject(simulator.Fault{Mode: simulator.ModeEventsDelay, Delay: time.Hour, Pattern: "late@*"})
			send("a@example.com", "late@example.com")
			time.Sleep(time.Minute)
			synctest.Wait()
			n := len(w.all())
			s.Reset()
			if err := s.Settle(t.Context()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(48 * time.Hour)
			synctest.Wait()
			st := s.Stats("")
			if n == 0 || len(w.all()) != n || st.Copies != 0 || st.Calls != 0 || st.EventsPending != 0 ||
				len(s.Faults()) != 0 || len(s.CallLog("x")) != 0 {
				t.Errorf("%d posts before, %d after, %+v", n, len(w.all()), st)
			}
			w.answer(func(int, []byte) int { return 200 })
			send("b@example.com")
			if err := s.Settle(t.Context()); err != nil || s.Stats("x").EventsOK != 2 || s.Stats("x").Copies != 1 {
				t.Errorf("%v %+v", err, s.Stats("x"))
			}
		})
	}
}
