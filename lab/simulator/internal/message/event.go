package message

import "time"

// An Event is one stage of all copies of a batch that share an outcome and a
// group. These events happen at the same time.
type Event struct {
	Batch   *Batch
	Due     int64 // Unix nanoseconds
	Outcome Outcome
	Group   uint8
	Stage   uint8 // index in the stages of the outcome
}

// At returns when the event happens.
func (e *Event) At() time.Time { return time.Unix(0, e.Due) }

// Includes reports whether the event happens to the copy c.
func (e *Event) Includes(c *Copy) bool { return c.Outcome == e.Outcome && c.Group == e.Group }
