package consumers

import (
	"cmp"
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/safedelivr/safedelivr/consumers/dispatch"
	"github.com/safedelivr/safedelivr/consumers/endpoints"
	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/consumers/retention"
	"github.com/safedelivr/safedelivr/consumers/rollup"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// metrics holds the metrics that this worker counts. No label holds an address or an id.
type metrics struct {
	attempts   *prometheus.CounterVec   // provider, class
	recipients *prometheus.CounterVec   // provider, class
	calls      *prometheus.HistogramVec // provider
	handed     *prometheus.HistogramVec // provider, lane
	delivered  *prometheus.HistogramVec // provider
	changes    *prometheus.CounterVec   // state, reason
	events     *prometheus.CounterVec   // provider, event
	refused    *prometheus.CounterVec   // provider, why
	posts      *prometheus.CounterVec   // class
	joined     *prometheus.CounterVec   // provider
	unlisted   *prometheus.CounterVec   // provider
	doubles    prometheus.Counter

	doubled, difference prometheus.Gauge
	unknown             *prometheus.GaugeVec
	listsRead           *prometheus.GaugeVec // provider
}

// seconds has the bounds of histograms, from a quick call to a delivery that was deferred
// for hours.
var seconds = []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200, 43200}

// newMetrics returns metrics with a zero for each provider, because without it the first
// increment is no increase.
func newMetrics(ps *provider.Set) *metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "safedelivr", Name: name, Help: help}, labels)
	}
	histogram := func(name, help string, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(
			prometheus.HistogramOpts{Namespace: "safedelivr", Name: name, Help: help, Buckets: seconds},
			labels,
		)
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "safedelivr", Name: name, Help: help})
	}
	m := &metrics{
		attempts: counter(
			"attempts_total",
			"Provider calls by the class of their answer; accepted if it accepts any recipient. "+
				"The rate(), summed over the classes, is how much of the limit of calls is used.",
			"provider",
			"class",
		),
		recipients: counter(
			"attempt_recipients_total",
			"Recipients of provider calls by the class of their answer. "+
				"The rate(), summed over the classes, is how much of the limit of recipients is used.",
			"provider",
			"class",
		),
		calls: histogram("call_duration_seconds", "Duration of provider calls.", "provider"),
		handed: histogram(
			"accept_to_provider_seconds",
			"Time from the acceptance of a batch to the first call for its recipients, once per call.",
			"provider",
			"lane",
		),
		delivered: histogram(
			"accept_to_delivered_seconds",
			"Time from the acceptance of a batch to a delivery that its provider reports.",
			"provider",
		),
		changes: counter(
			"log_state_changes_total",
			"Logs that reached a final state, by reason. A repeated event is not counted again, unless it is very late.",
			"state",
			"reason",
		),
		events: counter(
			"events_total",
			"Events of providers that were taken. A repeated event is not counted again, unless it is very late.",
			"provider",
			"event",
		),
		refused: counter("events_refused_total", "Events that were refused or skipped.", "provider", "why"),
		posts: counter("endpoint_posts_total", "Posts of updates to the endpoints of users, by the class of their answer.",
			"class"),
		joined: counter("provider_lists_joined_total",
			"Entries of the suppression list of a provider that became suppressions here.", "provider"),
		unlisted: counter("provider_lists_errors_total",
			"Suppression lists of a provider that could not be read. A key that may read none is no error.", "provider"),
		listsRead: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: "safedelivr",
			Name:      "provider_lists_read_timestamp_seconds",
			Help: "When the suppression lists of a provider were last read without an error; " +
				"absent: never, or the provider has none.",
		}, []string{"provider"}),
		doubles: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: "safedelivr",
			Name:      "possible_duplicates_total",
			Help:      "Recipients that were sent to again while the outcome of an earlier attempt was unknown.",
		}),
		doubled: gauge(
			"doubled_deliveries",
			"Recipients of the last 100 days that are known to have received more than one copy.",
		),
		difference: gauge(
			"conservation_difference",
			"Sums that have differed from their recount for a minute without a change. It must be 0.",
		),
		unknown: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: "safedelivr",
			Name:      "unknown_outcomes",
			Help: "Recipients of the last 100 days with an unknown outcome: " +
				"waiting for an answer or for evidence, or held for a decision.",
		}, []string{"state"}),
	}
	for _, a := range ps.All() {
		for _, class := range models.Classes {
			m.attempts.WithLabelValues(a.Name, string(class))
			m.recipients.WithLabelValues(a.Name, string(class))
		}
		for _, kind := range models.EventKinds {
			m.events.WithLabelValues(a.Name, string(kind))
		}
		m.joined.WithLabelValues(a.Name)
		m.unlisted.WithLabelValues(a.Name)
	}
	m.changes.WithLabelValues(string(models.Success), "")
	for _, class := range endpoints.Classes {
		m.posts.WithLabelValues(string(class))
	}
	return m
}

