package parse

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"math"
	"net/mail"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/safedelivr/safedelivr/models"
)

// A Str is a JSON string, number or boolean, as text. Anything else becomes the empty
// string, so that one odd field does not lose the event.
type Str string

// UnmarshalJSON implements json.Unmarshaler.
func (s *Str) UnmarshalJSON(b []byte) error {
	*s = ""
	switch {
	case len(b) == 0 || b[0] == '{' || b[0] == '[' || b[0] == 'n':
	case b[0] == '"':
		if !bytes.ContainsRune(b, '\\') && utf8.Valid(b) { // as nearly all strings are
			*s = Str(b[1 : len(b)-1])
			return nil
		}
		var text string
		if json.Unmarshal(b, &text) == nil {
			*s = Str(text)
		}
	default:
		*s = Str(b)
	}
	return nil
}

// Into decodes raw into v as far as the types fit.
func Into(raw json.RawMessage, v any) {
	if len(raw) > 0 {
		_ = json.Unmarshal(raw, v)
	}
}

// Time reads Unix seconds, with or without a fraction, or a date and time of RFC 3339, RFC 2822 or PostgreSQL. ok is
// false for anything else.
func Time(s Str) (t time.Time, ok bool) {
	text := strings.TrimSpace(string(s))
	f, err := strconv.ParseFloat(text, 64)
	if err == nil {
		if !(f >= 1e8 && f < 1e11) { // 1973 to 5138, so that milliseconds are not taken for seconds
			return time.Time{}, false
		}
		whole, part := math.Modf(f)
		return time.Unix(int64(whole), int64(math.Round(part*1e6))*1000).UTC(), true
	}
	for _, layout := range [...]string{time.RFC3339Nano, "2006-01-02 15:04:05Z07"} {
		if t, err = time.Parse(layout, text); err == nil {
			return t.UTC(), true
		}
	}
	t, err = mail.ParseDate(text)
	return t.UTC(), err == nil
}

// MaxAttempt is the highest number of an attempt that Ours accepts.
const MaxAttempt = 1_000_000

// Ours reads the log and the number of the attempt that an adapter gave a mail. why is not
// empty if they are not valid.
func Ours(log, attempt Str) (id models.ID, n int, why string) {
	if log == "" {
		return id, 0, "not a mail of ours (no sd_log)"
	}
	id, err := models.ParseLogID(string(log))
	if err != nil {
		return id, 0, "sd_log is not the id of a log"
	}
	n, err = strconv.Atoi(string(attempt))
	if err != nil || n < 1 || n > MaxAttempt {
		return id, 0, "sd_attempt is not the number of an attempt"
	}
	return id, n, ""
}

// OurTag reads the chunk and the attempt's number from the tag that an adapter gave the mails of a call. why is not
// empty if they are invalid.
func OurTag(tag string) (chunk models.ID, n int, why string) {
	mark := max(strings.LastIndex(tag, TagMark), 0)
	chunk, err := models.ParseID(tag[:mark])
	if err != nil || chunk.Recipient() != 0 {
		return chunk, 0, "not a mail of ours (no tag that names a chunk)"
	}
	n, err = strconv.Atoi(tag[mark+len(TagMark):])
	if err != nil || n < 1 || n > MaxAttempt {
		return chunk, 0, "the tag has no number of an attempt"
	}
	return chunk, n, ""
}

// TagMark is between the chunk and the number of the attempt in a tag.
const TagMark = "-"

// Hash returns an event ID made from the fields of an event that has none.
func Hash(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		h.Write([]byte(strconv.Itoa(len(p))))
		h.Write([]byte{':'})
		h.Write([]byte(p))
	}
	return "h-" + hex.EncodeToString(h.Sum(nil)[:16])
}

var word = regexp.MustCompile(`^[A-Za-z0-9_-]{1,40}$`)

// Word returns s if it is a short name, and "?" otherwise.
func Word(s Str) string {
	if word.MatchString(string(s)) {
		return string(s)
	}
	return "?"
}
