package web

import (
	"encoding/json"
	"fmt"
	"html/template"
	"math"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/safedelivr/safedelivr/models"
	updates "github.com/safedelivr/safedelivr/models/feed"
)

// funcs are the functions of templates.
var funcs = template.FuncMap{
	"num":        Num,
	"messages":   Messages,
	"calls":      func(n int) string { return Num(n) + " " + Plural(int64(n), "call", "calls") },
	"sentence":   Sentence,
	"share":      func(part, whole int64) template.HTML { return shareTag(share(part, whole)) },
	"ratio":      func(part, whole int64) template.HTML { return shareTag(ratio(part, whole)) },
	"percent":    func(share float64) template.HTML { return shareTag(strconv.FormatFloat(share*100, 'f', 0, 64) + " %") },
	"rate":       rateWords,
	"plural":     Plural,
	"when":       when,
	"whenShort":  whenShort,
	"whenClock":  whenClock,
	"whenSecond": whenSecond,
	"whenIn":     whenIn,
	"excerpt":    Excerpt,
	"day":        dayWords,
	"days":       daysWords,
	"timed":      timed,
	"timedShort": timedShort,
	"amountOf":   amountOf,
	"took":       Took,
	"ms":         MS,
	"json":       ToJSON,
	"pathEscape": url.PathEscape,
	"reason":     func(r models.Reason) string { return r.Words() },
	"short":      shortID,
	"address":    addressTag,
	"initial":    initial,
	"typeWords":  func(name string) string { return updates.Type(name).Words() },
	"dict":       dict,
	"list":       func(values ...string) []string { return values },
	"lower":      strings.ToLower,
	"join":       strings.Join,
	"add":        func(a, b int) int { return a + b },
}

// addressTag shows an address that may break before its @ rather than within a name.
func addressTag(email string) template.HTML {
	at := strings.LastIndexByte(email, '@')
	if at < 0 {
		return template.HTML(template.HTMLEscapeString(email)) //nolint:gosec // it is escaped
	}
	return template.HTML( //nolint:gosec // both are escaped
		template.HTMLEscapeString(email[:at]) + "<wbr>" + template.HTMLEscapeString(email[at:]))
}

