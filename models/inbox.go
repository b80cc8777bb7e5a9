package models

import (
	"encoding/binary"
	"fmt"
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

// formPosts begins the stored form of several posts; what follows is packed.
const formPosts = 'm'

// Encode returns the stored form of the posts: a single one as it is, with what
// a replay would carry beside it, several in one piece.
func (i *Inbox) Encode() (replay string, body []byte) {
	if len(i.Posts) == 1 {
		return i.Posts[0].Replay, Pack(i.Posts[0].Body)
	}
	b := binary.AppendUvarint(make([]byte, 0, i.Size()+8*len(i.Posts)+8), uint64(len(i.Posts)))
	for k := range i.Posts {
		b = appendText(b, i.Posts[k].Replay)
		b = appendText(b, i.Posts[k].Body)
	}
	return "", append([]byte{formPosts}, Pack(b)...)
}

// DecodePosts reverses Inbox.Encode.
func DecodePosts(replay string, raw []byte) ([]Post, error) {
	if len(raw) == 0 || raw[0] != formPosts {
		body, err := Unpack(raw)
		return []Post{{Body: body, Replay: replay}}, err
	}
	b, err := Unpack(raw[1:])
	if err != nil {
		return nil, err
	}
	d := textDecoder{s: string(b)}
	posts := make([]Post, d.count())
	for k := range posts {
		posts[k].Replay = d.text()
		posts[k].Body = []byte(d.text())
	}
	if d.bad || d.s != "" {
		return nil, fmt.Errorf("%w: stored posts are cut off", ErrInvalid)
	}
	return posts, nil
}

// Witness says that something came under a key, by its digest, and in which
// entry of the inbox. A key has one group for ever; keys that are witnessed
// together mostly have the same, and are stored together then.
type Witness struct {
	Group, Key, Digest string
	Entry              ID
}
