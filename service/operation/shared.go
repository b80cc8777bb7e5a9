package operation

import (
	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
)

// ByID names one thing by the last part of a path. The structs of requests embed these types.
type ByID struct {
	// ID of what the request is about.
	ID string `path:"id"`
}

// Removal names a thing that is removed, and says why.
type Removal struct {
	ByID
	// Reason for the audit trail.
	Why string `query:"why"`
}

// CommandOn is a command about a thing.
type CommandOn struct {
	ByID
	Body client.Reason
}

// None is a request without parameters.
type None struct{}

// Groups of calls that belong to several rooms, and what a command returns.
const (
	TagControl   = "control"
	TagOperation = "operation"
	TagStats     = "stats"

	ResultOfCommand = "The result of the command."
)

// ResultOf returns the result of a command about a thing.
func ResultOf(kind models.CommandKind, name string, changed bool) client.ControlResult {
	return client.ControlResult{Name: name, Command: string(kind), Changed: changed}
}