// Num formats a number with a thin space between thousands.
func Num(n any) string {
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

// share formats part of whole in percent: 0 % only for 0, 100 % only for all.
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

// LocalShare is share within a text: the space in it makes a script show it in the format of the reader's language.
func LocalShare(part, whole int64) string {
	return strings.Replace(share(part, whole), " %", "\u202f%", 1)
}

// ratio formats part, which may be more than whole, in percent of whole.
func ratio(part, whole int64) string {
	if part <= whole {
		return share(part, whole)
	}
	if whole == 0 {
		return "–"
	}
	return strconv.FormatFloat(Percent(part, whole), 'f', -1, 64) + " %"
}

// shareTag marks a share, so that a script can show it in the format of the reader's language.
func shareTag(share string) template.HTML {
	return template.HTML("<span data-share>" + template.HTMLEscapeString(share) + "</span>") //nolint:gosec // escaped
}

// Plural returns the word for a number of things.
func Plural(n int64, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}

// when formats a time in UTC. A script converts it to the reader's time zone; the
// title keeps UTC.
func when(t time.Time) template.HTML { return timeTag(t, "2 Jan 2006, 15:04:05 UTC", "full") }

// whenShort is like when, without the seconds, and without the year if it is this one.
func whenShort(t time.Time) template.HTML {
	if t.UTC().Year() == time.Now().UTC().Year() {
		return timeTag(t, "2 Jan, 15:04 UTC", "short")
	}
	return timeTag(t, "2 Jan 2006, 15:04 UTC", "short")
}

// whenClock formats the time of day to a tenth of a second.
func whenClock(t time.Time) template.HTML { return timeTag(t, "15:04:05.0 UTC", "clock") }

// whenSecond formats the time of day to a second.
func whenSecond(t time.Time) template.HTML { return timeTag(t, "15:04:05 UTC", "second") }

// whenIn formats a time that is to come. A script counts the seconds until then.
func whenIn(t time.Time) template.HTML { return timeTag(t, "at 15:04:05 UTC", "in") }

func timeTag(t time.Time, layout, how string) template.HTML {
	if t.IsZero() {
		return "never"
	}
	t = t.UTC()
	text := fmt.Sprintf(`<time datetime="%s" title="%s" data-time="%s">%s</time>`,
		t.Format("2006-01-02T15:04:05.000Z"), t.Format("2 Jan 2006, 15:04:05.000 UTC"), how, t.Format(layout))
	return template.HTML(text) //nolint:gosec // has only formatted times
}

// dayWords formats a UTC date like 2026-01-31 as Sat 31 Jan, with the year if it is not this one.
func dayWords(date string) template.HTML {
	t, err := time.Parse(time.DateOnly, date)
	if err != nil {
		return template.HTML(template.HTMLEscapeString(date)) //nolint:gosec // escaped
	}
	if t.Year() == time.Now().UTC().Year() {
		return timeTag(t, "Mon 2 Jan", "day")
	}
	return timeTag(t, "Mon 2 Jan 2006", "day")
}

// daysWords formats the UTC dates of a range, both with the year or both without it.
func daysWords(from, to string) template.HTML {
	if year := strconv.Itoa(time.Now().UTC().Year()); strings.HasPrefix(from, year) == strings.HasPrefix(to, year) {
		return dayWords(from) + " – " + dayWords(to)
	}
	out := make([]string, 2)
	for i, date := range []string{from, to} {
		t, err := time.Parse(time.DateOnly, date)
		if err != nil {
			return dayWords(from) + " – " + dayWords(to)
		}
		out[i] = string(timeTag(t, "Mon 2 Jan 2006", "year"))
	}
	return template.HTML(strings.Join(out, " – ")) //nolint:gosec // has only formatted times
}

// aTime matches a time within a text.
var aTime = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ`)

// timed formats a text whose times are in RFC 3339 and UTC as pages show times.
func timed(text string) template.HTML { return timedAs(text, when) }

// timedShort is like timed, with times as whenShort shows them.
func timedShort(text string) template.HTML { return timedAs(text, whenShort) }

func timedAs(text string, show func(time.Time) template.HTML) template.HTML {
	text = aTime.ReplaceAllStringFunc(template.HTMLEscapeString(text), func(s string) string {
		t, err := time.Parse(time.RFC3339, s)
		if err != nil {
			return s
		}
		return string(show(t))
	})
	return template.HTML(text) //nolint:gosec // escaped
}

// amountOf formats a limit, or its used part.
func amountOf(name string, n int64) string {
	if l := models.Limit(name); l != models.SpoolBytes && l != models.StoredBytes {
		return Num(n)
	}
	size, unit := float64(n), "bytes"
	for _, next := range []string{"KiB", "MiB", "GiB"} {
		if size < 1024 {
			break
		}
		size, unit = size/1024, next
	}
	return rateWords(size) + " " + unit
}

// Took formats a duration with about two significant digits.
func Took(d time.Duration) string {
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

// rateWords formats a rate per second.
func rateWords(r float64) string {
	switch {
	case r == 0:
		return "0"
	case r < 10:
		return strings.TrimSuffix(strconv.FormatFloat(r, 'f', 1, 64), ".0")
	}
	return Num(int64(math.Round(r)))
}

// ToJSON encodes a value.
func ToJSON(v any) (string, error) {
	b, err := json.Marshal(v)
	return string(b), err
}

// shortID abbreviates an ID to its start and its end.
func shortID(id any) string {
	s := fmt.Sprint(id)
	return s[:8] + "…" + s[24:]
}

func initial(name string) string {
	for _, r := range name {
		return strings.ToUpper(string(r))
	}
	return "?"
}

// dict returns a map of names and values, to pass several to a template.
func dict(pairs ...any) (map[string]any, error) {
	if len(pairs)%2 != 0 {
		return nil, fmt.Errorf("dict: missing value")
	}
	out := map[string]any{}
	for i := 0; i < len(pairs); i += 2 {
		name, ok := pairs[i].(string)
		if !ok {
			return nil, fmt.Errorf("dict: %v is not a name", pairs[i])
		}
		out[name] = pairs[i+1]
	}
	return out, nil
}

// maxExcerpt is the number of bytes of a body that a page shows.
const maxExcerpt = 16 << 10

// Excerpt returns the beginning of a body.
func Excerpt(body []byte) string {
	if len(body) <= maxExcerpt {
		return string(body)
	}
	return strings.ToValidUTF8(string(body[:maxExcerpt]), "") + "\n… " + Num(len(body)) + " bytes in all"
}

// Sentence capitalises a fragment and ends it with a period.
func Sentence(s string) string {
	s = strings.TrimSpace(s)
	if s == "" {
		return ""
	}
	r, n := utf8.DecodeRuneInString(s)
	s = string(unicode.ToUpper(r)) + s[n:]
	if !strings.ContainsAny(s[len(s)-1:], ".!?") {
		s += "."
	}
	return s
}

// Percent returns part of whole in percent for a chart, or -1 if there is nothing to divide by.
func Percent(part, whole int64) float64 {
	if whole == 0 {
		return -1
	}
	return math.Round(float64(part)*1000/float64(whole)) / 10
}

// MS converts milliseconds to a Duration.
func MS(n float64) time.Duration { return time.Duration(n * float64(time.Millisecond)) }

// Messages is a count of messages in words.
func Messages(n int64) string { return Num(n) + " " + Plural(n, "message", "messages") }

// Are is a count of messages in words, with its verb.
func Are(n int64) string { return Messages(n) + " " + Plural(n, "is", "are") }
