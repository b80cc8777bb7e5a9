package providers_test

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/safedelivr/safedelivr/lab/simulator"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/settings"
	"github.com/safedelivr/safedelivr/providers"
)

const logKey = "sd_log" // the adapters' name for the log of a recipient

// A stage is an adapter, its simulated provider, and a webhook receiver that verifies and
// parses posts as the real one does.
type stage struct {
	kind    string
	sim     *simulator.Simulator
	adapter models.Adapter

	mu      sync.Mutex
	logs    map[addressed]models.ID
	events  []models.ParsedEvent
	unnamed []models.UnnamedEvent
	skipped []string
	refused []error
}

func newStage(t *testing.T, kind string) *stage {
	t.Helper()
	return newStageWith(t, kind, simulator.Options{})
}

func newStageWith(t *testing.T, kind string, o simulator.Options) *stage {
	t.Helper()
	o.RecipientKey, o.TimeScale, o.KeepContent, o.Seed = logKey, cmp.Or(o.TimeScale, 1e6), true, 7
	s := &stage{kind: kind, sim: simulator.New(o), logs: map[addressed]models.ID{}}
	webhookKey, ok := webhookKeys[kind]
	if !ok {
		webhookKey = "hook:secret-word"
	}
	hook := httptest.NewServer(s)
	api := httptest.NewServer(s.sim)
	err := s.sim.AddAccount(simulator.Account{
		Name:       "acc",
		Kind:       kind,
		Key:        cmp.Or(apiKeys[kind], "k"),
		Domain:     "mg.sim.test",
		WebhookURL: hook.URL,
		SigningKey: webhookKey,
	})
	if err != nil {
		t.Fatal(err)
	}
	if public := s.sim.PublicKey("acc"); public != "" {
		webhookKey = public
	}
	s.adapter, err = providers.New(providers.Settings{
		Name:       "acc",
		Kind:       kind,
		APIKey:     "k",
		Pair:       settings.Pair{SecretKey: "s"},
		Domain:     "mg.sim.test",
		BaseURL:    api.URL + "/acc",
		WebhookKey: webhookKey,
		Amazon:     amazon("k"),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.adapter.Close(); s.sim.Close(); api.Close(); hook.Close() })
	return s
}

// amazon returns the settings of Amazon SES, whose access key has two parts.
func amazon(key string) settings.Amazon {
	return settings.Amazon{Region: "us-east-1", AccessKeyID: key, SecretAccessKey: key,
		Topics: []string{simulator.SESTopic + "acc"}}
}

func (s *stage) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	_, err := s.adapter.Verify(r.Context(), &models.Webhook{Method: r.Method, Header: r.Header, Body: body,
		At: time.Now()})
	got := s.adapter.Parse(body)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.refused = append(s.refused, err)
	}
	s.events = append(s.events, s.named(got.Events)...)
	s.unnamed = append(s.unnamed, got.Unnamed...)
	s.skipped = append(s.skipped, got.Skipped...)
}

func (s *stage) call(batch models.ID, chunk int, addresses ...string) *models.Call {
	c := &models.Call{Batch: batch, Attempt: 1, Content: &models.Content{
		From:    models.Address{Email: "shop@sender.test", Name: "Shop"},
		Subject: "For {{name}}",
		Text:    "Hello {{name}}",
		HTML:    "<p>{{name}}</p>",
	}}
	for i, a := range addresses {
		c.Recipients = append(c.Recipients,
			models.CallRecipient{Log: batch.Chunk(chunk).Log(i + 1),
				Recipient: models.Recipient{Email: a, Name: fmt.Sprintf("<N%d>", i)}})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range c.Recipients {
		r := &c.Recipients[i]
		s.logs[addressed{r.Log.ChunkID(), r.Email}] = r.Log
	}
	return c
}

// addressed is a recipient of a chunk.
type addressed struct {
	chunk   models.ID
	address string
}

// named returns events with the logs of those that name a chunk and an address. s.mu must be held.
func (s *stage) named(events []models.ParsedEvent) []models.ParsedEvent {
	for i := range events {
		if e := &events[i]; e.Log.Recipient() == 0 {
			e.Log = s.logs[addressed{e.Log, e.Address}]
		}
	}
	return events
}

func (s *stage) settle(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	if err := s.sim.Settle(ctx); err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.refused) > 0 {
		t.Errorf("%d posts were refused: %v", len(s.refused), s.refused[0])
	}
}

// simulated returns the kinds with an API. The simulator has all of them.
func simulated() (names []string) {
	for _, k := range apis() {
		names = append(names, k.Name)
	}
	return names
}

