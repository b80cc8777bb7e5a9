package service

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/policy"
	"github.com/safedelivr/safedelivr/service/intake"
	"github.com/safedelivr/safedelivr/service/mail"
)

// DryRun is what would happen to a batch if it were sent now.
type DryRun struct {
	DryRun     bool             `json:"dry_run"` // true
	Recipients int              `json:"recipients"`
	Duplicates int              `json:"duplicates"`
	Suppressed int              `json:"suppressed"`
	Rejected   *mail.Rejected   `json:"rejected,omitempty"`
	Size       int64            `json:"size"` // bytes of subject, text, HTML and attachments
	Lane       models.Lane      `json:"lane"`
	LaneLimit  models.Limit     `json:"lane_limit,omitempty"` // that would make it bulk
	ExpiresAt  time.Time        `json:"expires_at"`
	OwnTimes   *client.OwnTimes `json:"own_times,omitempty"` // nil: all recipients have those of the batch
	Routes     []Route          `json:"routes"`
	// Seconds is the least time that the rates of the providers allow; nil if a provider that
	// gets mail has no rate, or if nothing is sent now.
	Seconds *float64     `json:"seconds,omitempty"`
	Cost    *client.Cost `json:"cost,omitempty"` // nil if no prices are configured
}

// Route is the way of recipients who are treated alike.
type Route struct {
	Recipients int             `json:"recipients"`
	Providers  []RouteProvider `json:"providers"`           // that the batch may use, in order of preference
	Waits      *models.Wait    `json:"waits,omitempty"`     // what the mail waits for, if none takes it now
	LastUntil  time.Time       `json:"last_until,omitzero"` // end of the last wait, if they end at different times
	Reason     models.Reason   `json:"reason,omitempty"`    // why it would fail at once
	Text       string          `json:"text"`                // all of this, for people
	alike      string          // the same for routes that are alike
}

// RouteProvider is a provider of a route.
type RouteProvider struct {
	Name    string       `json:"name"`
	Share   float64      `json:"share"`              // part of the mail that it gets now, from 0 to 1
	Waits   *models.Wait `json:"waits,omitempty"`    // why it gets none now
	LeftOut string       `json:"left_out,omitempty"` // what it cannot carry of the message
	Refused string       `json:"refused,omitempty"`  // why it cannot carry the message
}

// Trial says whether Accept would accept the batches of a request one after the other, also by the limits of their
// user. It stores nothing.
type Trial struct {
	svc    *Service
	who    Caller
	quotas quotas
	now    time.Time
}

// NewTrial returns a Trial for a request of the caller.
func (s *Service) NewTrial(who Caller) *Trial { return &Trial{s, who, s.Limits.NewTrial(), time.Now()} }

// Check returns the error with which Accept would refuse a batch.
func (t *Trial) Check(ctx context.Context, in *intake.Intake) error {
	_, err := t.check(ctx, in)
	return err
}

// Accepted reports whether an earlier attempt of a request has stored its batch.
func (t *Trial) Accepted(ctx context.Context, r Repeat) (bool, error) {
	done, err := t.svc.accepting.Done(ctx, t.who.User, r)
	return done, storeError("read batch", err)
}

func (t *Trial) check(ctx context.Context, in *intake.Intake) (models.Batch, error) {
	b, err := t.svc.check(ctx, t.who, in, t.now)
	if err == nil {
		_, err = takeBatch(ctx, t.quotas, t.who, &b, in)
	}
	return b, err
}

// DryRun checks a batch, and says what would happen to it. It makes no call.
func (t *Trial) DryRun(ctx context.Context, in *intake.Intake) (DryRun, error) {
	b, err := t.check(ctx, in)
	if err != nil {
		return DryRun{}, err
	}
	w, err := t.svc.Mail.Waiting(ctx)
	if err != nil {
		return DryRun{}, err
	}
	return t.svc.plan(ctx, t.who, w, in, b, t.now)
}

