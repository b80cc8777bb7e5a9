package liquid

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/osteele/liquid/values"
	"github.com/osteele/tuesday"
)

var unixText = regexp.MustCompile(`^\d{1,11}$`)

// date formats a time. As in the reference, a value without a time, and one that is no time, stay as they are. A whole
// number is a Unix time.
func date(v any, format func(string) string) (any, error) {
	f := format("%a, %b %d, %y")
	if len(f) > 100 || longWidth.MatchString(f) {
		return nil, errDate
	}
	t, err := timeOf(v)
	if err != nil {
		return plain(v), nil
	}
	return tuesday.Strftime(f, t)
}

var errNoTime = errors.New("no time")

// timeOf returns the time that a value names.
func timeOf(v any) (time.Time, error) {
	switch v := v.(type) {
	case nil:
		return time.Time{}, errNoTime
	case time.Time:
		return v, nil
	case int:
		return time.Unix(int64(v), 0).UTC(), nil
	case string:
		v = strings.TrimSpace(v)
		if v == "" {
			return time.Time{}, errNoTime
		}
		if unixText.MatchString(v) {
			n, err := strconv.ParseInt(v, 10, 64)
			return time.Unix(n, 0).UTC(), err
		}
		return values.ParseDate(v)
	}
	return time.Time{}, fmt.Errorf("%w: %T", errNoTime, v)
}
