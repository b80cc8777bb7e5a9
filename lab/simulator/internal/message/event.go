package message

import "time"

// A Stage is one event in the life of a copy, in the provider's own words. The
// fields that depend on the outcome alone are ready JSON.
type Stage struct {
	After  time.Duration // simulated time since acceptance
	Event  string        // value of the event field
	Kind   string        // SendGrid: kind within sg_event_id; Mailgun: webhook type, "" = none
	Fields string        // further JSON members: "a":1,"b":"c"
	Quiet  bool          // the event happens, but its webhook is lost
	Bare   bool          // SendGrid: without sg_message_id and custom args (asynchronous bounce)
	Late   bool          // Mailgun: flags.is-delayed-bounce
}

// Stages are the events of a copy by its outcome.
type Stages [OutcomeCount][]Stage

// An Event is one stage of all copies of a batch that share an outcome and a
// group. These events happen at the same time.
type Event struct {
	Batch   *Batch
	Due     int64 // Unix nanoseconds
	Outcome Outcome
	Group   uint8
	Stage   uint8 // index in Stages
}

// At returns when the event happens.
func (e *Event) At() time.Time { return time.Unix(0, e.Due) }

// Includes reports whether the event happens to the copy c.
func (e *Event) Includes(c *Copy) bool { return c.Outcome == e.Outcome && c.Group == e.Group }
