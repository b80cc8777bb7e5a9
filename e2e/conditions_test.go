package e2e

import (
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/internal/testkit"
	"github.com/safedelivr/safedelivr/lab/simulator"
	"github.com/safedelivr/safedelivr/models/condition"
)

// seen asks each place for what it shows of a condition.
type seen struct {
	*rig
	browser *http.Client
	metrics string // address
	serving *process
}

// page returns what a URL answers.
func (s *seen) page(url string) string {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, url, http.NoBody)
	require.NoError(s.t, err)
	resp, err := s.browser.Do(r)
	require.NoError(s.t, err)
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	require.NoError(s.t, err)
	return string(text)
}

// at returns what a place shows now.
func (s *seen) at(place condition.Place) string {
	s.t.Helper()
	base := "http://" + s.addr
	switch place {
	case condition.Overview:
		return s.page(base + "/")
	case condition.Providers:
		return s.page(base + "/providers")
	case condition.Settings:
		return s.page(base + "/settings/webhooks")
	case condition.Operations:
		return s.page(base + "/operations")
	case condition.ProviderList:
		return s.command("provider", "list")
	case condition.Health:
		return s.command("health") + s.page(base+"/readyz")
	case condition.Notice:
		return s.command("updates", "--installation")
	case condition.Log:
		return s.serving.out.String()
	case condition.Metric:
		return s.page("http://" + s.metrics + "/metrics")
	case condition.Alert:
		text, err := os.ReadFile("../deploy/prometheus/alerts.yaml") // its tests are those of promtool
		require.NoError(s.t, err)
		return string(text)
	}
	s.t.Fatal(place)
	return ""
}

// words are what each place shows of a condition of a kind.
var words = map[condition.Kind]map[condition.Place]string{
	condition.NoProvider: {
		condition.Overview:     "No provider accepts mail",
		condition.Providers:    "Failing",
		condition.Operations:   "No provider accepts mail",
		condition.ProviderList: "failing",
		condition.Health:       "no provider accepts mail; mail waits",
		condition.Notice:       "sending.stopped",
		condition.Log:          "sending.stopped",
		condition.Metric:       `safedelivr_condition{kind="no_provider",provider=""} 1`,
		condition.Alert:        "SafedelivrNoProvider",
	},
	condition.DiskReserve: {
		condition.Overview:   "and the reserve is",
		condition.Operations: "and the reserve is",
		condition.Health:     "the reserve is",
		condition.Notice:     "acceptance.stopped",
		condition.Log:        "below limits.disk_reserve",
		condition.Metric:     `safedelivr_condition{kind="disk_reserve",provider=""} 1`,
		condition.Alert:      "SafedelivrDiskReserve",
	},
	condition.NoBroker: {
		condition.Overview:   "The broker takes no messages",
		condition.Operations: "a majority of the nodes of RabbitMQ",
		condition.Health:     "mail is sent up to a minute late",
		condition.Notice:     "broker.lost",
		condition.Log:        "broker.lost",
		condition.Metric:     `safedelivr_condition{kind="no_broker",provider=""} 1`,
		condition.Alert:      "SafedelivrNoBroker",
	},
	condition.NoNotices: {
		condition.Overview:   "Outages are not reported to operators",
		condition.Operations: "Outages are not reported to operators",
		condition.Health:     "no endpoint reports outages to operators",
		condition.Log:        "Outages are not reported to operators",
		condition.Metric:     `safedelivr_condition{kind="no_notices",provider=""} 1`,
	},
	condition.WebhooksRefused: {
		condition.Overview:     "Webhooks of mg are refused: wrong key",
		condition.Providers:    "Webhooks of mg are refused: wrong key",
		condition.Settings:     ">Refused<",
		condition.Operations:   "SAFEDELIVR_PROVIDERS_MG_WEBHOOK_KEY",
		condition.ProviderList: "refused since",
		condition.Health:       "webhooks of mg are refused: wrong key",
		condition.Notice:       "webhooks.refused",
		condition.Log:          "webhooks.refused",
		condition.Metric:       `safedelivr_condition{kind="webhooks_refused",provider="mg"} 1`,
		condition.Alert:        "SafedelivrWebhooksRefused",
	},
}

// TestConditions provokes each kind of condition, and looks at each place that the table of docs/operating.md names. A
// process without a worker needs a broker: see TestNoWorkerIsShown of the dashboard.
func TestConditions(t *testing.T) {
	for kind, provoke := range map[condition.Kind]func(*seen) []string{
		condition.NoProvider: func(s *seen) []string {
			for _, name := range []string{"sg", "mg"} {
				s.sim.Inject(simulator.Fault{Account: name, Mode: simulator.ModeStatus, Status: http.StatusServiceUnavailable})
			}
			return nil
		},
		condition.DiskReserve: func(*seen) []string {
			return []string{"SAFEDELIVR_LIMITS_DISK_RESERVE=" + strconv.Itoa(1<<60)}
		},
		condition.NoBroker: func(s *seen) []string {
			return []string{"SAFEDELIVR_AMQP_URL=amqp://guest:guest@" + freeAddr(s.t) + "/"}
		},
		condition.NoNotices: func(*seen) []string { return nil },
		condition.WebhooksRefused: func(s *seen) []string {
			s.sim.Inject(simulator.Fault{Account: "mg", Mode: simulator.ModeBadSignature})
			return nil
		},
	} {
		t.Run(string(kind), func(t *testing.T) {
			s := &seen{rig: newRig(t, testkit.Embedded(), simulator.Options{}), metrics: freeAddr(t)}
			more := append(provoke(s), "SAFEDELIVR_METRICS_LISTEN="+s.metrics, "SAFEDELIVR_LOG=warn")
			s.serving = s.start(s.addr, more, "serve")
			jar, err := cookiejar.New(nil)
			require.NoError(t, err)
			s.browser = &http.Client{Jar: jar}
			link, err := url.Parse(strings.TrimSpace(s.command("login")))
			require.NoError(t, err)
			resp, err := s.browser.PostForm("http://"+s.addr+"/login/link", link.Query()) //nolint:noctx // a test
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			if kind != condition.DiskReserve {
				s.post(mail{n: 20})
			}
			require.Len(t, words[kind], len(condition.Shown[kind]))
			for _, place := range condition.Shown[kind] {
				want := words[kind][place]
				require.NotEmpty(t, want, place)
				text := ""
				require.Eventually(t, func() bool {
					text = s.at(place)
					return strings.Contains(text, want)
				}, testkit.Patience, 200*time.Millisecond, "%s does not show %q", place, want)
			}
		})
	}
}
