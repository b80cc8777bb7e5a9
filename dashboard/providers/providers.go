// Package providers has the pages of providers: their health, rates, history and suppression lists.
package providers

import (
	"context"
	"embed"
	"maps"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"text/template"
	"time"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/dashboard/chart"
	"github.com/safedelivr/safedelivr/dashboard/web"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/condition"
	"github.com/safedelivr/safedelivr/models/control"
	"github.com/safedelivr/safedelivr/models/telemetry"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/operate"
	"github.com/safedelivr/safedelivr/service/stats"
)

// views are the templates of this room.
var views = web.NewTemplates(files, template.FuncMap{"final": finalOf, "spark": chart.Sparkline})

//go:embed *.html
var files embed.FS

// Pages are the pages of providers.
type Pages struct {
	web        *web.Frame
	service    *service.Service
	inspect    func(ctx context.Context, provider string) []Finding // nil: pages offer no check
	inspecting sync.Map                                             // names of the providers that are being inspected
	tracker    *tracker
	histories  histories
}

// New returns the pages.
func New(frame *web.Frame, svc *service.Service, inspect func(ctx context.Context, provider string) []Finding) *Pages {
	return &Pages{
		web:       frame,
		service:   svc,
		inspect:   inspect,
		tracker:   &tracker{operate: svc.Operate, history: map[string][]sample{}},
		histories: histories{kept: map[client.HistoryRange]*keptHistory{}},
	}
}

// Sample reads the providers now. Pages show what the newest sample has found.
func (p *Pages) Sample(ctx context.Context, now time.Time) { p.tracker.sample(ctx, now) }

// Run samples the providers again and again until ctx ends.
func (p *Pages) Run(ctx context.Context) { p.tracker.run(ctx) }

// Routes returns the routes of the pages.
func (p *Pages) Routes() web.Routes {
	return web.Routes{
		Templates: views,
		Entries:   []web.Entry{{Group: web.NavRun, To: "/providers", Icon: "route", Text: "Providers"}},
		Users: map[string]web.Handler{
			"GET /providers":      p.providers,
			"GET /live/providers": p.providersEvents,
		},
		Operators: map[string]web.Handler{
			"GET /providers/{name}/check":                             p.inspectProvider,
			"GET /providers/{name}/{do}":                              p.askProvider,
			"GET /providers/{name}/suppressions":                      p.listedAtProvider,
			"GET /providers/{name}/suppressions/{list}/{email}/clear": p.askClear,
		},
		OperatorCalls: map[string]web.Call{
			"POST /providers/{id}/{do}": {Verbs: "providers", Then: p.switched},
			"POST /providers/{id}/suppressions/{list}/{email}/clear": {
				Operation: "clearProviderSuppression", To: "/providers/{id}/suppressions?did=cleared",
				Done: "The address was removed from the provider's list. The provider delivers to it again.",
			},
		},
	}
}

// providersView is the page of all providers.
type providersView struct {
	Providers []providerView
	Flow      chart.Chart
	History   *HistoryView
	Tabs      []web.Tab // ranges of the history
	From, To  string    // days of Mine

	Checked  string // name of the provider that was inspected, or ""
	Findings []Finding
}

// providerView is one provider, and the visitor's mail through it.
type providerView struct {
	Provider
	Mine    client.ProviderCounts // the visitor's counts of the last 30 days
	Switch  control.ProviderMode
	Actions []web.Action // commands that the visitor may give now
	Checks  bool         // the visitor may inspect it
}

// Finding is one thing that was found out about a provider.
type Finding struct {
	State string // ok, warning, wrong or unknown
	About string // like key, webhooks, SPF
	Text  string
	ToDo  string // what to do about it; "" if nothing
}

// shownDays is the number of days whose mail of the visitor is counted.
const shownDays = 30

// providers is GET /providers.
func (p *Pages) providers(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	back := client.HistoryRange(r.URL.Query().Get("range"))
	view, err := p.readProviders(r.Context(), v.Caller(), back)
	if err != nil {
		return err
	}
	return p.showProviders(w, r, v, view)
}