// withLog returns the kinds with a log of events that can be queried by time and recipient.
func withLog() (names []string) {
	for _, k := range apis() {
		if k.LooksUp {
			names = append(names, k.Name)
		}
	}
	return names
}

// whole are the kinds that answer a call as a whole. Their suppression lists have pages with cursors.
var whole = []string{simulator.SendGrid, simulator.Mailgun, simulator.Brevo, simulator.SparkPost}

// counting are the kinds that answer how many recipients they accepted, and not which.
var counting = []string{simulator.SparkPost}

// withoutLists are the kinds whose suppression lists are not read.
var withoutLists = []string{simulator.Mailjet}

// eachOf runs a test for some kinds.
func eachOf(t *testing.T, kinds []string, test func(*testing.T, *stage)) {
	for _, name := range kinds {
		t.Run(name, func(t *testing.T) { test(t, newStage(t, name)) })
	}
}

// eachLog is eachKind for those with a log of events that can be queried by time and recipient.
func eachLog(t *testing.T, test func(*testing.T, *stage)) { eachOf(t, withLog(), test) }

// withLists returns the kinds whose suppression lists are read.
func withLists() []string {
	without := func(kind string) bool { return slices.Contains(withoutLists, kind) }
	return slices.DeleteFunc(simulated(), without)
}

// apiKeys are the keys of the simulator's accounts where they are not one text.
var apiKeys = map[string]string{simulator.Mailjet: "k:s", simulator.SES: "k:k"}

// copies returns what a recipient of a call got. Mailjet has one value of metadata, with the log and the attempt.
func (s *stage) copies(c *models.Call, i int) []simulator.Copy {
	list := s.sim.Copies(c.Recipients[i].Log.String())
	for i := range list {
		if s.kind == simulator.Mailjet {
			list[i].Metadata = map[string]string{"sd_attempt": strconv.Itoa(c.Attempt)}
		}
	}
	return list
}

// webhookKeys are the keys of the webhooks of those kinds that have no user name and password. SendGrid makes one
// itself.
var webhookKeys = map[string]string{
	simulator.SendGrid:  "",
	simulator.Mailgun:   "sign",
	simulator.Brevo:     "bearer-token",
	simulator.Mailtrap:  "a1b2c3d4e5f6a7b8",
	simulator.SparkPost: "a-token-of-webhooks",
	simulator.Resend:    "whsec_c2VjcmV0IG9mIGEgdGVzdCwgbG9uZyBlbm91Z2g=",
	simulator.SES:       "",
}

func eachKind(t *testing.T, test func(*testing.T, *stage)) { eachOf(t, simulated(), test) }

// withoutUnsubscribed are the kinds that know no recipients who unsubscribed.
var withoutUnsubscribed = []string{simulator.Resend, simulator.Mailjet}

// withoutReason are the kinds that do not say why they drop mail to an address that they suppress.
var withoutReason = []string{simulator.SparkPost}

// TestSimulatedThousand sends to 1,000 recipients with the real SDK. Each must get one mail
// with its own content, and a delivered event with its own ID.
func TestSimulatedThousand(t *testing.T) {
	eachKind(t, func(t *testing.T, s *stage) {
		batch := models.NewBatchID(time.Now())
		var addresses []string
		n := s.adapter.MaxRecipients()
		for i := range n {
			addresses = append(addresses, fmt.Sprintf("deliver+%d@sim.test", i))
		}
		c := s.call(batch, 2, addresses...)
		parts := s.adapter.Send(t.Context(), c)
		var accepted models.Set
		for _, p := range parts {
			if p.Class == models.Accepted && p.MessageID != "" {
				accepted = accepted.Or(p.Recipients)
			}
		}
		if accepted != models.SetTo(n) {
			t.Fatalf("parts %+v", parts)
		}
		s.settle(t)
		for i := range c.Recipients {
			copies := s.copies(c, i)
			if len(copies) != 1 || len(copies[0].Visible) != 0 || copies[0].Metadata["sd_attempt"] != "1" {
				t.Fatalf("recipient %d: copies %+v", i, copies)
			}
			name := fmt.Sprintf("<N%d>", i)
			if s.kind == simulator.Resend { // it takes names without marks
				name = strings.Trim(name, "<>")
			}
			if m := copies[0]; m.Name != name || m.Subject != fmt.Sprintf("For <N%d>", i) ||
				m.Text != fmt.Sprintf("Hello <N%d>", i) ||
				m.HTML != fmt.Sprintf("<p>&lt;N%d&gt;</p>", i) {
				t.Fatalf("recipient %d: %+v", i, m.Content)
			}
		}
		delivered := map[models.ID]int{}
		for _, e := range s.events {
			if e.Event.Kind == models.Delivered {
				delivered[e.Log]++
			}
		}
		if len(delivered) != n || len(s.skipped) != 0 {
			t.Errorf("%d delivered, skipped %d", len(delivered), len(s.skipped))
		}
	})
}

