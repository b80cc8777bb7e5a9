package dashboard

import (
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// healthWords describes the health of a provider as a predicate, like "is down".
func healthWords(h *telemetry.Health) string {
	switch h.State {
	case telemetry.Healthy:
		return "accepts mail"
	case telemetry.Failing:
		return "is failing"
	case telemetry.Draining:
		return "is being drained"
	case telemetry.Probation:
		return "is recovering: it gets few messages at a time"
	case telemetry.Probing:
		return "is recovering: one message tests it"
	case telemetry.Offline:
		return "was taken offline"
	}
	switch h.Source {
	case telemetry.Rejected:
		return "rejects its key, account or quota"
	case telemetry.RetryAfter:
		return "asked to wait"
	case telemetry.Silence:
		return "accepts mail but sends no delivery events"
	}
	return "is suspended: calls are failing"
}