// inspectProvider is GET /providers/{name}/check, for operators: the page of all providers, with what was found out
// about one. It changes nothing. A provider is inspected by one request at a time.
func (p *Pages) inspectProvider(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	name := r.PathValue("name")
	if !p.web.Providers.Has(name) || p.inspect == nil {
		return web.ErrNoPage
	}
	if _, runs := p.inspecting.LoadOrStore(name, true); runs {
		return service.Fail(service.Conflict, "check_running",
			"Another check of this provider is running. Try again when it has ended.")
	}
	defer p.inspecting.Delete(name)
	found := p.inspect(r.Context(), name)
	view, err := p.readProviders(r.Context(), v.Caller(), client.Hour)
	if err != nil {
		return err
	}
	view.Checked, view.Findings = p.web.Providers.Named(name), found
	return p.showProviders(w, r, v, view)
}

func (p *Pages) showProviders(w http.ResponseWriter, r *http.Request, v *web.Visitor, view *providersView) error {
	return p.web.Render(w, r, v, http.StatusOK, "providers", web.Page{
		Title: "Providers", Live: "/live/providers?range=" + string(view.History.Range),
		Charts: true, Data: view,
	})
}

// providersEvents is GET /live/providers.
func (p *Pages) providersEvents(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	who := v.Caller()
	back := client.HistoryRange(r.URL.Query().Get("range"))
	if _, ok := historyWords[back]; !ok {
		back = client.Hour
	}
	key := web.EventsKey("providers ", who.Whose(), " ", who.Operator, " ", back)
	return p.web.Stream(w, r, v, key, func() web.Source {
		return web.Source{
			Read: func(ctx context.Context) (any, error) { return p.readProviders(ctx, who, back) },
			Render: func(now any) (web.Parts, error) {
				ps, err := p.web.Parts("providers", now, "rates", "compare", "providers")
				if view, ok := now.(*providersView); ok && err == nil {
					maps.Copy(ps, view.History.parts) // rendered once for all pages
				}
				return ps, err
			},
		}
	})
}

func (p *Pages) readProviders(
	ctx context.Context, who service.Caller, back client.HistoryRange,
) (*providersView, error) {
	providers, err := p.Now()
	if err != nil {
		return nil, err
	}
	today := time.Now().UTC()
	stats, err := p.service.Stats.Of(ctx, who, stats.Query{
		From: today.AddDate(0, 0, 1-shownDays).Format(time.DateOnly),
		To:   today.Format(time.DateOnly),
	})
	if err != nil {
		return nil, err
	}
	switches, err := p.service.Operate.ProviderModes(ctx)
	if err != nil {
		return nil, err
	}
	history, err := p.History(ctx, back)
	if err != nil {
		return nil, err
	}
	hour, err := p.History(ctx, client.Hour)
	if err != nil {
		return nil, err
	}
	v := &providersView{History: history, Tabs: historyTabs(history.Range), From: stats.From, To: stats.To}
	var names []string
	for i := range providers {
		names = append(names, providers[i].Name)
		providers[i].Minutes = hour.MinutesOf(providers[i].Name)
		one := providerView{
			Provider: providers[i],
			Mine:     stats.Totals.Providers[providers[i].Name],
			Switch:   switches[providers[i].Name],
		}
		if who.Operator {
			one.Actions, one.Checks = switchesOf(one.Switch.Mode), p.inspect != nil
			if suspended(one.Health) {
				one.Actions = append([]web.Action{{Do: "probe", Text: "Test now"}}, one.Actions...)
			} else if one.Health != nil && one.Health.State == telemetry.Failing {
				one.Actions = append([]web.Action{{Do: "probe", Text: "Try now"}}, one.Actions...)
			}
		}
		v.Providers = append(v.Providers, one)
	}
	v.Flow = p.flow(names)
	return v, nil
}

// suspended reports whether a provider is suspended, for all mail or for some senders. A
// probe ends that.
func suspended(h *telemetry.Health) bool {
	return h != nil && (h.State == telemetry.Suspended || len(h.Senders) > 0 && h.State != telemetry.Offline)
}

// switchesOf lists the modes that a provider can be switched to.
func switchesOf(mode models.CommandKind) []web.Action {
	all := []web.Action{{Do: "offline", Text: "Take offline"}, {Do: "drain", Text: "Drain"},
		{Do: "online", Text: "Bring online"}}
	return slices.DeleteFunc(all, func(a web.Action) bool { return models.CommandKind("provider."+a.Do) == mode })
}

