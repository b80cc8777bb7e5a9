package telemetry

import (
	"strings"

	"github.com/safedelivr/safedelivr/models"
)

// SeenKind is a kind of event of a provider. Its text is the name of a report of the kind EventSeen.
type SeenKind struct {
	Provider string
	Kind     models.EventKind
}

// String returns the name of the report.
func (k SeenKind) String() string { return k.Provider + "/" + string(k.Kind) }

// ParseSeenKind reverses SeenKind.String.
func ParseSeenKind(name string) SeenKind {
	provider, kind, _ := strings.Cut(name, "/")
	return SeenKind{provider, models.EventKind(kind)}
}