// register registers the metrics, and s for those that are read on request.
func (m *metrics) register(reg prometheus.Registerer, s *scrape) {
	reg.MustRegister(m.attempts, m.recipients, m.calls, m.handed, m.delivered, m.changes, m.events, m.refused, m.posts,
		m.doubles, m.unknown, m.doubled, m.difference, m.joined, m.unlisted, m.listsRead, s)
}

// observer counts calls and events in the metrics, the history and the flows.
type observer struct {
	metrics *metrics
	history *retention.History
	flows   *provider.Flows
}

// Called implements dispatch.Observer.
func (o *observer) Called(p *provider.Provider, c *dispatch.Chunk, call dispatch.Call) {
	o.metrics.called(p.Name, c.Batch, call)
	o.history.Called(p.Name, call.Took, call.Parts)
	for i := range call.Parts {
		if call.Parts[i].Class == models.Accepted && !call.Parts[i].Final {
			o.flows.Add(p.Name, call.Entry.At, int64(call.Parts[i].Recipients.Len()), 0)
		}
	}
}

// Ended implements dispatch.Observer.
func (o *observer) Ended(entry *models.Entry) { o.metrics.ended(entry) }

// EventTaken implements events.Observer.
func (o *observer) EventTaken(ev *models.Event, of *models.Entry, accepted time.Time) {
	o.metrics.event(ev, accepted)
	o.history.Event(ev, of)
}

// EventRefused implements events.Observer.
func (o *observer) EventRefused(provider, why string) {
	o.metrics.refused.WithLabelValues(provider, why).Inc()
}

// called counts a provider call and its answer.
func (m *metrics) called(name string, b *models.Batch, call dispatch.Call) {
	entry, parts := call.Entry, call.Parts
	m.attempts.WithLabelValues(name, cmp.Or(dispatch.Refusal(parts), string(models.Accepted))).Inc()
	m.calls.WithLabelValues(name).Observe(call.Took.Seconds())
	for i := range parts {
		n := float64(parts[i].Recipients.Len())
		m.recipients.WithLabelValues(name, string(parts[i].Class)).Add(n)
		if parts[i].Final {
			m.changes.WithLabelValues(string(models.Success), string(models.Unconfirmed)).Add(n)
		}
		if reason := parts[i].Ends(); reason != "" { // the answer is final: no ending is appended
			m.changes.WithLabelValues(string(models.Failed), string(reason)).Add(n)
		}
	}
	if entry.MayDouble {
		m.doubles.Add(float64(entry.Recipients.Len()))
	}
	if call.First {
		m.handed.WithLabelValues(name, string(b.Lane)).Observe(entry.At.Sub(b.Created()).Seconds())
	}
}

// event counts an event that was taken.
func (m *metrics) event(ev *models.Event, accepted time.Time) {
	m.events.WithLabelValues(ev.Provider, string(ev.Kind)).Inc()
	switch {
	case ev.Kind == models.Delivered:
		m.changes.WithLabelValues(string(models.Success), "").Inc()
		m.delivered.WithLabelValues(ev.Provider).Observe(telemetry.DeliveryTime(ev.At, accepted, time.Now()).Seconds())
	case ev.Kind.Failure() && ev.Reason.Hard():
		m.changes.WithLabelValues(string(models.Failed), string(ev.Reason)).Inc()
	}
}

// ListsJoined implements lists.Observer.
func (m *metrics) ListsJoined(provider string, n int) {
	m.joined.WithLabelValues(provider).Add(float64(n))
}

// ListsFailed implements lists.Observer.
func (m *metrics) ListsFailed(provider string) { m.unlisted.WithLabelValues(provider).Inc() }

// ListsRead implements lists.Observer.
func (m *metrics) ListsRead(provider string, begun time.Time) {
	if !begun.IsZero() {
		m.listsRead.WithLabelValues(provider).Set(float64(begun.Unix()))
	}
}

// ended counts an ending or a cancellation.
func (m *metrics) ended(entry *models.Entry) {
	state := models.Failed
	if entry.Kind == models.Cancel {
		state = models.Cancelled
	}
	m.changes.WithLabelValues(string(state), string(entry.Reason)).Add(float64(entry.Recipients.Len()))
}

// scrape collects the metrics that are read on request.
type scrape struct{ e *Engine }

