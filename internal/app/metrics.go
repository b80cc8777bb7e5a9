package app

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/webhooks"
)

// newRegistry returns what /metrics shows. The parts of the process register their own metrics.
func newRegistry() *prometheus.Registry {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return reg
}

func metricsHandler(reg *prometheus.Registry) http.Handler {
	return promhttp.HandlerFor(reg, promhttp.HandlerOpts{EnableOpenMetrics: true})
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
