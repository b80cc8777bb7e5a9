package cluster

import (
	"log/slog"
	"time"

	"github.com/safedelivr/safedelivr/models/settings"

	"github.com/safedelivr/safedelivr/consumers/provider"
	"github.com/safedelivr/safedelivr/models"
)

// health has the times by which the providers of these tests are judged.
var health = provider.Config{
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

// memberConfig configures a worker of a cluster that beats once a second.
func memberConfig(worker string) Config {
	return Config{
		Worker:    worker,
		Life:      models.NewUserID(),
		Started:   time.Now().UTC(),
		Heartbeat: time.Second,
		Logger:    slog.New(slog.DiscardHandler),
	}
}

// idleAdapter is an adapter that is never called.
type idleAdapter struct{ models.Adapter }

func (idleAdapter) MaxRecipients() int { return 1000 }
