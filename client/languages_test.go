package client_test

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/stretchr/testify/require"
)

// words are the words of declarations: names of members and texts that are values, each behind the declaration's name.
type words map[string]bool

// schema adds the words of a schema. It does not follow references.
func (w words) schema(name string, refs ...*openapi3.SchemaRef) {
	for _, ref := range refs {
		if ref == nil || ref.Ref != "" {
			continue
		}
		s := ref.Value
		for _, v := range append(slices.Clone(s.Enum), s.Const) {
			if text, ok := v.(string); ok {
				w[name+" "+text] = true
			}
		}
		for member, of := range s.Properties {
			w[name+" "+member] = true
			w.schema(name, of)
		}
		w.schema(name, s.Items, s.AdditionalProperties.Schema)
		w.schema(name, slices.Concat(s.AllOf, s.AnyOf, s.OneOf)...)
	}
}

// text adds the words that a regular expression finds.
func (w words) text(name, expression, text string) {
	for _, m := range regexp.MustCompile(expression).FindAllStringSubmatch(text, -1) {
		w[name+" "+m[1]] = true
	}
}

// in requires that the declarations of another language have these words, and no others.
func (w words) in(t *testing.T, have words, generate string) {
	t.Helper()
	missing, stale := maps.Clone(w), maps.Clone(have)
	maps.DeleteFunc(missing, func(word string, _ bool) bool { return have[word] })
	maps.DeleteFunc(stale, func(word string, _ bool) bool { return w[word] })
	require.NotEmpty(t, have)
	require.Empty(t, missing, generate)
	require.Empty(t, stale, generate)
}

// source returns a file without what an expression finds.
func source(t *testing.T, file, without string) string {
	t.Helper()
	raw, err := os.ReadFile(file)
	require.NoError(t, err)
	return regexp.MustCompile(without).ReplaceAllString(string(raw), "")
}

// declarations returns the texts of declarations by their names. head finds where one begins, and its name.
func declarations(head, text string) map[string]string {
	out, begin := map[string]string{}, regexp.MustCompile(head).FindAllStringSubmatchIndex(text, -1)
	for i, at := range begin {
		end := len(text)
		if i+1 < len(begin) {
			end = begin[i+1][0]
		}
		out[text[at[2]:at[3]]] = text[at[1]:end]
	}
	return out
}

// TestTypesOfOtherLanguages: the types for TypeScript and Python have the members, the values and the parameters of the
// description. Their generators are not part of go generate: client/typescript/README.md and client/python/README.md
// say how they run.
func TestTypesOfOtherLanguages(t *testing.T) {
	t.Parallel()
	doc := description(t)
	want := words{}
	for name, ref := range doc.Components.Schemas {
		want.schema(name, ref)
	}
	ts := source(t, "typescript/src/schema.ts", `(?s)/\*\*.*?\*/|components(\["\w+"\])+`)
	const member = `"?([\w-]+)"?\??: `
	_, schemas, _ := strings.Cut(ts, "\n    schemas: {\n")
	schemas, _, _ = strings.Cut(schemas, "\n    };\n")
	have := words{}
	for name, text := range declarations(`(?m)^ {8}(\w+): `, schemas) {
		have.text(name, `(?m)^ +`+member, text)
		have.text(name, `"([^"]*)"`, text)
	}
	want.in(t, have, "in client/typescript: npm run generate")

	py := source(t, "python/src/safedelivr/schema.py", `(?s)""".*?"""`)
	parts, have := declarations(`(?m)^(?:class )?(\w+)(?:\(| = TypedDict\(\s+'\w+',|: TypeAlias = )`, py), words{}
	var add func(name, text string)
	add = func(name, text string) {
		have.text(name, `(?m)^    (\w+): `, text)
		have.text(name, `'([^']*)'`, text)
		for _, part := range regexp.MustCompile(`\b[A-Z]\w*`).FindAllString(text, -1) {
			if doc.Components.Schemas[part] == nil { // a class of its own for a part of a schema
				add(name, parts[part])
			}
		}
	}
	for name := range doc.Components.Schemas {
		add(name, parts[name])
	}
	want.in(t, have, "in client/python: python generate.py")

	want, have = words{}, words{}
	paths := doc.Paths.Map()
	maps.Copy(paths, doc.Webhooks)
	for _, item := range paths {
		for _, op := range item.Operations() {
			for _, p := range append(slices.Clone(item.Parameters), op.Parameters...) {
				want[op.OperationID+" "+p.Value.Name] = true
			}
		}
	}
	_, calls, _ := strings.Cut(ts, "\nexport interface operations {\n")
	for name, text := range declarations(`(?m)^ {4}(\w+): `, calls) {
		text, _, _ = strings.Cut(text, "\n        };\n")
		have.text(name, `(?m)^ {16}`+member, text)
	}
	want.in(t, have, "in client/typescript: npm run generate")
}