// plan says what would happen to a batch that was checked.
func (s *Service) plan(
	ctx context.Context, who Caller, w *mail.Waits, in *intake.Intake, b models.Batch, now time.Time,
) (_ DryRun, err error) {
	b.ID, b.User = models.NewBatchID(now), who.User
	out := DryRun{
		DryRun:     true,
		Recipients: b.Recipients,
		Duplicates: b.Duplicates,
		Size:       b.Content.Size(),
		Lane:       b.Lane,
		LaneLimit:  b.LaneLimit,
		ExpiresAt:  b.ExpiresAt,
		OwnTimes:   mail.OwnTimesOf(&b),
	}
	if in.Permissive() {
		out.Rejected = &mail.Rejected{Count: b.Rejected}
		if out.Rejected.First, err = in.FirstRejected(); err != nil {
			return DryRun{}, err
		}
	}
	err = in.Chunks(func(n int, recipients []models.Recipient) error {
		found, err := s.suppressedIn(ctx, &b, recipients)
		if err != nil {
			return err
		}
		out.Suppressed += len(found.Suppressed)
		ended := found.Endings(func(i int) int { return i + 1 })
		for i := range ended {
			e := &ended[i]
			e.Number = i + 1
			out.add(Route{Recipients: e.Recipients.Len(), Providers: []RouteProvider{}, Reason: e.Reason,
				Text: "not sent: " + e.Detail, alike: e.Detail})
		}
		names := namesOf(recipients)
		for _, st := range w.Plan(b.OfChunk(n), models.Resolve(len(recipients), ended, nil), recipients) {
			out.add(s.route(w, &b, &st, names))
		}
		return nil
	})
	out.Seconds, out.Cost = s.leastTime(&out), s.costOf(&out)
	return out, err
}

// namesOf returns the names of recipients.
func namesOf(recipients []models.Recipient) (names []string) {
	for i := range recipients {
		if name := recipients[i].Name; name != "" {
			names = append(names, name)
		}
	}
	return names
}

// add adds a route, or its recipients to a route that is alike.
func (d *DryRun) add(r Route) {
	for i := range d.Routes {
		if d.Routes[i].alike == r.alike {
			d.Routes[i].merge(&r)
			return
		}
	}
	d.Routes = append(d.Routes, r)
}

// merge adds the recipients of a route that is alike.
func (r *Route) merge(o *Route) {
	r.Recipients += o.Recipients
	for i := range min(len(r.Providers), len(o.Providers)) { // of recipients in different chunks
		r.Providers[i].LeftOut = cmp.Or(r.Providers[i].LeftOut, o.Providers[i].LeftOut)
	}
	if r.Waits == nil || o.Waits.Until.Equal(r.Waits.Until) && r.LastUntil.IsZero() {
		return
	}
	r.LastUntil = models.LaterOf(models.LaterOf(r.Waits.Until, r.LastUntil), o.Waits.Until)
	if o.Waits.Until.Before(r.Waits.Until) {
		r.Waits = o.Waits
	}
}

// route returns the route of the recipients of a step, in a chunk whose recipients have names.
func (s *Service) route(w *mail.Waits, b *models.Batch, st *policy.Step, names []string) Route {
	r := Route{Recipients: st.Recipients.Len(), Providers: []RouteProvider{}}
	switch {
	case st.Do == policy.End:
		r.Reason, r.Text = st.Reason, "not sent: "+st.Reason.Words()
	case st.Do == policy.Wait:
		r.Waits, r.Text = st.Waits, waitingFor(st.Waits)
	case w.NoWorker():
		r.Waits = w.Step(st, false)
		r.Text = waitingFor(r.Waits)
	}
	var ready []int
	total, providers := 0, b.Providers
	if len(providers) == 0 {
		providers = providerNames(s.providers)
	}
	for _, name := range providers {
		p := s.providerOf(name)
		e := RouteProvider{Name: name, Refused: p.Refuses(b)}
		if e.Refused == "" {
			e.LeftOut = p.Carries.LeftOut(&b.Content, names...)
		}
		at := slices.IndexFunc(st.Options, func(o policy.Option) bool { return o.Provider == name })
		turn := &models.Wait{Code: models.WaitTurn}
		switch {
		case st.Do != policy.Call || r.Waits != nil || e.Refused != "":
		case at < 0:
			e.Waits = &models.Wait{Code: models.WaitProviderOffline, Provider: name,
				Text: name + " is offline, drained or blocked by a rule"}
		default:
			if wait := w.Option(st.Options[at], st, turn); wait == turn {
				ready = append(ready, len(r.Providers))
				total += p.Weight
			} else {
				e.Waits = wait
			}
		}
		r.Providers = append(r.Providers, e)
	}
	for i, k := range ready {
		p := &r.Providers[k]
		switch {
		case !st.Fixed:
			p.Share = float64(s.providerOf(p.Name).Weight) / float64(total)
		case i == 0:
			p.Share = 1
		}
	}
	if r.Text == "" && len(ready) == 0 {
		r.Waits = w.Call(st)
		r.Text = waitingFor(r.Waits)
	}
	if r.Text == "" {
		r.Text = "sent now: " + r.words()
	}
	r.alike = r.Text
	return r
}

