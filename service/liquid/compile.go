// Package liquid compiles templates in the Liquid language into fixed text and slots, and
// renders the slots for recipients.
//
// The fixed text has ordinary placeholders: the plain {{name}} of the template, and one with
// a generated name for each slot, which is a maximal piece of Liquid. Compiling takes time
// linear in the source. Rendering has bounds.
package liquid

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	upstream "github.com/osteele/liquid"

	"github.com/safedelivr/safedelivr/models"
)

// Limits of templates.
const (
	MaxSource = 1 << 20 // bytes of a part
	MaxNames  = 100     // placeholders and slots of a part
	maxTokens = 10_000  // tags and outputs of a part
	maxDepth  = 20      // blocks in blocks
	tickEvery = 16      // tokens after which the time is checked; filters check it, too
)

// Error is a mistake in a template. Line counts from 1.
type Error struct {
	Line int
	Text string
}

// Error implements error.
func (e *Error) Error() string { return fmt.Sprintf("line %d: %s", e.Line, e.Text) }

// Place says where the result of a template is put, which decides how values are escaped.
type Place byte

// The places.
const (
	Subject Place = 's' // one line of plain text
	Text    Place = 't'
	HTML    Place = 'h'
)

// Part is a compiled part of a message. It may be used by many goroutines at once.
type Part struct {
	Fixed   string   // the text with placeholders
	Slots   []string // names of the slots' placeholders
	Names   []string // the plain placeholders
	Outputs []string // variables that outputs in slots use without the filter default

	place   Place
	program *upstream.Template // renders all slots, each after a mark; nil: there are none
	blocks  []*block           // those that compare values
}

// mark separates the slots in the output of a program. Values do not contain it.
const mark = "\x00"

// compiler holds the state of Compile.
type compiler struct {
	part     *Part
	allowRaw bool
	fixed    []byte
	tail     int // where the last text of fixed begins, which may be trimmed
	open     int // braces right before tail
	program  strings.Builder
	blocks   []token
	set      map[string]bool // variables that the template sets
	slot     bool            // the last token belongs to a slot
	trim     bool            // the next text is trimmed on the left
	count    int             // of tokens in the program
}

// Compile compiles the source of a part. allowRaw allows the filter raw, which puts values
// into HTML as they are. The error is an *Error.
func Compile(source string, place Place, allowRaw bool) (*Part, error) {
	if len(source) > MaxSource {
		return nil, &Error{1, fmt.Sprintf("it has more than %d bytes", MaxSource)}
	}
	if i := strings.Index(source, mark); i >= 0 {
		return nil, &Error{1 + strings.Count(source[:i], "\n"), "it has a NUL character"}
	}
	tokens, err := scan(source)
	if err != nil {
		return nil, err
	}
	c := compiler{part: &Part{place: place}, allowRaw: allowRaw, set: map[string]bool{}}
	for i := range tokens {
		if err := c.add(&tokens[i]); err != nil {
			return nil, &Error{tokens[i].line, err.Error()}
		}
	}
	if n := len(c.blocks); n > 0 {
		return nil, &Error{
			c.blocks[n-1].line,
			fmt.Sprintf("{%% %s %%} has no {%% end%s %%}", c.blocks[n-1].name, c.blocks[n-1].name),
		}
	}
	c.part.Fixed = string(c.fixed)
	if len(c.part.Slots) > 0 {
		if err := c.parse(); err != nil {
			return nil, err
		}
	}
	return c.part, nil
}

// parse parses the program. A panic of the Liquid library is an error of the template.
func (c *compiler) parse() (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &Error{1, fmt.Sprintf("it cannot be read: %v", v)}
		}
	}()
	program, failed := engine().ParseTemplateLocation([]byte(c.program.String()), "template", 1)
	if failed != nil {
		return &Error{max(failed.LineNumber(), 1), plainError(failed.Cause(), failed)}
	}
	c.part.program = program
	return nil
}

var (
	longNumber = regexp.MustCompile(`(?:^|[^\w.])\d{19,}`)
	reserved   = regexp.MustCompile(`\b` + payKey + `\b`)
)

