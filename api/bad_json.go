package api

import (
	"encoding/json"
	"errors"
	"strings"

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