const (
	sampleEvery = time.Second // interval between samples of the providers
	sampleKeep  = 180         // samples per provider that are kept
)

// sample is the state of a provider's counters at a time.
type sample struct {
	at       time.Time
	accepted int64
	rate     float64 // recipients accepted per second
}

// tracker samples all providers, so that a page that opens can show the last
// minutes. All pages and users share one.
type tracker struct {
	operate *operate.Installation
	begun   atomic.Int64 // reads of the providers

	mu        sync.Mutex
	shown     int64 // the number of the read that providers is from
	providers []operate.Provider
	err       error
	history   map[string][]sample

	conditions []condition.Condition
}

// run samples until ctx ends.
func (t *tracker) run(ctx context.Context) {
	for now := range models.Every(ctx, sampleEvery) {
		t.sample(ctx, now)
	}
}

func (t *tracker) sample(ctx context.Context, now time.Time) {
	n := t.begun.Add(1)
	providers, err := t.operate.Providers(ctx, service.Caller{Operator: true})
	if conditions, err := t.operate.Conditions(ctx); err == nil { // otherwise the next sample has them
		t.mu.Lock()
		t.conditions = conditions
		t.mu.Unlock()
	}
	t.take(n, now, providers, err)
}

// take shows what a read has found, unless it began before one that is shown.
func (t *tracker) take(n int64, now time.Time, providers []operate.Provider, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n < t.shown {
		return
	}
	if t.shown, t.err = n, err; err != nil {
		return
	}
	t.providers = providers
	for i := range providers {
		w := providers[i].Worker
		if w == nil {
			continue
		}
		h := t.history[providers[i].Name]
		if n := len(h); n > 0 && w.Accepted < h[n-1].accepted {
			h = nil // the counters of a worker that stopped are gone
		}
		if h = append(h, sample{at: now, accepted: w.Accepted, rate: providers[i].RateUsed}); len(h) > sampleKeep {
			h = h[len(h)-sampleKeep:]
		}
		t.history[providers[i].Name] = h
	}
}

// refresh reads the providers again, after a command about one of them.
func (t *tracker) refresh(ctx context.Context) {
	n := t.begun.Add(1)
	providers, err := t.operate.Providers(ctx, service.Caller{Operator: true})
	if err == nil { // otherwise the next sample shows it
		t.take(n, time.Now(), providers, nil)
	}
}

// Provider is a provider and its current rate.
type Provider struct {
	operate.Provider
	Info web.Provider
	Rate float64 // recipients per second, over the last seconds
	Hue  int     // number of its colour, from 1
	// Minutes has the messages that it accepted in each minute of the last hour, where a page shows them.
	Minutes []float64

	// Hook is the webhook URL to set at the provider. LacksWebhook reports that the
	// provider accepted mail a while ago and has not sent a verified webhook.
	Hook         string
	LacksWebhook bool
	Refused      *condition.Condition // its webhooks are refused; nil: they are not
}

// Reachable reports whether a provider can reach the webhook URL: it is not one of this machine.
func (a *Provider) Reachable() bool { return strings.HasPrefix(a.Hook, "https://") }

// webhookDue is how long after its first accepted mail a provider without any
// webhook counts as lacksWebhook.
const webhookDue = time.Minute

// lacksWebhook reports whether a provider should have sent a webhook by now and did not.
func lacksWebhook(a *operate.Provider, info *web.Provider, h []sample) bool {
	if !info.Webhooks || !a.LastWebhook.IsZero() {
		return false
	}
	for i := range h {
		if h[i].accepted > 0 {
			return h[len(h)-1].at.Sub(h[i].at) >= webhookDue
		}
	}
	return false
}

// Box is a choice at a provider, and when an event that needs it came in.
type Box struct {
	Label string
	Seen  time.Time // zero: none in the last 30 days
}

// Boxes lists the choices at the provider.
func (a *Provider) Boxes() []Box {
	out := make([]Box, len(a.Info.Boxes))
	for i, b := range a.Info.Boxes {
		out[i].Label = b.Label
		for _, kind := range b.Kinds {
			out[i].Seen = models.LaterOf(out[i].Seen, a.EventsSeen[kind])
		}
	}
	return out
}

// Unseen lists the choices without any event that came in, joined by commas.
func (a *Provider) Unseen() string {
	var out []string
	for _, b := range a.Boxes() {
		if b.Seen.IsZero() {
			out = append(out, b.Label)
		}
	}
	return strings.Join(out, ", ")
}

