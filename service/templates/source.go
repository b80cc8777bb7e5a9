package templates

import (
	"encoding/json"
	"errors"
	"maps"
	"net/mail"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/text/language"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/liquid"
	"github.com/safedelivr/safedelivr/service/operation"
	"github.com/safedelivr/safedelivr/service/problem"
)

// Limits of a version.
const (
	maxSource = 1 << 20 // bytes of all of it
	maxSchema = 64 << 10
	maxTags   = 20_000 // tags and outputs of all parts and languages
	maxLine   = 998
)

// numbers returns values as Liquid knows them. It does not change v.
func numbers(v client.Values) (map[string]any, error) {
	out, err := number(cloned(map[string]any(v)))
	if err != nil {
		return nil, err
	}
	return out.(map[string]any), nil //nolint:forcetypeassert // number keeps the type
}

// cloned returns a copy of lists and objects, and other values as they are.
func cloned(v any) any {
	switch v := v.(type) {
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = cloned(v[i])
		}
		return out
	case map[string]any:
		out := make(map[string]any, len(v))
		for k := range v {
			out[k] = cloned(v[k])
		}
		return out
	}
	return v
}

var category = regexp.MustCompile(`^[A-Za-z0-9_.:-]{1,64}$`)

// check reports the mistakes in a source. in points to the struct that has it, whose tags are checked, too.
func check(in any, s *client.TemplateSource, f *problem.Form) {
	if bytesOf(s) > maxSource {
		f.Wrong("", "too_long", "A template has at most %d bytes in all.", maxSource)
		return
	}
	if _, err := mail.ParseAddress(s.Sender); s.Sender != "" && err != nil {
		f.Wrong("/sender", "invalid_address", "%s is not an address like ann@example.com or Ann <ann@example.com>.",
			problem.Quote(s.Sender))
	}
	if s.Category != "" && !category.MatchString(s.Category) {
		f.Wrong("/category", "invalid_name", "A category has 1 to 64 characters: letters a to z, digits, _, -, . or :.")
	}
	operation.Check(in, f)
	if s.HTML == "" && s.Text == "" {
		f.Wrong("/html", "required", "Add html, text, or both.")
	}
	for _, name := range slices.Sorted(maps.Keys(s.Defaults)) {
		if !models.ValidVar(name) || models.IsSlot(name) {
			f.Wrong("/defaults"+problem.Pointer(name), "invalid_name", "This is not the name of a variable.")
		}
	}
	if _, err := numbers(s.Defaults); err != nil {
		f.Wrong("/defaults", "invalid_value", "%s", err)
	}
	if len(s.Schema) > 0 {
		if _, err := compileSchema(s.Schema); err != nil {
			f.Wrong("/schema", "invalid_schema", "%s", err)
		}
	}
	if f.At("/languages") {
		return
	}
	if tagsOf(s) > maxTags {
		f.Wrong("", "too_many", "A template has at most %d tags and outputs in all its languages.", maxTags)
		return
	}
	compile(f, "", s.TemplateContent, s.AllowRaw)
	for _, name := range slices.Sorted(maps.Keys(s.Languages)) {
		at := "/languages" + problem.Pointer(name)
		if tag, err := language.Parse(name); err != nil || tag.String() != name {
			f.Wrong(at, "invalid_name", "%s is not a language tag like de or de-AT (BCP 47).", problem.Quote(name))
			continue
		}
		c := s.Languages[name]
		if c == (client.TemplateContent{}) {
			f.Wrong(at, "required", "Add what this language says otherwise.")
		}
		compile(f, at, c, s.AllowRaw)
	}
}

// bytesOf returns the bytes of a source.
func bytesOf(s *client.TemplateSource) int {
	n := len(s.Schema)
	for _, c := range append(slices.Collect(maps.Values(s.Languages)), s.TemplateContent) {
		n += len(c.Subject) + len(c.HTML) + len(c.Text)
	}
	defaults, _ := json.Marshal(s.Defaults) // what was decoded from JSON can be encoded
	return n + len(defaults)
}

// tagsOf returns about how many tags and outputs a source has. Each takes some kilobytes while it is compiled.
func tagsOf(s *client.TemplateSource) (n int) {
	for _, c := range append(slices.Collect(maps.Values(s.Languages)), s.TemplateContent) {
		for _, part := range []string{c.Subject, c.HTML, c.Text} {
			n += strings.Count(part, "{%") + strings.Count(part, "{{")
		}
	}
	return n
}

// parts are the compiled parts of a content. A part that is empty is nil.
type parts struct{ subject, text, html *liquid.Part }

// list returns the parts that are not empty, with their names.
func (p *parts) list() (out []namedPart) {
	for _, n := range []namedPart{{"subject", p.subject}, {"text", p.text}, {"html", p.html}} {
		if n.Part != nil {
			out = append(out, n)
		}
	}
	return out
}

type namedPart struct {
	name string
	*liquid.Part
}

// compile compiles a content and reports its mistakes. at is the pointer of the content.
func compile(f *problem.Form, at string, c client.TemplateContent, allowRaw bool) (p parts) {
	one := func(name, source string, place liquid.Place) *liquid.Part {
		if source == "" {
			return nil
		}
		part, err := liquid.Compile(source, place, allowRaw)
		if err != nil {
			var e *liquid.Error
			if errors.As(err, &e) {
				f.Wrong(at+"/"+name, "invalid_template", "Line %d: %s.", e.Line, e.Text)
			}
			return nil
		}
		return part
	}
	p.subject = one("subject", c.Subject, liquid.Subject)
	p.text = one("text", c.Text, liquid.Text)
	p.html = one("html", c.HTML, liquid.HTML)
	if p.subject != nil && (len(p.subject.Fixed) > maxLine || hasControls(p.subject.Fixed)) {
		f.Wrong(at+"/subject", "invalid_header", "The subject must be one line of at most %d bytes.", maxLine)
	}
	names := map[string]bool{}
	for _, part := range p.list() {
		for _, n := range append(slices.Clone(part.Names), part.Slots...) {
			names[n] = true
		}
	}
	delete(names, "email")
	delete(names, "name")
	if len(names) > liquid.MaxNames {
		f.Wrong(at+"/html", "too_many", "All parts have more than %d different placeholders and pieces of Liquid.",
			liquid.MaxNames)
	}
	return p
}

func hasControls(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] == 0x7f {
			return true
		}
	}
	return false
}

// contentIn returns the content in a language: the first of de-AT, de and the default that there is. A language that
// has no subject uses the one of the next; one that has a body uses no other.
func contentIn(s *client.TemplateSource, lang string) (c client.TemplateContent, found string) {
	tag, err := language.Parse(lang)
	for ; err == nil && lang != "" && tag != language.Und; tag = tag.Parent() {
		variant, ok := s.Languages[tag.String()]
		if !ok {
			continue
		}
		if found == "" {
			found = tag.String()
		}
		c = or(c, variant)
	}
	return or(c, s.TemplateContent), found
}

// or returns c with what it lacks from other.
func or(c, other client.TemplateContent) client.TemplateContent {
	if c.Subject == "" {
		c.Subject = other.Subject
	}
	if c.HTML == "" && c.Text == "" {
		c.HTML, c.Text = other.HTML, other.Text
	}
	return c
}
