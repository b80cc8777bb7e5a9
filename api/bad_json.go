package api

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/safedelivr/safedelivr/service"
)

// badJSON returns the error for JSON whose first at bytes are valid. It says what the sender probably did.
func badJSON(at int64, err error) error {
	hint := jsonHint(err.Error())
	p := service.Fail(service.Malformed, "bad_json", "The JSON is not valid after %d bytes: %s.%s", at, err, hint)
	p.Position = &at
	return p
}

// checkJSON returns an error unless a text is one JSON value. before is the number of bytes before it in the body.
func checkJSON(text []byte, before int64) error {
	var v json.RawMessage
	err := json.Unmarshal(text, &v)
	var syntax *json.SyntaxError
	switch {
	case !errors.As(err, &syntax):
		return err
	case int(syntax.Offset) == len(text) && strings.HasPrefix(err.Error(), "unexpected end"):
		return badJSON(before+syntax.Offset, errJSONEnds)
	}
	return badJSON(before+syntax.Offset-1, err)
}

var errJSONEnds = errors.New("the JSON ends unexpectedly")

// jsonHint returns what to do about a mistake that encoding/json describes, with a space before it; "" if it is
// unclear.
func jsonHint(mistake string) string {
	has := func(s string) bool { return strings.Contains(mistake, s) }
	switch {
	case has(`'\''`):
		return ` JSON needs double quotes (") around names and text, not single quotes.`
	case has(`'}' looking for beginning of object key`), has(`']' looking for beginning of value`):
		return " Remove the comma before it."
	case has("looking for beginning of object key"), strings.HasSuffix(mistake, "'"): // nothing is said of the first name
		return ` Put the name in double quotes (").`
	case has("looking for beginning of value"):
		return ` Put text in double quotes ("); only numbers, true, false and null have none.`
	case has("in string literal"):
		return ` A double quote (") is missing before it, or it must be escaped: a line break is \n.`
	case has("after object key:value pair"), has("after array element"):
		return ` A comma is missing before it, or a double quote (") inside of a text must be escaped: \".`
	case has("after object key"):
		return ` A colon is missing before it, or a double quote (").`
	}
	return ""
}

// jsonWait is how long a refusal waits for the beginning of a body, to say whether it looks like JSON.
const jsonWait = time.Second

// wrongType returns the error for a body of a type that the path does not take. as has the types of JSON that it takes,
// by the first byte of the body; detail says all types.
func wrongType(c *gin.Context, body io.Reader, as map[byte]string, detail string) error {
	_ = http.NewResponseController(c.Writer).SetReadDeadline(time.Now().Add(jsonWait)) // a recorder in a test has none
	if e := looksLikeJSON(firstByte(bufio.NewReader(body)), as); e != nil {
		return e
	}
	return service.Fail(service.Unsupported, "wrong_type", detail)
}

// looksLikeJSON returns the error for a body that begins like JSON and has another type; nil: it begins otherwise.
func looksLikeJSON(first byte, as map[byte]string) error {
	if as[first] == "" {
		return nil
	}
	return service.Fail(service.Unsupported, "wrong_type",
		"The body looks like JSON. Set the header Content-Type: "+as[first]+".")
}

// firstByte returns the first byte of a body behind a byte order mark and white space. It returns 0 if there is none in
// the buffer of r, or in time. It discards nothing.
func firstByte(r *bufio.Reader) byte {
	for at := 0; ; at++ {
		head, _ := r.Peek(at + 1) // a reader that fails says so again
		if len(head) <= at {
			return 0
		}
		inMark := at < len(byteOrderMark) && head[at] == byteOrderMark[at]
		if !inMark && strings.IndexByte(jsonSpace, head[at]) < 0 {
			return head[at]
		}
	}
}
