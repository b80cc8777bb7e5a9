package main

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/webhooks"
)

// newRegistry is what /metrics shows: the program's own counts are added by
// who counts them.
func newRegistry() *prometheus.Registry {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return reg
}

func metricsHandler(reg *prometheus.Registry) http.Handler {
	return promhttp.HandlerFor(reg, promhttp.HandlerOpts{EnableOpenMetrics: true})
}

// doors counts what came in.
type doors struct {
	hooks   *webhooks.Server // nil without the role
	service *service.Service
}

var (
	postsDesc    = prometheus.NewDesc("safedelivr_webhook_posts_total", "Posts of providers, by what became of them.", []string{"result"}, nil)
	acceptedDesc = prometheus.NewDesc("safedelivr_accepted_recipients_total", "Recipients of batches that were accepted.", []string{"lane"}, nil)
	batchesDesc  = prometheus.NewDesc("safedelivr_accepted_batches_total", "Batches that were accepted.", []string{"lane"}, nil)
)

// Describe implements prometheus.Collector.
func (d *doors) Describe(ch chan<- *prometheus.Desc) {
	ch <- postsDesc
	ch <- acceptedDesc
	ch <- batchesDesc
}

// Collect implements prometheus.Collector.
func (d *doors) Collect(ch chan<- prometheus.Metric) {
	put := func(desc *prometheus.Desc, n int64, label string) {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(n), label)
	}
	if d.hooks != nil {
		taken, refused := d.hooks.Counts()
		put(postsDesc, taken, "taken")
		for code, n := range refused {
			put(postsDesc, n, code)
		}
	}
	for lane, n := range d.service.Tallies() {
		put(batchesDesc, n.Batches, string(lane))
		put(acceptedDesc, n.Recipients, string(lane))
	}
}
