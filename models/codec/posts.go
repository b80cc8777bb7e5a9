package codec

import "github.com/safedelivr/safedelivr/models"

// formPosts begins the stored form of several posts. The rest is packed.
const formPosts = 'm'

// EncodePosts returns the stored form of the posts of an inbox entry. A single post is
// stored as it is, with its replay key beside it; several are packed together.
func EncodePosts(posts []models.Post) (replay string, body []byte) {
	if len(posts) == 1 {
		return posts[0].Replay, Pack(posts[0].Body)
	}
	var f fields
	list(&f, &posts, postFields)
	return "", append([]byte{formPosts}, Pack(f.b)...)
}

// DecodePosts reverses EncodePosts. Errors: models.ErrInvalid.
func DecodePosts(replay string, raw []byte) (posts []models.Post, err error) {
	if len(raw) == 0 || raw[0] != formPosts {
		body, err := Unpack(raw)
		return []models.Post{{Body: body, Replay: replay}}, err
	}
	b, err := Unpack(raw[1:])
	if err == nil {
		err = readAll(b, func(f *fields) { list(f, &posts, postFields) })
	}
	return posts, err
}

func postFields(f *fields, p *models.Post) {
	text(f, &p.Replay)
	text(f, &p.Body)
}