// waitingFor returns what mail waits for, for people.
func waitingFor(w *models.Wait) string {
	if strings.HasPrefix(w.Text, "waiting ") {
		return w.Text
	}
	return "waiting: " + w.Text
}

// words returns what each provider does, for people.
func (r *Route) words() string {
	var parts []string
	for i := range r.Providers {
		switch p := &r.Providers[i]; {
		case p.Refused != "":
			parts = append(parts, p.Name+" cannot carry the message: "+p.Refused)
		case p.Waits != nil:
			parts = append(parts, p.Waits.Text)
		case p.Share == 0:
			parts = append(parts, p.Name+" gets what the ones before it do not take")
		default:
			parts = append(parts, fmt.Sprintf("%s gets %.0f %%", p.Name, 100*p.Share))
		}
	}
	return strings.Join(parts, "; ")
}

// leastTime returns the least time in seconds that the rates of providers allow, or nil.
func (s *Service) leastTime(d *DryRun) *float64 {
	mail := map[string]float64{}
	for i := range d.Routes {
		for _, p := range d.Routes[i].Providers {
			mail[p.Name] += p.Share * float64(d.Routes[i].Recipients)
		}
	}
	longest := 0.0
	for name, n := range mail {
		if n == 0 {
			continue
		}
		rate := s.providerOf(name).Rate
		if rate == 0 {
			return nil
		}
		longest = max(longest, n/rate)
	}
	if longest == 0 {
		return nil
	}
	return &longest
}

// costOf returns the cost of a batch, or nil if no prices are configured.
func (s *Service) costOf(d *DryRun) *client.Cost {
	if len(s.cfg.Prices) == 0 {
		return nil
	}
	c := &client.Cost{Currency: s.cfg.Currency, Providers: map[string]float64{}}
	for i := range d.Routes {
		r := &d.Routes[i]
		if r.Reason != "" {
			continue // it fails at once
		}
		var prices []float64 // of 1,000 messages
		thousands := float64(r.Recipients) / 1000
		for _, p := range r.Providers {
			if p.Refused != "" {
				continue
			}
			price := s.cfg.Prices[p.Name]
			if prices = append(prices, price); p.Share > 0 {
				c.Providers[p.Name] += thousands * p.Share * price
			}
		}
		if len(prices) > 0 {
			c.Least += thousands * slices.Min(prices)
			c.Most += thousands * slices.Max(prices)
		}
	}
	c.Least, c.Most = money(c.Least), money(c.Most)
	for name, cost := range c.Providers {
		c.Providers[name] = money(cost)
	}
	return c
}

// money rounds an amount to a millionth, so that sums have no digits that mean nothing.
func money(amount float64) float64 { return math.Round(amount*1e6) / 1e6 }

// providerNames returns the names of providers, in their order.
func providerNames(ps []models.Provider) (out []string) {
	for i := range ps {
		out = append(out, ps[i].Name)
	}
	return out
}

// providerOf returns a configured provider.
func (s *Service) providerOf(name string) models.Provider {
	for i := range s.providers {
		if s.providers[i].Name == name {
			return s.providers[i]
		}
	}
	return models.Provider{}
}
