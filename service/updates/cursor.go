package updates

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"time"

	"github.com/safedelivr/safedelivr/models/feed"
)

// A cursor is opaque to clients. It holds a version, a position, and a checksum that binds it to
// its user.
const (
	cursorVersion = 1
	cursorBody    = 1 + 8 + 4 + 8
	cursorSum     = 6
)

// encode returns the cursor of a position in the feed of a user.
func encode(user string, p feed.Position) string {
	b := append(make([]byte, 0, cursorBody+cursorSum), cursorVersion)
	b = binary.BigEndian.AppendUint64(b, uint64(p.Entry)) //nolint:gosec // it is not negative
	b = binary.BigEndian.AppendUint32(b, uint32(p.Skip))  //nolint:gosec // entries are smaller
	micro := int64(0)
	if !p.Complete.IsZero() {
		micro = p.Complete.UnixMicro()
	}
	b = binary.BigEndian.AppendUint64(b, uint64(micro))
	return base64.RawURLEncoding.EncodeToString(append(b, sumOf(user, b)...))
}

func sumOf(user string, body []byte) []byte {
	sum := sha256.Sum256(append([]byte("updates "+user+" "), body...))
	return sum[:cursorSum]
}

// decode reverses encode.
func decode(user, cursor string) (p feed.Position, ok bool) {
	b, err := base64.RawURLEncoding.Strict().DecodeString(cursor)
	if err != nil || len(b) != cursorBody+cursorSum || b[0] != cursorVersion ||
		string(b[cursorBody:]) != string(sumOf(user, b[:cursorBody])) {
		return p, false
	}
	p.Entry = int(binary.BigEndian.Uint64(b[1:]))                   //nolint:gosec // encode wrote it
	p.Skip = int(binary.BigEndian.Uint32(b[9:]))                    // fits
	if micro := int64(binary.BigEndian.Uint64(b[13:])); micro > 0 { //nolint:gosec // encode wrote it
		p.Complete = time.UnixMicro(micro).UTC()
	}
	return p, true
}