// TestSimulatedParallel sends from 64 goroutines at once. Nothing may be lost or doubled.
func TestSimulatedParallel(t *testing.T) {
	eachKind(t, func(t *testing.T, s *stage) {
		batch := models.NewBatchID(time.Now())
		var wg sync.WaitGroup
		for w := range 64 {
			wg.Go(func() {
				for k := range 4 {
					c := s.call(batch, w*4+k, fmt.Sprintf("deliver+%d.%d@sim.test", w, k),
						fmt.Sprintf("deliver+%d.%d.b@sim.test", w, k))
					for _, p := range s.adapter.Send(t.Context(), c) {
						if p.Class != models.Accepted {
							t.Errorf("%+v", p)
						}
					}
				}
			})
		}
		wg.Wait()
		if st := s.sim.Stats("acc"); st.Calls != 256 || st.Distinct != 512 || st.Copies != 512 {
			t.Errorf("%d calls, %d copies of %d recipients", st.Calls, st.Copies, st.Distinct)
		}
	})
}

// TestSimulatedOutcomes sends mails with every outcome. All providers must report them with
// the same words. Postmark refuses an address that it suppresses at once, and does not say why.
func TestSimulatedOutcomes(t *testing.T) {
	want := map[string]struct {
		kind   models.EventKind
		reason models.Reason
	}{
		"hardbounce": {models.Bounced, models.MailboxInvalid}, "blocked": {models.Blocked, models.PolicyReputation},
		"mailboxfull": {models.Bounced, models.MailboxFull}, "suppressed-bounce": {models.Dropped, models.SuppressedBounce},
		"suppressed-spam":    {models.Dropped, models.SuppressedComplaint},
		"suppressed-unsub":   {models.Dropped, models.SuppressedUnsubscribe},
		"defer-then-deliver": {models.Delivered, ""}, "deliver": {models.Delivered, ""},
	}
	eachKind(t, func(t *testing.T, s *stage) {
		var addresses, names []string
		for name := range want {
			names = append(names, name)
			addresses = append(addresses, name+"@sim.test")
		}
		c := s.call(models.NewBatchID(time.Now()), 0, addresses...)
		refused := map[int]models.Reason{}
		for _, p := range s.adapter.Send(t.Context(), c) {
			if p.Class.Refused() {
				refused[p.Recipients.First()] = p.Reason
			}
		}
		s.settle(t)
		for i, name := range names {
			if reason, ok := refused[i+1]; ok && strings.HasPrefix(name, "suppressed-") {
				if reason != models.SuppressedBounce {
					t.Errorf("%s: refused as %s", name, reason)
				}
				continue
			}
			if slices.Contains(withoutUnsubscribed, s.kind) && name == "suppressed-unsub" {
				continue
			}
			want := want[name]
			if s.kind == simulator.Brevo && strings.HasPrefix(name, "suppressed-") {
				want.reason = models.SuppressedBounce // it does not say why it blocks an address
			}
			var last models.Event
			for _, e := range s.events {
				if e.Log == c.Recipients[i].Log && (e.Event.Kind.Failure() || e.Event.Kind == models.Delivered) {
					last = e.Event
				}
			}
			if slices.Contains(withoutReason, s.kind) && strings.HasPrefix(name, "suppressed-") {
				last.Reason = want.reason
			}
			if last.Kind != want.kind || last.Reason != want.reason {
				t.Errorf("%s: %s, %s; want %v", name, last.Kind, last.Reason, want)
			}
		}
	})
}

