package app

import (
	"context"
	"errors"
	"net/http"
	"net/http/pprof"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/safedelivr/safedelivr/config"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/submission"
	"github.com/safedelivr/safedelivr/webhooks"
)

// newRegistry returns what /metrics shows. The parts of the process register their own metrics.
func newRegistry() *prometheus.Registry {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return reg
}

// listenMetrics opens the listener of the metrics. If another process has the default address, this one serves none.
func (a *App) listenMetrics(ctx context.Context) error {
	addr := a.cfg.Metrics.Listen
	if addr == "off" {
		return nil
	}
	l, err := listenOn(ctx, a.cfg, "metrics.listen", addr)
	switch {
	case err == nil:
		a.metricsListener = l
	case addr != config.Defaults().Metrics.Listen:
		return err
	default:
		a.log.Warn("metrics are not served; set SAFEDELIVR_METRICS_LISTEN to a free address, or to off", "err", err)
	}
	return nil
}

// serveMetrics serves the metrics, and profiles if they are configured, until ctx ends.
func (a *App) serveMetrics(ctx context.Context) {
	if a.metricsListener == nil {
		return
	}
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(a.metrics, promhttp.HandlerOpts{EnableOpenMetrics: true}))
	if a.cfg.Metrics.Pprof {
		mux.HandleFunc("/debug/pprof/", pprof.Index)
		mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	}
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(a.metricsListener); !errors.Is(err, http.ErrServerClosed) {
		a.log.Error("metrics are no longer served", "err", err)
	}
}

// intake counts accepted batches and received webhooks.
type intake struct {
	hooks   *webhooks.Server // nil without the role
	service *service.Service
	mail    *submission.Server // nil: there is no SMTP
}

var (
	postsDesc = prometheus.NewDesc("safedelivr_webhook_posts_total",
		"Webhook posts, by result: taken, or the error code.", []string{"result"}, nil)
	messagesDesc = prometheus.NewDesc("safedelivr_smtp_messages_total",
		"Messages by SMTP, by the code of the reply.", []string{"reply"}, nil)
	connectionsDesc = prometheus.NewDesc("safedelivr_smtp_connections",
		"Open connections of SMTP.", nil, nil)
	acceptedDesc = prometheus.NewDesc("safedelivr_accepted_recipients_total",
		"Recipients of accepted batches.", []string{"lane"}, nil)
	batchesDesc = prometheus.NewDesc("safedelivr_accepted_batches_total",
		"Accepted batches.", []string{"lane"}, nil)
	waitingDesc = prometheus.NewDesc("safedelivr_waiting_recipients",
		"Recipients whose mail waits here, by what it waits for (the codes of waits in the API). "+
			"Of much mail, the oldest and the newest batches are counted.", []string{"lane", "reason"}, nil)
	oldestDesc = prometheus.NewDesc("safedelivr_waiting_oldest_seconds",
		"How long the oldest mail has waited here; 0: its time has not come.",
		[]string{"lane", "reason"}, nil)
	wrongDesc = prometheus.NewDesc("safedelivr_condition",
		"1 while something is wrong: no_worker, no_provider, disk_reserve, no_broker, webhooks_refused or no_notices.",
		[]string{"kind", "provider"}, nil)
)

// Describe implements prometheus.Collector.
func (i *intake) Describe(ch chan<- *prometheus.Desc) {
	ch <- postsDesc
	ch <- messagesDesc
	ch <- connectionsDesc
	ch <- acceptedDesc
	ch <- batchesDesc
	ch <- waitingDesc
	ch <- oldestDesc
	ch <- wrongDesc
}

// Collect implements prometheus.Collector.
func (i *intake) Collect(ch chan<- prometheus.Metric) {
	put := func(desc *prometheus.Desc, n int64, label string) {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(n), label)
	}
	if i.hooks != nil {
		taken, refused := i.hooks.Counts()
		put(postsDesc, taken, "taken")
		for code, n := range refused {
			put(postsDesc, n, code)
		}
	}
	if i.mail != nil {
		for code, n := range i.mail.Replies() {
			put(messagesDesc, n, strconv.Itoa(code))
		}
		ch <- prometheus.MustNewConstMetric(connectionsDesc, prometheus.GaugeValue, float64(i.mail.Connections()))
	}
	for lane, n := range i.service.Tallies() {
		put(batchesDesc, n.Batches, string(lane))
		put(acceptedDesc, n.Recipients, string(lane))
	}
	i.collectTrouble(ch)
}

// collectTime is how long the store may take for what is read on request.
const collectTime = 5 * time.Second

// collectTrouble collects what waits and what is wrong.
func (i *intake) collectTrouble(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), collectTime)
	defer cancel()
	put := func(desc *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, v, labels...)
	}
	if b, err := i.service.Mail.Backlog(ctx, service.Caller{Operator: true}); err == nil {
		for key, line := range b.ByReason() {
			put(waitingDesc, float64(line.Recipients), string(key.Lane), string(key.Code))
			age := 0.0
			if !line.Since.IsZero() {
				age = max(b.At.Sub(line.Since).Seconds(), 0)
			}
			put(oldestDesc, age, string(key.Lane), string(key.Code))
		}
	}
	cs, err := i.service.Operate.Conditions(ctx)
	if err != nil {
		return
	}
	seen := map[string]bool{}
	for k := range cs {
		if key := string(cs[k].Kind) + " " + cs[k].Provider; !seen[key] { // one disk is enough
			seen[key] = true
			put(wrongDesc, 1, string(cs[k].Kind), cs[k].Provider)
		}
	}
}

// acceptTimes counts how long accepted batches took, from a complete request to the last write.
func acceptTimes() *prometheus.HistogramVec {
	times := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: "safedelivr",
		Name:      "accept_seconds",
		Help:      "Time from a complete request to the last write of its batch, for accepted batches.",
		Buckets:   []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
	}, []string{"lane"})
	for _, lane := range []models.Lane{models.Urgent, models.Bulk} {
		times.WithLabelValues(string(lane)) // it has a zero from the start, because the first increment is no increase
	}
	return times
}

// diskMetrics returns the free space of the disk of a folder, and the space that is kept free there.
func diskMetrics(dir string, reserve int64) []prometheus.Collector {
	return []prometheus.Collector{
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Namespace: "safedelivr",
			Name:      "disk_free_bytes",
			Help:      "Free space of the disk of the data folder; -1: not known.",
		}, func() float64 {
			free, err := freeSpace(dir)
			if err != nil {
				return -1
			}
			return float64(free)
		}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Namespace: "safedelivr",
			Name:      "disk_reserve_bytes",
			Help:      "Free space below which batches are refused; 0: none.",
		}, func() float64 { return float64(reserve) }),
	}
}
