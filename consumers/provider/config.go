package provider

import (
	"log/slog"
	"time"
)

// Config has the times by which a provider's health is judged.
type Config struct {
	Hold         time.Duration // pause after a rejected key or quota
	BreakerOpen  time.Duration // first pause after failed calls
	FirstDelay   time.Duration // pause after a throttled call that names no time
	Heartbeat    time.Duration // how often peers report
	SlowCall     time.Duration // an answer that takes longer, and much longer than elsewhere, counts as a failure
	SilenceLeast time.Duration // minimum time that a provider has to report on mail
	SilencePoll  time.Duration // how often silence is checked
	InboxAge     time.Duration // after which a post that was not processed is late
	Logger       *slog.Logger

	AttachmentMemory int64 // bytes for the attachments of all calls to all providers
}
