package app

import (
	"context"
	"errors"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/safedelivr/safedelivr/config"
	"github.com/safedelivr/safedelivr/service"
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
	case addr != config.DefaultMetrics:
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
}

var (
	postsDesc = prometheus.NewDesc("safedelivr_webhook_posts_total",
		"Webhook posts, by result: taken, or the error code.", []string{"result"}, nil)
	acceptedDesc = prometheus.NewDesc("safedelivr_accepted_recipients_total",
		"Recipients of accepted batches.", []string{"lane"}, nil)
	batchesDesc = prometheus.NewDesc("safedelivr_accepted_batches_total",
		"Accepted batches.", []string{"lane"}, nil)
)

// Describe implements prometheus.Collector.
func (i *intake) Describe(ch chan<- *prometheus.Desc) {
	ch <- postsDesc
	ch <- acceptedDesc
	ch <- batchesDesc
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
	for lane, n := range i.service.Tallies() {
		put(batchesDesc, n.Batches, string(lane))
		put(acceptedDesc, n.Recipients, string(lane))
	}
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
