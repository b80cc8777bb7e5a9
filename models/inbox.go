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

// Witness says that something came under a key, by its digest, and in which post.
type Witness struct {
	Key, Digest string
	Post        ID
}
