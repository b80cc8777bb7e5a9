package models

import (
	"time"
)

// Inbox is an entry of the inbox: webhook posts of one provider that came in at
// about the same time, verified, stored raw by one write.
type Inbox struct {
	ID       ID // NewInboxID of the time of arrival
	Provider string
	Posts    []Post
}

// Post is one webhook post.
type Post struct {
	Body   []byte
	Replay string // what Provider.Verify returned: what a replay would carry again
}

// What an entry holds at most, a single larger post excepted: it is read, and
// worked off, in one piece.
const (
	maxPosts      = 100
	maxPostsBytes = 128 << 10
)

// CutPosts returns the posts from the front of the list that make one entry, and
// the rest.
func CutPosts(list []Post) (entry, rest []Post) {
	size := 0
	for n := range list {
		size += list[n].Size()
		if n == maxPosts || n > 0 && size > maxPostsBytes {
			return list[:n:n], list[n:]
		}
	}
	return list, nil
}

// Size is how many bytes the post holds.
func (p *Post) Size() int { return len(p.Body) + len(p.Replay) }

// Received is the time of arrival.
func (i *Inbox) Received() time.Time { return i.ID.Time() }

// Size is how many bytes the posts hold.
func (i *Inbox) Size() int {
	n := 0
	for k := range i.Posts {
		n += i.Posts[k].Size()
	}
	return n
}

// ReplayMark records that content with a digest came under a key, in an entry of the
// inbox. A key always has the same group. Keys that are guarded together mostly share
// a group and are then stored together.
type ReplayMark struct {
	Group, Key, Digest string
	Entry              ID
}
