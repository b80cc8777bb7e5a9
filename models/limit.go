package models

import (
	"maps"
	"slices"
)

// Limit names something that a user or an API key may have only so much of. The words are
// part of the API.
type Limit string

// The limits of users and API keys.
const (
	RequestsPerSecond Limit = "requests_per_second"
	RequestsAtOnce    Limit = "requests_at_once"
	RecipientsPerHour Limit = "recipients_per_hour"
	RecipientsPerDay  Limit = "recipients_per_day"
	BatchesPerDay     Limit = "batches_per_day"
	SpoolBytes        Limit = "spool_bytes" // of the requests that a process is reading
)

// AllLimits lists the limits in the order in which people read them.
func AllLimits() []Limit {
	return []Limit{
		RequestsPerSecond, RequestsAtOnce, RecipientsPerHour, RecipientsPerDay, BatchesPerDay, SpoolBytes,
	}
}

// Valid reports whether there is such a limit.
func (l Limit) Valid() bool { return slices.Contains(AllLimits(), l) }

// Limits holds the values of limits. 0 means no limit.
type Limits map[Limit]int64

// Over returns the limits of l, and of defaults what l does not set.
func (l Limits) Over(defaults Limits) Limits {
	out := maps.Clone(defaults)
	if out == nil {
		out = Limits{}
	}
	maps.Copy(out, l)
	return out
}
