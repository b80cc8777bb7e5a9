package models

import "time"

// Inbox is one webhook post as it came in: verified, stored raw.
type Inbox struct {
	ID      ID // NewInboxID of the time of arrival
	Account string
	Body    []byte
	Replay  string // what a replay would carry again (Mailgun's token); empty: nothing
}

// Received is the time of arrival.
func (i *Inbox) Received() time.Time { return i.ID.Time() }

// HeardReport is the kind of report in which the door for webhooks writes down,
// by account, when a verified post came last: a time as JSON.
const HeardReport = "heard"

// HeardKept is how long it is kept.
const HeardKept = 400 * 24 * time.Hour

// GapReport is the kind of report in which the door for webhooks writes down
// when it was shut, so that what was reported meanwhile is looked up.
const GapReport = "gap"

// GapKept is how long it is kept at most.
const GapKept = 30 * 24 * time.Hour

// Gap is a time in which posts of providers may have been lost.
type Gap struct {
	From  time.Time `json:"from"`
	To    time.Time `json:"to"`
	Asked int       `json:"asked,omitempty"` // how often it was looked up
}