// TestSimulatedFaults checks the classes of network and server faults.
func TestSimulatedFaults(t *testing.T) {
	eachKind(t, func(t *testing.T, s *stage) {
		for mode, want := range map[string]models.Class{
			simulator.ModeHangAfterBody: models.Unknown, simulator.ModeAcceptThenClose: models.Unknown,
			simulator.ModeTruncate: models.Accepted,
			simulator.ModeCredits:  models.AccountClass, simulator.ModeUnverified: models.AccountClass,
			simulator.ModeBlocked: models.AccountClass,
			simulator.ModeRate:    models.Throttled, simulator.ModeNotAllowed: models.AccountClass,
			simulator.ModeFull:     models.AccountClass,
			simulator.ModeTooLarge: models.RejectedHereClass,
			"status:500":           models.Unknown, "status:502": models.Unknown, "status:503": models.Unavailable,
			"status:504": models.Unknown,
		} {
			id := s.sim.Inject(simulator.Fault{Mode: mode})
			ctx, cancel := context.WithCancel(t.Context())
			if mode == simulator.ModeHangAfterBody { // the call times out when the provider has all of it
				ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
					WroteRequest: func(httptrace.WroteRequestInfo) { cancel() },
				})
			}
			c := s.call(models.NewBatchID(time.Now()), 0, "deliver@sim.test", "deliver+2@sim.test")
			parts := s.adapter.Send(ctx, c)
			cancel()
			if mode == simulator.ModeTruncate && (!slices.Contains(whole, s.kind) || slices.Contains(counting, s.kind)) {
				want = models.Unknown // the answer says which mails were accepted, or how many
			}
			if len(parts) != 1 || parts[0].Class != want {
				t.Errorf("%s: %+v, want %s", mode, parts, want)
			}
			s.sim.Clear(id)
		}
		c := s.call(models.NewBatchID(time.Now()), 0, "deliver@sim.test", "refused@sim.test", "deliver+2@sim.test")
		parts := s.adapter.Send(t.Context(), c)
		for _, p := range parts {
			if p.Class == models.Unknown && slices.Contains(counting, s.kind) {
				continue
			}
			if p.Class != models.Split && p.Class != models.RejectedRecipient &&
				(p.Class != models.Accepted || slices.Contains(whole, s.kind)) ||
				p.Class == models.RejectedRecipient && p.Recipients != models.SetOf(2) {
				t.Errorf("a refused recipient among others: %+v", parts)
			}
		}
		c.Recipients, c.Attempt = c.Recipients[1:2], 2
		if parts := s.adapter.Send(t.Context(), c); len(parts) != 1 || parts[0].Class != models.RejectedRecipient {
			t.Errorf("a refused recipient alone: %+v", parts)
		}
	})
}

// TestSimulatedRepeat makes calls again after their answers were lost. Each mail is sent once, and the answer to the
// repeat says so.
func TestSimulatedRepeat(t *testing.T) {
	for _, kind := range simulated() {
		s := newStageWith(t, kind, simulator.Options{TimeScale: 1}) // so that keys do not expire
		if _, ok := s.adapter.(interface{ KeyLifetime() time.Duration }); !ok {
			continue
		}
		for n := 1; n <= 3; n += 2 {
			id := s.sim.Inject(simulator.Fault{Mode: simulator.ModeAcceptThenClose})
			c := s.call(models.NewBatchID(time.Now()), 0, addresses(n)...)
			if parts := s.adapter.Send(t.Context(), c); parts[0].Class != models.Unknown {
				t.Fatalf("%+v", parts)
			}
			s.sim.Clear(id)
			for range 2 {
				var accepted models.Set
				for _, p := range s.adapter.Send(t.Context(), c) {
					if p.Class == models.Accepted {
						accepted = accepted.Or(p.Recipients)
					}
				}
				if accepted != c.Numbers() {
					t.Errorf("%s: of %d mails %s are accepted", kind, n, accepted)
				}
			}
			for i := range c.Recipients {
				if copies := s.sim.Copies(c.Recipients[i].Log.String()); len(copies) != 1 {
					t.Errorf("%s: %d copies", kind, len(copies))
				}
			}
		}
	}
}

// TestSimulatedByAddress: if the header fields of message versions do not come back, the tag and the address of each
// event say which mail it is about, in webhooks and in the log.
func TestSimulatedByAddress(t *testing.T) {
	s := newStageWith(t, simulator.Brevo, simulator.Options{NoVersionHeaders: true})
	begun := time.Now()
	c := s.call(models.NewBatchID(begun), 7, append(addresses(50), "hardbounce@sim.test")...)
	s.adapter.Send(t.Context(), c)
	s.adapter.Send(t.Context(), s.call(models.NewBatchID(begun), 0, addresses(50)...))
	s.settle(t)
	posted := s.posted()
	chunk := c.Recipients[0].Log.ChunkID()
	q := around(begun)
	q.Chunks, q.Attempts = map[models.ID]bool{chunk: true}, map[models.ID][]int{chunk: {1, 3}}
	found, err := s.lookUp(t, q)
	if err != nil || len(found) != 102 || len(posted) != 202 {
		t.Fatalf("%d events posted, %d found: %v", len(posted), len(found), err)
	}
	for id := range found {
		if !posted[id] || id.log.ChunkID() != chunk || id.log.Recipient() == 0 {
			t.Errorf("found %v, which was not posted", id)
		}
	}
}
