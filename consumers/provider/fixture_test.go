package provider

import (
	"log/slog"
	"time"

	"github.com/safedelivr/safedelivr/models/settings"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/control"
)

// defaultConfig has the times of a production worker.
func defaultConfig() *Config {
	return &Config{
		Times: settings.Times{
			Hold:        5 * time.Minute,
			BreakerOpen: 5 * time.Second,
			Silence:     time.Minute,
		},
		Pace: settings.Pace{
			Heartbeat:   time.Second,
			SlowCall:    10 * time.Second,
			SilencePoll: 5 * time.Second,
			InboxAge:    30 * time.Second,
		},
		FirstDelay: time.Second,
		Logger:     slog.New(slog.DiscardHandler),
	}
}

// testConfig has short times.
func testConfig() *Config {
	cfg := defaultConfig()
	cfg.Hold = 100 * time.Millisecond
	cfg.BreakerOpen = 50 * time.Millisecond
	cfg.FirstDelay = 10 * time.Millisecond
	cfg.Heartbeat = 50 * time.Millisecond
	cfg.InboxAge = 200 * time.Millisecond
	return cfg
}

// state returns the state that this worker reports.
func (h *Health) state() string { return h.Report(time.Now(), control.ProviderMode{}).State }

// idleAdapter is an adapter that is never called.
type idleAdapter struct{ models.Adapter }

func (idleAdapter) MaxRecipients() int { return 1000 }

// alone is a worker that has no peers.
type alone struct{}

func (alone) Share() (Share, bool) { return Share{Size: 1}, true }

func (alone) MaxCalls(_ string, n int, _ Share) int { return n }

// notCalled is the outcome of a call that was not made.
func notCalled() models.Part {
	return models.Part{
		Class:      models.Unavailable,
		Recipients: models.SetOf(1),
		Reason:     models.StartByPassed,
		Text:       "too late",
	}
}
