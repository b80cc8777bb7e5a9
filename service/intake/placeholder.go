package intake

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/problem"
)

// noValue says what to do about a placeholder that no recipient has a value for.
func noValue(name string) string {
	switch {
	case name == models.UnsubscribeURL:
		return "{{" + name + "}} has no value. Set a category: then each recipient gets a link."
	case IsTimeColumn(name):
		return "{{" + name + "}} is no placeholder: it says when a message is sent."
	}
	return "No recipient has a value for {{" + name + "}}; add it to vars, or as a column of a table."
}

// checkPlaceholders reports malformed placeholders, recipients that have no value for a placeholder of the content, and
// values that the subject cannot contain. It takes time linear in the request.
func (in *Intake) checkPlaceholders(batch *models.Batch) error {
	m := &in.Mistakes
	parts := in.Batch.parts(&batch.Content)
	for _, p := range parts[:3] {
		if text := MalformedPlaceholder(p.text); text != "" {
			m.Wrong("/"+p.field, "unknown_placeholder", "%s", text)
		}
	}
	names, field := placeholders(parts)
	if batch.Unsubscribe != nil {
		names = slices.DeleteFunc(names, func(n string) bool { return n == models.UnsubscribeURL })
	}
	if len(names) > MaxVars {
		m.Wrong("/"+field[names[MaxVars]], "too_many",
			"The message has more than %d different placeholders that need a value.", MaxVars)
		return nil
	}
	var some []string // that some recipients have no value for
	missing := in.spool.missing(names)
	for _, n := range names {
		switch missing[n] {
		case missingAll:
			at := "/" + field[n]
			if in.template != nil && !strings.HasPrefix(field[n], "headers") {
				at = "/" + Template
			}
			m.Wrong(at, "unknown_placeholder", "%s", noValue(n))
		case missingSome:
			some = append(some, n)
		case missingNone:
		}
	}
	lines := in.spool.longLines(parts)
	structs := in.Permissive() && in.structured.count > 0 && in.template == nil
	own := in.ownHeaders.filled
	if len(some) == 0 && len(lines) == 0 && !structs && !own {
		return nil
	}
	check := func(at place, r *models.Recipient) {
		here := pointerTo(at.index)
		if structs {
			m.needTemplate(at, r)
		}
		for _, n := range some {
			switch _, ok := r.Vars[n]; {
			case ok:
			case m.Full():
				m.Skip(1)
			default:
				m.Wrong(here+problem.Pointer("vars", n), "unknown_placeholder", "{{%s}} in %s has no value here.", n, field[n])
			}
		}
		for _, l := range lines {
			m.checkLine(here, r, l)
		}
		if own {
			m.checkOwnHeaders(here, r, batch)
		}
	}
	if !in.Permissive() {
		return in.each(func(at place, r models.Recipient) error { check(at, &r); return nil })
	}
	if m.Mistakes.Found() > 0 {
		return nil
	}
	return in.leaveOut(check)
}

// leaveOut leaves out the recipients in which check finds mistakes.
func (in *Intake) leaveOut(check func(at place, r *models.Recipient)) error {
	err := in.respool(func(at *place, r *models.Recipient) error { check(*at, r); return nil })
	in.keepRepeats()
	return err
}

// longLines returns the lines of the header for which some values of variables may not fit.
func (s *spool) longLines(parts []part) (out []*line) {
	for _, p := range parts {
		if p.line == "" {
			continue
		}
		if l := newLine(p.line, p.text); !l.fits(s) {
			out = append(out, l)
		}
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
	s := &line{what: what}
	if len(text) > maxLine {
		return s
	}
	models.EachPlaceholder(text, func(t string) { s.fixed += len(t) }, func(n string) {
		if s.uses == nil {
			s.uses = map[string]int{}
		}
		if s.uses[n] == 0 {
			s.names = append(s.names, n)
		}
		s.uses[n]++
	})
	return s
}

// fits reports whether all values of the variables that the spool has seen are known to fit into the line.
func (s *line) fits(seen *spool) bool {
	if len(s.names) == 0 {
		return true
	}
	if seen.many {
		return false
	}
	length := s.fixed
	for _, n := range s.names {
		longest := 0
		if l := seen.lengths[n]; l != nil {
			if longest = l.longest; l.controls {
				return false
			}
		}
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
func (m *Mistakes) checkLine(here string, r *models.Recipient, s *line) {
	controls := false
	for k, v := range r.Vars {
		controls = controls || s.uses[k] > 0 && HasControls(v)
	}
	if controls {
		for _, n := range s.names {
			if HasControls(r.Vars[n]) {
				m.Wrong(here+problem.Pointer("vars", n), "invalid_header",
					"{{%s}} is used in %s, so its value must be one line without control characters.", n, s.what)
			}
		}
	}
	if n := s.length(r); n > maxLine {
		m.Wrong(here, "too_long", "With the values of this recipient %s has %d bytes; it may have %d.", s.what, n, maxLine)
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

// part is a text of a message that may have placeholders.
type part struct {
	field, text string
	line        string // what it is, if it is a line of the header
}

// parts returns the texts of a message.
func (b *Batch) parts(c *models.Content) []part {
	_, html := b.html()
	parts := []part{{"subject", c.Subject, "the subject"}, {"text", c.Text, ""}, {html, c.HTML, ""}}
	for i := range c.Headers {
		h := &c.Headers[i]
		parts = append(parts, part{"headers" + problem.Pointer(h.Name), h.Value, "the header field " + h.Name})
	}
	return parts
}

// placeholders returns the placeholders of a message that need a value, in the order in which they appear, and the
// first field that each of them appears in. It returns one more than a message may have.
func placeholders(parts []part) (names []string, field map[string]string) {
	for _, p := range parts {
		models.EachPlaceholder(p.text, func(string) {}, func(n string) {
			if n != "email" && n != "name" && field[n] == "" && len(names) <= MaxVars {
				if field == nil {
					field = map[string]string{}
				}
				field[n] = p.field
				names = append(names, n)
			}
		})
	}
	return names, field
}
