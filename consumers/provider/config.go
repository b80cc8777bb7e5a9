package provider

import (
	"log/slog"
	"time"

	"github.com/safedelivr/safedelivr/models/settings"
)

// Config has the times by which a provider's health is judged.
type Config struct {
	settings.Times
	settings.Limits
	settings.Pace
	FirstDelay time.Duration // pause after a throttled call that names no time
	Logger     *slog.Logger
}
