package templates

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"golang.org/x/text/language"
	"golang.org/x/text/message"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/liquid"
	"github.com/safedelivr/safedelivr/service/problem"
)

// Filler fills a version of a template in a language for recipients. It may be used by many goroutines at once.
type Filler struct {
	Use      models.TemplateUse
	Sender   string
	Category string

	parts    parts
	defaults map[string]any
	schema   *schema
	bytes    int // of the source
}

// Use returns the filler for a reference: a name for the published version, or name@number.
// The errors point to the fields template and language.
func (l *Library) Use(ctx context.Context, user, ref, lang string) (*Filler, error) {
	name, number, err := parseRef(ref)
	if err != nil {
		return nil, err
	}
	h, err := l.head(ctx, user, name)
	if problem.IsNotFound(err) {
		return nil, wrongRef(
			problem.FieldError{Code: "unknown_template", Detail: fmt.Sprintf("You have no template %s.", problem.Quote(name))},
		)
	}
	if err != nil {
		return nil, err
	}
	switch {
	case h.Archived:
		return nil, wrongRef(
			problem.FieldError{
				Code:   "template_archived",
				Detail: fmt.Sprintf("The template %s is archived. Publish a version to use it.", problem.Quote(name)),
			},
		)
	case number == 0 && h.Now == 0:
		return nil, wrongRef(
			problem.FieldError{
				Code:   "template_not_published",
				Detail: fmt.Sprintf("No version of the template %s is published.", problem.Quote(name)),
			},
		)
	case number == 0:
		number = h.Now
	case !h.has(number):
		return nil, wrongRef(
			problem.FieldError{
				Code:   "unknown_template",
				Detail: fmt.Sprintf("The template %s has no version %d.", problem.Quote(name), number),
			},
		)
	}
	if lang != "" {
		if _, err := language.Parse(lang); err != nil {
			var f problem.Form
			f.Wrong("/language", "invalid_value", "language must be a tag like de or de-AT (BCP 47).")
			return nil, f.Err()
		}
	}
	key := strings.Join([]string{user, h.ID, strconv.Itoa(number), lang}, "/")
	if f, ok := l.cache.Get(key); ok {
		return f, nil
	}
	src, err := l.source(ctx, user, name, number)
	if err != nil {
		return nil, err
	}
	f, err := newFiller(&src, lang)
	if err != nil {
		return nil, err
	}
	f.Use.Name, f.Use.Version = name, number
	l.keep(key, f)
	return f, nil
}

// wrongRef returns the error for a template that a request cannot use.
func wrongRef(e problem.FieldError) error {
	var f problem.Form
	f.Wrong("/template", e.Code, "%s", e.Detail)
	return f.Err()
}

// parseRef parses name or name@number.
func parseRef(ref string) (name string, number int, err error) {
	name, text, numbered := strings.Cut(ref, "@")
	if numbered {
		number, err = strconv.Atoi(text)
	}
	if err != nil || !validName(name) || numbered && number < 1 {
		return "", 0, wrongRef(problem.FieldError{
			Code: "invalid_value", Detail: "template must be a name, or a name and a version like welcome@3.",
		})
	}
	return name, number, nil
}

// newFiller compiles a source in a language.
func newFiller(s *client.TemplateSource, lang string) (*Filler, error) {
	var f problem.Form
	c, found := contentIn(s, lang)
	out := &Filler{
		Use:      models.TemplateUse{Language: found},
		Sender:   s.Sender,
		Category: s.Category,
		bytes:    bytesOf(s),
		parts:    compile(&f, "", c, s.AllowRaw),
	}
	var err error
	if out.defaults, err = numbers(s.Defaults); err != nil {
		f.Wrong("/defaults", "invalid_value", "%s", err)
	}
	if len(s.Schema) > 0 {
		if out.schema, err = compileSchema(s.Schema); err != nil {
			f.Wrong("/schema", "invalid_schema", "%s", err)
		}
	}
	return out, f.Err()
}