// tooLong reports whether the Liquid library cannot read a number.
func tooLong(number string) bool {
	_, err := strconv.ParseInt(strings.TrimLeftFunc(number, func(r rune) bool { return r < '0' || r > '9' }), 10, 64)
	return err != nil
}

// allowed returns an error if a tag or an output has something that the Liquid library or the bounds cannot take.
func (c *compiler) allowed(t *token) error {
	if c.count++; c.count > maxTokens {
		return fmt.Errorf("it has more than %d tags and outputs", maxTokens)
	}
	source := withoutStrings(t.source)
	switch {
	case slices.ContainsFunc(longNumber.FindAllString(source, -1), tooLong):
		return errors.New("a number is too long: write it as text, between quotation marks")
	case reserved.MatchString(source):
		return fmt.Errorf("the name %s is reserved", payKey)
	}
	return nil
}

// add adds a token.
func (c *compiler) add(t *token) error {
	inside := len(c.blocks) > 0
	switch {
	case t.kind == text:
		return c.text(t)
	case t.kind == tag && t.name == "": // only trims
		if !inside {
			c.trimBefore(t)
			c.trim = t.right
		}
		return nil
	}
	if !inside {
		c.trimBefore(t)
	}
	err := c.braces(t)
	if len(c.blocks) == 0 {
		c.trim = t.right
		c.tail = len(c.fixed)
	}
	return err
}

// text adds text to the fixed text, or to the slot that it is inside of.
func (c *compiler) text(t *token) error {
	if len(c.blocks) > 0 {
		c.program.WriteString(strings.ReplaceAll(t.source, "{", `{{ "{" }}`))
		return nil
	}
	s := t.source
	if c.trim {
		s = strings.TrimLeft(s, space)
	}
	// The program keeps the lines, so that its errors name those of the template.
	if n := strings.Count(t.source, "\n"); n > 0 {
		c.program.WriteString("{% comment %}" + strings.Repeat("\n", n) + "{% endcomment %}")
	}
	if s == "" {
		return nil
	}
	c.trim, c.slot = false, false
	c.open, c.tail = c.openBraces(), len(c.fixed)
	if s[0] == '{' {
		if err := c.noBrace(); err != nil {
			return err
		}
	}
	c.fixed = append(c.fixed, strings.ReplaceAll(s, "{{", "{{{{")...)
	return nil
}

// noBrace returns an error if the fixed text ends with a single brace, which together with
// the next one would begin a placeholder.
func (c *compiler) noBrace() error {
	if c.openBraces()%4 == 0 {
		return nil
	}
	return errors.New(`a { comes right before braces; write {{ "{" }} instead`)
}

// openBraces returns the number of braces at the end of the fixed text.
func (c *compiler) openBraces() int {
	last := c.fixed[c.tail:]
	n := len(last) - len(bytes.TrimRight(last, "{"))
	if n == len(last) {
		n += c.open
	}
	return n
}

// trimBefore removes the white space before a token.
func (c *compiler) trimBefore(t *token) {
	if !t.left {
		return
	}
	c.fixed = append(c.fixed[:c.tail], bytes.TrimRight(c.fixed[c.tail:], space)...)
}

// plainName matches an output that is nothing but a placeholder.
var plainName = regexp.MustCompile(`^[\pL_][\pL\pN\pM_-]*$`)

// braces adds a tag or an output.
func (c *compiler) braces(t *token) error {
	c.trim = false
	if err := c.allowed(t); err != nil {
		return err
	}
	if c.count%tickEvery == 0 {
		c.program.WriteString("{% " + tickTag + " %}")
	}
	if t.kind == tag {
		return c.tag(t)
	}
	parts, err := pipeline(t.source)
	if err != nil {
		return err
	}
	if len(c.blocks) == 0 && len(parts) == 1 && plainName.MatchString(t.source) && models.ValidVar(t.source) &&
		!c.set[t.source] {
		if err := c.noBrace(); err != nil {
			return err
		}
		c.slot = false
		c.fixed = append(c.fixed, "{{"+t.source+"}}"...)
		c.part.Names = appendNew(c.part.Names, t.source)
		return c.part.few()
	}
	if strings.Contains(withoutStrings(t.source), "..") {
		return fmt.Errorf("a range is allowed only in for, without filters")
	}
	out, err := c.escaped(parts)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(parts[1:], func(f string) bool { return strings.HasPrefix(strings.TrimSpace(f), "default") }) {
		for _, name := range roots(parts[0]) {
			if !c.set[name] && len(c.part.Outputs) < MaxNames {
				c.part.Outputs = appendNew(c.part.Outputs, name)
			}
		}
	}
	if err := c.begin(); err != nil {
		return err
	}
	c.emit(t, "{{", out, "}}")
	return nil
}