// UsedShare is the used part of the provider's rate limit in percent, or 0 if it has
// no limit.
func (a *Provider) UsedShare() int {
	if a.Provider.Rate <= 0 {
		return 0
	}
	return min(100, int(100*a.Rate/a.Provider.Rate+.5))
}

// Answers is the usual response time of calls, or 0 if it is not known.
func (a *Provider) Answers() time.Duration {
	return web.MS(a.AnswerMS)
}

// Reported is the time within which 90 % of messages are reported on, or 0 if it is
// not known.
func (a *Provider) Reported() time.Duration {
	return web.MS(a.ReportedMS)
}

// Now returns the newest sample of all providers.
func (p *Pages) Now() ([]Provider, error) {
	t := p.tracker
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err != nil {
		return nil, t.err
	}
	out := make([]Provider, len(t.providers))
	for i := range t.providers {
		a := t.providers[i]
		h := t.history[a.Name]
		out[i] = Provider{
			Provider: a, Info: p.web.Providers.Info(a.Name), Rate: a.RateUsed, Hue: p.web.Providers.Hue(a.Name),
			Hook: p.web.PublicURL() + "/webhooks/" + a.Name,
		}
		out[i].LacksWebhook = lacksWebhook(&a, &out[i].Info, h)
		for k := range t.conditions {
			if c := &t.conditions[k]; c.Kind == condition.WebhooksRefused && c.Provider == a.Name {
				out[i].Refused = c
			}
		}
	}
	return out, nil
}

// flow returns a chart of the messages that each provider accepted per second in the
// last minutes.
func (p *Pages) flow(names []string) chart.Chart {
	t := p.tracker
	t.mu.Lock()
	defer t.mu.Unlock()
	c := chart.Chart{Kind: "area", X: []float64{}, Unit: "per second"}
	var times []time.Time
	for _, h := range t.history {
		if len(h) > len(times) {
			times = times[:0]
			for _, s := range h {
				times = append(times, s.at)
			}
		}
	}
	for _, at := range times {
		c.X = append(c.X, float64(at.UnixMilli())/1000)
	}
	for _, name := range names {
		h := t.history[name]
		values := make([]float64, len(c.X))
		for i := range h {
			at := i + len(c.X) - len(h) // all histories end at the same time
			if at >= 0 {
				values[at] = math.Round(h[i].rate)
			}
		}
		c.Series = append(c.Series, chart.Series{Label: name, Color: p.web.Providers.Colour(name), Values: values})
	}
	return c
}

// askProvider is GET /providers/{name}/{do}, for operators.
func (p *Pages) askProvider(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	name := r.PathValue("name")
	provider := p.web.Providers.Named(name)
	questions := map[string]*web.Question{
		"offline": {Title: "Take " + provider + " offline?", Do: "Take offline", Grave: true, Text: []string{
			"Within one second no new call goes to it, for any user. Messages that it has accepted are still tracked.",
			"Mail that may use only this provider waits until the provider is online again, or until it expires."}},
		"drain": {Title: "Drain " + provider + "?", Do: "Drain", Text: []string{
			"New mail goes through the other providers. Only mail that no other provider may send still goes " +
				"through this one."}},
		"online": {
			Title: "Bring " + provider + " online?",
			Do:    "Bring online",
			Text:  []string{"It gets its share of all mail again."},
		},
		"probe": {Title: "Test " + provider + " now?", Do: "Test now", Text: []string{
			"This clears its failures, for example after you renewed its key. One message tests it. If that " +
				"message fails, the provider is suspended again.",
			"Mail that waits for it is tried at once, urgent mail first.",
			"If the outcome of the test message is unknown, that message may be held for review."}},
	}
	q := questions[r.PathValue("do")]
	if q == nil || !p.web.Providers.Has(name) {
		return web.ErrNoPage
	}
	q.Back = "/providers"
	return p.web.Ask(w, r, v, q)
}

// switched shows the providers after a command.
func (p *Pages) switched(w http.ResponseWriter, r *http.Request, _ *web.Visitor, _ *web.Result) error {
	p.tracker.refresh(r.Context()) // the page shows it
	return web.SeeOther(w, r, "/providers")
}
