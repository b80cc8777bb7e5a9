package intake

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/problem"
)

// checkPlaceholders reports malformed placeholders, recipients that have no value for a
// placeholder of the content, and values that the subject cannot contain. It takes time
// linear in the request.
func (b *Builder) checkPlaceholders(batch *models.Batch) error {
	c := &batch.Content
	b.checkSyntax()
	names, field := b.placeholders(c)
	if batch.Unsubscribe != nil {
		names = slices.DeleteFunc(names, func(n string) bool { return n == models.UnsubscribeURL })
	}
	if len(names) > MaxVars {
		b.Wrong("/"+field[names[MaxVars]], "too_many",
			"The message has more than %d different placeholders that need a value.", MaxVars)
		return nil
	}
	missing := b.spool.missing(names)
	some := map[string]bool{}
	for _, n := range names {
		switch missing[n] {
		case missingAll:
			at := "/" + field[n]
			if b.template != nil && !strings.HasPrefix(field[n], "headers") {
				at = "/" + Template
			}
			b.NoValue(at, n)
		case missingSome:
			some[n] = true
		case missingNone:
		}
	}
	lines := b.longLines(c)
	structs := b.Permissive() && b.structs > 0 && b.template == nil
	own := b.ownHeaders.filled
	if len(some) == 0 && len(lines) == 0 && !structs && !own {
		return nil
	}
	check := func(at place, r *models.Recipient) {
		here := "/to/" + strconv.Itoa(at.index)
		if structs {
			b.needTemplate(at, r)
		}
		if missing := len(some) - subset(r.Vars, some); missing > 0 && b.Full() {
			b.Skip(missing)
		} else if missing > 0 {
			b.reportMissing(here, r, names, some, field)
		}
		for _, l := range lines {
			b.checkLine(here, r, l)
		}
		if own {
			b.checkOwnHeaders(here, r, batch)
		}
	}
	if !b.Permissive() {
		return b.each(func(index int, r models.Recipient) error { check(place{index: index}, &r); return nil })
	}
	if b.Mistakes.Found() > 0 {
		return nil
	}
	return b.leaveOut(check)
}

// subset counts the variables whose names are in a set.
func subset[T any](vars map[string]string, set map[string]T) (n int) {
	for k := range vars {
		if _, ok := set[k]; ok {
			n++
		}
	}
	return n
}

// reportMissing reports the placeholders in some for which a recipient has no value, in the
// order of names.
func (b *Builder) reportMissing(
	here string,
	r *models.Recipient,
	names []string,
	some map[string]bool,
	field map[string]string,
) {
	for _, n := range names {
		if _, ok := r.Vars[n]; !ok && some[n] {
			b.Wrong(here+problem.Pointer("vars", n), "unknown_placeholder", "{{%s}} in %s has no value here.", n, field[n])
		}
	}
}

// longLines returns the lines of the header for which some values of variables may not fit.
func (b *Builder) longLines(c *models.Content) (out []*line) {
	add := func(what, text string) {
		if l := newLine(what, text); !l.fits(b.spool) {
			out = append(out, l)
		}
	}
	add("the subject", c.Subject)
	for i := range c.Headers {
		add("the header field "+c.Headers[i].Name, c.Headers[i].Value)
	}
	return out
}

// line is a subject or the value of a header field, with placeholders.
type line struct {
	what  string
	fixed int            // bytes outside of placeholders
	names []string       // of the placeholders, in order of appearance
	uses  map[string]int // how often each placeholder appears
}

// newLine returns the line with a text. A line that is too long already has no placeholders.
func newLine(what, text string) *line {
	s := &line{what: what, uses: map[string]int{}}
	if len(text) > maxLine {
		return s
	}
	models.EachPlaceholder(text, func(t string) { s.fixed += len(t) }, func(n string) {
		if s.uses[n] == 0 {
			s.names = append(s.names, n)
		}
		s.uses[n]++
	})
	return s
}

// fits reports whether all values of the variables that the spool has seen are known to fit
// into the line.
func (s *line) fits(seen *spool) bool {
	if len(s.names) == 0 {
		return true
	}
	if seen.many {
		return false
	}
	length := s.fixed
	for _, n := range s.names {
		if seen.withControls[n] {
			return false
		}
		longest := seen.longest[n]
		if n == "email" || n == "name" {
			longest = max(longest, maxNameLen) // longer than any address
		}
		length += s.uses[n] * longest
	}
	return length <= maxLine
}

// length returns the length of the line for a recipient, in bytes.
func (s *line) length(r *models.Recipient) int {
	n := s.fixed
	for k, v := range r.Vars {
		n += s.uses[k] * len(v)
	}
	if _, ok := r.Vars["email"]; !ok {
		n += s.uses["email"] * len(r.Email)
	}
	if _, ok := r.Vars["name"]; !ok {
		n += s.uses["name"] * len(r.Name)
	}
	return n
}

// checkLine reports values of a recipient that the line cannot contain.
func (b *Builder) checkLine(here string, r *models.Recipient, s *line) {
	controls := false
	for k, v := range r.Vars {
		controls = controls || s.uses[k] > 0 && HasControls(v)
	}
	if controls {
		for _, n := range s.names {
			if HasControls(r.Vars[n]) {
				b.Wrong(here+problem.Pointer("vars", n), "invalid_header",
					"{{%s}} is used in %s, so its value must be one line without control characters.", n, s.what)
			}
		}
	}
	if n := s.length(r); n > maxLine {
		b.Wrong(
			here,
			"too_long",
			"With the values of this recipient %s has %d bytes; it may have %d.",
			s.what,
			n,
			maxLine,
		)
	}
}

// checkSyntax reports the first malformed placeholder of each field.
func (b *Builder) checkSyntax() {
	for _, field := range []string{"subject", "text", b.htmlField()} {
		if text := MalformedPlaceholder(b.texts[field]); text != "" {
			b.Wrong("/"+field, "unknown_placeholder", "%s", text)
		}
	}
}

// MalformedPlaceholder returns the text of the error about the first malformed placeholder
// of a field, or "" if there is none.
func MalformedPlaceholder(text string) string {
	at, found := models.MalformedPlaceholder(text)
	if at < 0 {
		return ""
	}
	line := text[strings.LastIndexByte(text[:at], '\n')+1 : at]
	return fmt.Sprintf("%s in line %d, column %d is not a placeholder. A placeholder is {{name}}: a letter or _, "+
		"then letters, digits, _, - or dots, at most 64 bytes. Write {{{{ for a literal {{.",
		problem.Quote(found), strings.Count(text[:at], "\n")+1, utf8.RuneCountInString(line)+1)
}

// htmlField returns the name of the field that holds the HTML.
func (b *Builder) htmlField() string {
	if b.set["body"] {
		return "body"
	}
	return "html"
}

// placeholders returns the placeholders of the content that need a value, in the order
// in which they appear, and the first field that each of them appears in. It returns one
// more than a message may have.
func (b *Builder) placeholders(c *models.Content) (names []string, field map[string]string) {
	field = map[string]string{}
	type part struct{ name, text string }
	parts := []part{{"subject", c.Subject}, {"text", c.Text}, {b.htmlField(), c.HTML}}
	for i := range c.Headers {
		parts = append(parts, part{"headers" + problem.Pointer(c.Headers[i].Name), c.Headers[i].Value})
	}
	for _, f := range parts {
		models.EachPlaceholder(f.text, func(string) {}, func(n string) {
			if n != "email" && n != "name" && field[n] == "" && len(names) <= MaxVars {
				field[n] = f.name
				names = append(names, n)
			}
		})
	}
	return names, field
}