func appendNew(names []string, name string) []string {
	if slices.Contains(names, name) {
		return names
	}
	return append(names, name)
}

// escaped returns an output whose value is escaped as its place needs it.
func (c *compiler) escaped(parts []string) (string, error) {
	parts = slices.Clone(parts)
	last := ""
	if n := len(parts); n > 1 {
		last = strings.TrimSpace(parts[n-1])
	}
	switch {
	case last == "raw" && !c.allowRaw && c.part.place == HTML:
		return "", fmt.Errorf("the filter raw is not allowed: set allow_raw in the template if you trust all values")
	case last == "raw":
		return paid(parts[:len(parts)-1], showFilter), nil
	case c.part.place != HTML:
		return paid(parts, showFilter), nil
	case last == "newline_to_br":
		return paid(parts[:len(parts)-1], escapeFilter) + "| newline_to_br", nil
	case last == "escape":
		parts = parts[:len(parts)-1] // all values are
	}
	return paid(parts, escapeFilter), nil
}

// paid returns a pipeline in which the value and the result of each filter are counted. last is the filter at its end.
func paid(parts []string, last string) string {
	return strings.Join(parts, own(payFilter)+"|") + own(last)
}

// own returns a filter of Compile with its argument.
func own(filter string) string { return "| " + filter + ": " + payKey + " " }

// begin begins a slot, unless the token before belongs to one.
func (c *compiler) begin() error {
	if c.slot || len(c.blocks) > 0 {
		return nil
	}
	if err := c.noBrace(); err != nil {
		return err
	}
	c.slot = true
	name := models.SlotName(byte(c.part.place), len(c.part.Slots))
	c.part.Slots = append(c.part.Slots, name)
	c.fixed = append(c.fixed, "{{"+name+"}}"...)
	c.program.WriteString(mark)
	return c.part.few()
}

// few returns an error if a part has more placeholders than a message may have.
func (p *Part) few() error {
	if len(p.Names)+len(p.Slots) > MaxNames {
		return fmt.Errorf("it has more than %d different placeholders and pieces of Liquid", MaxNames)
	}
	return nil
}

// emit writes braces to the program.
func (c *compiler) emit(t *token, open, inner, end string) {
	if t.left {
		open += "-"
	}
	if t.right {
		end = "-" + end
	}
	c.program.WriteString(open + " " + inner + " " + end)
}

// clauses maps clauses to the blocks that they belong to.
var clauses = map[string][]string{
	"elsif": {"if"},
	"else":  {"if", "unless", "case", "for"},
	"when":  {"case"},
}

var (
	assignment = regexp.MustCompile(`^([A-Za-z_][\w\-]*)\s*=(.+)$`)
	loop       = regexp.MustCompile(`^([A-Za-z_][\w\-]*)\s+in\s+(\([^)]*\)|[^\s|]+)(.*)$`)
)

