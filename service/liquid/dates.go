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

var (
	unixText  = regexp.MustCompile(`^\d{1,11}$`)
	longWidth = regexp.MustCompile(`%[^A-Za-z%]*\d{3}`)
	errDate   = errors.New("a date format has at most 100 characters and no number with more than two digits")
)

// maxUnix is the Unix time of the end of the year 9999.
const maxUnix = 253_402_300_799

// date formats a time. As in the reference, a value without a time, and one that is no time, stay as they are. A whole
// number is a Unix time.
func date(v any, args []any) (any, error) {
	f := "%a, %b %d, %y"
	if len(args) > 0 {
		var err error
		if f, err = textOf(args[0]); err != nil || f == "" {
			return v, err
		}
	}
	if len(f) > 100 || longWidth.MatchString(f) {
		return nil, errDate
	}
	t, err := timeOf(v)
	if err != nil {
		return plain(v), nil //nolint:nilerr // what is no time stays as it is
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
		if v < -maxUnix || v > maxUnix {
			return time.Time{}, errNoTime
		}
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
		if now := strings.ToLower(v); now == "now" || now == "today" {
			return time.Now(), nil
		}
		return values.ParseDate(v)
	}
	return time.Time{}, fmt.Errorf("%w: %T", errNoTime, v)
}
