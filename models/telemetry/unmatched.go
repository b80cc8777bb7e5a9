package telemetry

import (
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

const (
	// UnmatchedReport is an Unmatched, by worker, or by the begin of a replay.
	UnmatchedReport = "unmatched"
	// UnmatchedTTL is how long the report of a worker is kept that is no longer renewed.
	UnmatchedTTL = 30 * 24 * time.Hour
	// MaxUnmatched is the number of events of a report.
	MaxUnmatched = 500
)

// Unmatched lists events that name no log, and fit none or several.
type Unmatched struct {
	Events []UnmatchedEvent `json:"events,omitempty"` // the newest ones, oldest first
	Solved []models.ID      `json:"solved,omitempty"` // IDs of events that a replay has matched
}

// UnmatchedEvent is an event of a post in the inbox. What it says is only there.
type UnmatchedEvent struct {
	ID       models.ID   `json:"id"` // UnmatchedID
	Post     models.ID   `json:"post"`
	Provider string      `json:"provider"`
	Logs     []models.ID `json:"logs,omitempty"` // that it fits, some of them
}

// UnmatchedID returns the ID of an event of a post: the time of the post, and a hash of the event.
func UnmatchedID(post models.ID, u *models.UnnamedEvent) (id models.ID) {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %q %q %q %q %d", post, u.Event.ID, u.Event.Kind, u.Address, u.MessageID,
		u.Event.At.UnixNano()))
	copy(id[:6], post[:6])
	copy(id[6:], sum[:])
	id[6], id[8] = 0x70|id[6]&0x0f, 0x80|id[8]&0x3f // a UUID of version 7
	return id
}