// tag adds a tag.
func (c *compiler) tag(t *token) error {
	inner := strings.TrimSpace(t.name + " " + t.source)
	open := ""
	if n := len(c.blocks); n > 0 {
		open = c.blocks[n-1].name
	}
	if _, err := pipeline(t.source); err != nil {
		return err
	}
	isRange := strings.Contains(withoutStrings(t.source), "..")
	if isRange && (t.name != "for" || strings.Contains(withoutStrings(t.source), "|")) {
		return fmt.Errorf("a range is allowed only in for, without filters")
	}
	if strings.Contains(withoutStrings(t.source), "%") {
		return fmt.Errorf("%% is not allowed here")
	}
	switch end, ends := strings.CutPrefix(t.name, "end"); {
	case ends && (open != end || open == ""):
		return fmt.Errorf("{%% %s %%} ends no block", t.name)
	case ends:
		c.emit(t, "{%", inner, "%}")
		c.blocks = c.blocks[:len(c.blocks)-1]
	case t.name == "assign":
		m := assignment.FindStringSubmatch(t.source)
		if m == nil {
			return fmt.Errorf("write {%% assign name = value %%}")
		}
		parts, err := pipeline(m[2])
		if err != nil {
			return err
		}
		c.set[m[1]] = true
		c.emit(t, "{%", "assign "+m[1]+" = "+paid(parts, payFilter), "%}") // it has no output, so it needs no slot
	case t.name == "break" || t.name == "continue":
		if !slices.ContainsFunc(c.blocks, func(b token) bool { return b.name == "for" }) {
			return fmt.Errorf("{%% %s %%} is allowed only in for", t.name)
		}
		c.emit(t, "{%", inner, "%}")
	case clauses[t.name] != nil:
		if !slices.Contains(clauses[t.name], open) {
			return fmt.Errorf("{%% %s %%} is allowed only in %s", t.name, strings.Join(clauses[t.name], ", "))
		}
		if b := c.blocks[len(c.blocks)-1].block; b != nil && t.name != "else" {
			b.all = append(b.all, comparisonsOf(t)...)
		}
		inner, err := libraryTag(t)
		if err != nil {
			return err
		}
		c.emit(t, "{%", inner, "%}")
	case t.name == "if" || t.name == "unless" || t.name == "case" || t.name == "for":
		return c.block(t, inner)
	default:
		return fmt.Errorf(
			"there is no tag %s; there are assign, break, case, comment, continue, for, if, raw, unless",
			t.name,
		)
	}
	return nil
}

// block begins a block.
func (c *compiler) block(t *token, inner string) error {
	if len(c.blocks) == maxDepth {
		return fmt.Errorf("blocks are nested more than %d deep", maxDepth)
	}
	if t.source == "" {
		return fmt.Errorf("{%% %s %%} has no condition", t.name)
	}
	if err := c.begin(); err != nil {
		return err
	}
	if t.name != "for" {
		t.block = &block{all: comparisonsOf(t)}
		if t.name == "case" {
			t.block.subject = pathsOf(withoutStrings(t.source))
		}
		c.program.WriteString("{% " + weighTag + " " + strconv.Itoa(len(c.part.blocks)) + " %}")
		c.part.blocks = append(c.part.blocks, t.block)
		inner, err := libraryTag(t)
		if err != nil {
			return err
		}
		c.emit(t, "{%", inner, "%}")
	} else {
		m := loop.FindStringSubmatch(t.source)
		if m == nil {
			return fmt.Errorf("write {%% for name in list %%}")
		}
		c.set[m[1]] = true
		if m[2][0] != '(' {
			inner = "for " + m[1] + " in " + m[2] + " " + own(listFilter) + m[3]
		}
		c.emit(t, "{%", inner, "%}")
		c.program.WriteString("{% " + stepTag + " %}")
	}
	c.blocks = append(c.blocks, *t)
	return nil
}

// libraryTag returns a tag in the words of the Liquid library.
func libraryTag(t *token) (string, error) {
	source := t.source
	switch t.name {
	case "if", "elsif", "unless":
		var err error
		if source, err = condition(t.source); err != nil {
			return "", err
		}
	case "when", "case":
		if literal.MatchString(withoutStrings(source)) {
			return "", errors.New("blank and empty are allowed only in if, elsif and unless")
		}
		if t.name == "when" {
			source = alternatives(source)
		}
	}
	return strings.TrimSpace(t.name + " " + source), nil
}

// plainError returns the text of an error of the Liquid library.
func plainError(cause, err error) string {
	s := cmp.Or(cause, err).Error()
	s, _, _ = strings.Cut(strings.TrimPrefix(s, "Liquid error"), " in {")
	s = strings.NewReplacer(own(escapeFilter), "", own(showFilter), "", own(listFilter), "", own(payFilter), "",
		" | _blank: true", " == blank", " | _blank: false", " != blank", " | _empty: true", " == empty", " | _empty: false",
		" != empty").Replace(s)
	return strings.TrimPrefix(strings.TrimSpace(s), ": ")
}