var (
	depthDesc = prometheus.NewDesc(
		"safedelivr_queue_messages",
		"Messages in a queue.",
		[]string{"kind", "provider", "lane", "state"},
		nil,
	)
	oldDesc = prometheus.NewDesc(
		"safedelivr_queue_oldest_seconds",
		"Upper bound on how long the oldest message in a queue has waited; 0: the queue is empty; "+
			"absent: no worker has seen the queue move yet.",
		[]string{"kind", "provider", "lane"},
		nil,
	)
	stateDesc = prometheus.NewDesc(
		"safedelivr_provider_state",
		"1 for the current state of a provider, 0 for the others.",
		[]string{"provider", "state"},
		nil,
	)
	refuseDesc = prometheus.NewDesc(
		"safedelivr_provider_refused_senders",
		"Sender domains that a provider has not verified, and whose mail it refuses now.",
		[]string{"provider"},
		nil,
	)
	limitDesc = prometheus.NewDesc(
		"safedelivr_rate_limit_recipients_per_second",
		"Limit of recipients of a provider for all workers together; absent: no limit.",
		[]string{"provider"},
		nil,
	)
	shareDesc = prometheus.NewDesc(
		"safedelivr_rate_share_recipients_per_second",
		"This worker's share of the limit of recipients of a provider.",
		[]string{"provider"},
		nil,
	)
	callsDesc = prometheus.NewDesc(
		"safedelivr_rate_limit_calls_per_second",
		"Limit of calls of a provider for all workers together; absent: no limit.",
		[]string{"provider"},
		nil,
	)
	mineDesc = prometheus.NewDesc(
		"safedelivr_rate_share_calls_per_second",
		"This worker's share of the limit of calls of a provider.",
		[]string{"provider"},
		nil,
	)
	workDesc = prometheus.NewDesc(
		"safedelivr_workers",
		"Workers that share the limits, as seen by this worker.",
		nil,
		nil,
	)
	inboxDesc = prometheus.NewDesc(
		"safedelivr_inbox_lag_seconds",
		"Age of the oldest unprocessed webhook post in the shards of this worker.",
		nil,
		nil,
	)
	lateDesc = prometheus.NewDesc(
		"safedelivr_agenda_lag_seconds",
		"How late the agenda is read in the shards of this worker.",
		nil,
		nil,
	)
	feedDesc = prometheus.NewDesc(
		"safedelivr_feed_lag_seconds",
		"How long the oldest change that this worker knows of waits to be written to a feed of updates.",
		nil,
		nil,
	)
	postDesc = prometheus.NewDesc(
		"safedelivr_endpoint_lag_seconds",
		"Age of the oldest update that this worker has to post to an endpoint whose newest post was accepted (active) or "+
			"was not (failing).",
		[]string{"state"},
		nil,
	)
)

// Describe implements prometheus.Collector.
func (s *scrape) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		depthDesc, oldDesc, stateDesc, refuseDesc,
		limitDesc, shareDesc, callsDesc, mineDesc,
		workDesc, inboxDesc, lateDesc, feedDesc, postDesc,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (s *scrape) Collect(ch chan<- prometheus.Metric) {
	e := s.e
	put := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	if depths, err := e.broker.Depths(ctx); err == nil {
		for _, d := range depths {
			if age, known := e.ages.Oldest(&d, time.Now()); known {
				put(oldDesc, age.Seconds(), string(d.Queue.Kind), d.Queue.Provider, string(d.Queue.Lane))
			}
			put(depthDesc, float64(d.Ready), string(d.Queue.Kind), d.Queue.Provider, string(d.Queue.Lane), "ready")
			if d.Unacked >= 0 {
				put(depthDesc, float64(d.Unacked), string(d.Queue.Kind), d.Queue.Provider, string(d.Queue.Lane), "unacked")
			}
		}
	}
	share, ok := e.cluster.Share()
	put(workDesc, float64(share.Size))
	for _, a := range e.providers.All() {
		now := e.reporter.HealthOf(a)
		for _, state := range telemetry.HealthStates {
			v := 0.0
			if now.State == state {
				v = 1
			}
			put(stateDesc, v, a.Name, state)
		}
		put(refuseDesc, float64(len(now.Senders)), a.Name)
		limit := func(whole, own *prometheus.Desc, rate float64) {
			if rate <= 0 {
				return
			}
			put(whole, rate, a.Name)
			mine := 0.0
			if ok {
				mine = rate / float64(share.Size)
			}
			put(own, mine, a.Name)
		}
		limit(limitDesc, shareDesc, a.Rate)
		limit(callsDesc, mineDesc, a.CallRate)
	}
	inbox, agenda := e.agenda.Lags(time.Now())
	put(inboxDesc, inbox.Seconds())
	put(lateDesc, agenda.Seconds())
	put(feedDesc, e.rollup.Lag(time.Now()).Seconds())
	active, failing := e.endpoints.Lags(time.Now())
	put(postDesc, active.Seconds(), "active")
	put(postDesc, failing.Seconds(), "failing")
}

// watched sets the gauges to the results of the newest round of checks.
func (m *metrics) watched(w *rollup.Round) {
	m.difference.Set(float64(w.Differences))
	m.doubled.Set(float64(w.Doubled))
	m.unknown.WithLabelValues("waiting").Set(float64(w.Waiting))
	m.unknown.WithLabelValues("held").Set(float64(w.Held))
}