// Content sets the subject and the bodies of a message, with placeholders.
func (f *Filler) Content(c *models.Content) {
	c.Subject, c.Text, c.HTML = fixed(f.parts.subject), fixed(f.parts.text), fixed(f.parts.html)
}

func fixed(p *liquid.Part) string {
	if p == nil {
		return ""
	}
	return p.Fixed
}

// Fill replaces the variables of a recipient by the values of the placeholders of the content. JSON names the variables
// whose value is JSON; the others are strings. keep names variables that are kept besides. It returns what is wrong
// with the variables, with pointers relative to the recipient. The error is that of ctx.
func (f *Filler) Fill(
	ctx context.Context, r *models.Recipient, json, keep []string,
) (wrong []problem.FieldError, err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	vars, wrong := f.vars(r, json)
	if f.schema != nil && len(wrong) == 0 {
		wrong = f.validate(vars)
	}
	if len(wrong) > 0 {
		return wrong, nil
	}
	for name, own := range map[string]string{"email": r.Email, "name": r.Name} {
		if _, ok := vars[name]; !ok {
			vars[name] = own
		}
	}
	out := map[string]string{}
	for _, part := range f.parts.list() {
		values, err := part.Render(ctx, vars)
		var e *liquid.Error
		if errors.As(err, &e) {
			wrong = append(
				wrong,
				problem.FieldError{
					Code:   "template_failed",
					Detail: fmt.Sprintf("%s of the template %s, line %d: %s.", part.name, f.title(), e.Line, e.Text),
				},
			)
			continue
		}
		if err != nil {
			return nil, err
		}
		for i, name := range part.Slots {
			out[name] = values[i]
		}
		for _, name := range part.Names {
			f.plain(r, vars, out, name, &wrong)
		}
	}
	for _, name := range keep {
		f.plain(r, vars, out, name, &wrong)
	}
	r.Vars = out
	return wrong, nil
}

// title names the template in errors.
func (f *Filler) title() string {
	if f.Use.Name == "" {
		return "in the request"
	}
	return fmt.Sprintf("%s@%d", f.Use.Name, f.Use.Version)
}

// plain sets the value of a plain placeholder: as it is in the request, or the default. A number has no exponent, as in
// an output of Liquid.
func (f *Filler) plain(
	r *models.Recipient, vars map[string]any, out map[string]string, name string, wrong *[]problem.FieldError,
) {
	text, given := r.Vars[name]
	if !given {
		def, ok := f.defaults[name]
		if !ok {
			return // the intake reports what has no value
		}
		text = textOf(def)
	}
	switch v := vars[name].(type) {
	case float64:
		if strings.ContainsAny(text, "eE") {
			text = liquid.Decimal(v)
		}
	case map[string]any, []any:
		*wrong = append(*wrong, problem.FieldError{Pointer: problem.Pointer("vars", name), Code: "wrong_type",
			Detail: fmt.Sprintf("{{%s}} needs a string, a number or a boolean.", name)})
		return
	}
	out[name] = text
}

// textOf returns a value as a plain placeholder shows it.
func textOf(v any) string {
	if s, ok := v.(string); ok {
		return s
	}
	raw, _ := json.Marshal(v) // what was decoded from JSON can be encoded
	return string(raw)
}

// keep adds a compiled version to the cache, which is bounded by their number and by their bytes.
func (l *Library) keep(key string, f *Filler) {
	if there, _ := l.cache.ContainsOrAdd(key, f); there {
		return
	}
	l.cached.Add(int64(f.bytes))
	for l.cached.Load() > maxCached {
		if _, _, ok := l.cache.RemoveOldest(); !ok {
			return
		}
	}
}

