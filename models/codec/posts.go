package codec

import (
	"encoding/binary"
	"fmt"

	"github.com/safedelivr/safedelivr/models"
)

// formPosts begins the stored form of several posts. The rest is packed.
const formPosts = 'm'

// EncodePosts returns the stored form of the posts of an inbox entry. A single post is
// stored as it is, with its replay key beside it; several are packed together.
func EncodePosts(posts []models.Post) (replay string, body []byte) {
	if len(posts) == 1 {
		return posts[0].Replay, Pack(posts[0].Body)
	}
	b := binary.AppendUvarint(nil, uint64(len(posts)))
	for k := range posts {
		b = appendText(b, posts[k].Replay)
		b = appendText(b, posts[k].Body)
	}
	return "", append([]byte{formPosts}, Pack(b)...)
}

// DecodePosts reverses EncodePosts. Errors: models.ErrInvalid.
func DecodePosts(replay string, raw []byte) ([]models.Post, error) {
	if len(raw) == 0 || raw[0] != formPosts {
		body, err := Unpack(raw)
		return []models.Post{{Body: body, Replay: replay}}, err
	}
	b, err := Unpack(raw[1:])
	if err != nil {
		return nil, err
	}
	d := textDecoder{s: string(b)}
	posts := make([]models.Post, d.count())
	for k := range posts {
		posts[k].Replay = d.text()
		posts[k].Body = []byte(d.text())
	}
	if d.bad || d.s != "" {
		return nil, fmt.Errorf("%w: stored posts are cut off", models.ErrInvalid)
	}
	return posts, nil
}
