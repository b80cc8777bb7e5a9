package dashboard

import (
	"encoding/json"
	"fmt"
	"html/template"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// funcs are what templates may call.
var funcs = template.FuncMap{
	"num": num, "share": share, "plural": plural, "when": when, "whenShort": whenShort, "whenClock": whenClock, "whenSecond": whenSecond, "ms": ms, "day": dayWords, "took": took, "rate": rateWords,
	"json": toJSON, "reason": func(r models.Reason) string { return r.Words() }, "short": shortID, "dict": dict,
	"lower": strings.ToLower, "join": strings.Join, "add": func(a, b int) int { return a + b }, "initial": initial, "blocked": func(b models.Block) string { return blockWords(&b) },
	"percent": func(share float64) string { return strconv.FormatFloat(share*100, 'f', 0, 64) + " %" },
}

// num writes a number with a thin space between thousands.
func num(n any) string {
	s := fmt.Sprint(n)
	sign := ""
	if s[0] == '-' {
		sign, s = "−", s[1:]
	}
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "\u202f" + s[i:]
	}
	return sign + s
}

// share is part of whole in percent: never 0 % for something, never 100 % for
// less than all.
func share(part, whole int64) string {
	switch {
	case whole == 0:
		return "–"
	case part == whole:
		return "100 %"
	case part == 0:
		return "0 %"
	}
	p := float64(part) * 100 / float64(whole)
	switch {
	case p < 0.1:
		return "< 0.1 %"
	case p > 99.9:
		return "> 99.9 %"
	}
	return strings.TrimSuffix(strconv.FormatFloat(p, 'f', 1, 64), ".0") + " %"
}

func plural(n int64, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}

// when is a moment, written in UTC; a script puts it into the reader's own time
// zone and leaves UTC to be seen on hover.
func when(t time.Time) template.HTML { return timeTag(t, "2 Jan 2006, 15:04:05 UTC", "full") }

// whenShort is when without the year and the seconds.
func whenShort(t time.Time) template.HTML { return timeTag(t, "2 Jan, 15:04 UTC", "short") }

// whenClock is the time of the day, to a tenth of a second.
func whenClock(t time.Time) template.HTML { return timeTag(t, "15:04:05.0 UTC", "clock") }

// whenSecond is the time of the day, where no more is known than the second.
func whenSecond(t time.Time) template.HTML { return timeTag(t, "15:04:05 UTC", "second") }

func timeTag(t time.Time, layout, how string) template.HTML {
	if t.IsZero() {
		return "never"
	}
	t = t.UTC()
	text := fmt.Sprintf(`<time datetime="%s" title="%s" data-time="%s">%s</time>`,
		t.Format("2006-01-02T15:04:05.000Z"), t.Format("2 Jan 2006, 15:04:05.000 UTC"), how, t.Format(layout))
	return template.HTML(text) //nolint:gosec // numbers and our own words
}

// dayWords writes a day like 2026-01-31 for people.
func dayWords(date string) string {
	t, err := time.Parse(time.DateOnly, date)
	if err != nil {
		return date
	}
	return t.Format("Mon 2 Jan")
}

// took writes a duration in two digits that matter.
func took(d time.Duration) string {
	switch {
	case d < time.Second:
		return strconv.FormatInt(d.Milliseconds(), 10) + " ms"
	case d < 10*time.Second:
		return strconv.FormatFloat(d.Seconds(), 'f', 1, 64) + " s"
	case d < 2*time.Minute:
		return strconv.FormatInt(int64(d.Seconds()), 10) + " s"
	case d < 2*time.Hour:
		return strconv.FormatInt(int64(d.Minutes()), 10) + " min"
	case d < 48*time.Hour:
		return strconv.FormatInt(int64(d.Hours()), 10) + " h"
	}
	return strconv.FormatInt(int64(d.Hours()/24), 10) + " days"
}

// rateWords writes a rate per second.
func rateWords(r float64) string {
	switch {
	case r == 0:
		return "0"
	case r < 10:
		return strings.TrimSuffix(strconv.FormatFloat(r, 'f', 1, 64), ".0")
	}
	return num(int64(math.Round(r)))
}

func toJSON(v any) (string, error) {
	b, err := json.Marshal(v)
	return string(b), err
}

// shortID is the end of an id, which differs between ids of one moment.
func shortID(id models.ID) string {
	s := id.String()
	return s[:8] + "…" + s[24:]
}

func initial(name string) string {
	for _, r := range name {
		return strings.ToUpper(string(r))
	}
	return "?"
}

// dict makes a map of names and values, to hand several to a template.
func dict(pairs ...any) (map[string]any, error) {
	if len(pairs)%2 != 0 {
		return nil, fmt.Errorf("dict: a value is missing")
	}
	out := map[string]any{}
	for i := 0; i < len(pairs); i += 2 {
		name, ok := pairs[i].(string)
		if !ok {
			return nil, fmt.Errorf("dict: %v is no name", pairs[i])
		}
		out[name] = pairs[i+1]
	}
	return out, nil
}