// vars returns the variables of a recipient as values, with the defaults.
func (f *Filler) vars(r *models.Recipient, isJSON []string) (map[string]any, []problem.FieldError) {
	vars := make(map[string]any, len(r.Vars)+len(f.defaults)+2)
	maps.Copy(vars, f.defaults)
	for name, text := range r.Vars {
		vars[name] = withoutNUL(text)
	}
	var wrong []problem.FieldError
	for _, name := range isJSON {
		text, ok := r.Vars[name]
		if !ok {
			continue
		}
		var v any
		d := json.NewDecoder(strings.NewReader(text))
		d.UseNumber()
		at, detail := problem.Pointer("vars", name), "The value is not valid JSON."
		if err := cmp.Or(d.Decode(&v), trailing(d)); err != nil {
			wrong = append(wrong, problem.FieldError{Pointer: at, Code: "wrong_type", Detail: detail})
			continue
		}
		var err error
		if vars[name], err = number(v); err != nil {
			detail := "It has a number that is too large: " + err.Error() + "."
			wrong = append(wrong, problem.FieldError{Pointer: at, Code: "wrong_type", Detail: detail})
		}
	}
	return vars, wrong
}

var errTrailing = errors.New("something follows the value")

// trailing returns an error if a decoder has more than the value that was read.
func trailing(d *json.Decoder) error {
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errTrailing
	}
	return nil
}

func withoutNUL(s string) string { return strings.ReplaceAll(s, "\x00", "") }

// maxDigits is how many characters a number may have.
const maxDigits = 400

var errHuge = fmt.Errorf("a number has at most %d characters, and is at most 1.7e308", maxDigits)

// number returns a decoded value with whole numbers as int, which Liquid needs to count, and without NUL characters. A
// whole number with more than 18 digits stays a json.Number.
func number(v any) (any, error) {
	var err error
	switch v := v.(type) {
	case json.Number:
		text := v.String()
		n, wrong := strconv.Atoi(text)
		switch {
		case wrong == nil:
			return n, nil
		case len(text) > maxDigits:
			return nil, errHuge
		case !strings.ContainsAny(text, ".eE"):
			return v, nil
		}
		f, wrong := v.Float64()
		if wrong != nil {
			return nil, errHuge
		}
		return f, nil
	case string:
		return withoutNUL(v), nil
	case []any:
		for i := range v {
			if v[i], err = number(v[i]); err != nil {
				return nil, err
			}
		}
	case map[string]any:
		for k := range v {
			if v[k], err = number(v[k]); err != nil {
				return nil, err
			}
		}
	}
	return v, nil
}

// maxMismatches is how many mismatches of a recipient are listed.
const maxMismatches = 10

var english = message.NewPrinter(language.English)

// validate checks variables by the schema.
func (f *Filler) validate(vars map[string]any) (wrong []problem.FieldError) {
	if !f.schema.fits(vars) {
		return []problem.FieldError{{
			Pointer: "/vars", Code: "schema_mismatch", Detail: "The variables are too large for the schema of the template.",
		}}
	}
	err := f.schema.Validate(vars)
	var invalid *jsonschema.ValidationError
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &invalid):
		return []problem.FieldError{
			{
				Pointer: "/vars",
				Code:    "schema_mismatch",
				Detail:  "The variables cannot be checked by the schema of the template.",
			},
		}
	}
	var leaves func(*jsonschema.ValidationError)
	leaves = func(e *jsonschema.ValidationError) {
		if len(e.Causes) == 0 && len(wrong) < maxMismatches {
			at := problem.Pointer(slices.Concat([]string{"vars"}, e.InstanceLocation)...)
			wrong = append(
				wrong,
				problem.FieldError{
					Pointer: at,
					Code:    "schema_mismatch",
					Detail:  "It does not match the schema of the template: " + e.ErrorKind.LocalizedString(english) + ".",
				},
			)
		}
		for _, cause := range e.Causes {
			leaves(cause)
		}
	}
	leaves(invalid)
	return wrong
}
