package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"reflect"
	"regexp"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/config"
	"github.com/safedelivr/safedelivr/models/settings"
)

const configurationPage = "docs/configuration.md"

// markers enclose the table of a section of the configuration.
var markers = regexp.MustCompile(`(?s)(<!-- settings of (\w+) -->\n).*?(<!-- end -->)`)

// declarations are the files that declare settings. The comments of the fields are their meanings.
var declarations = []string{"config/config.go", "models/settings/settings.go", "models/settings/pair.go",
	"models/settings/server.go", "models/settings/amazon.go"}

// withTables replaces the tables of the page by those that the code says.
func withTables(page string) (string, error) {
	meanings := map[string]string{}
	for _, file := range declarations {
		if err := comments(file, meanings); err != nil {
			return "", err
		}
	}
	var wrong error
	found := map[string]bool{}
	page = markers.ReplaceAllStringFunc(page, func(part string) string {
		m := markers.FindStringSubmatch(part)
		table, err := tableOf(m[2], meanings)
		if err != nil {
			wrong = err
		}
		found[m[2]] = true
		return m[1] + table + m[3]
	})
	for _, section := range sections() {
		if !found[section] {
			return "", fmt.Errorf("%s has no place for the settings of %s", configurationPage, section)
		}
	}
	return page, wrong
}

// comments adds the comments of the fields of structs in a Go file to out, by "Type.Field".
func comments(file string, out map[string]string) error {
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
	if err != nil {
		return err
	}
	ast.Inspect(parsed, func(n ast.Node) bool {
		t, ok := n.(*ast.TypeSpec)
		if !ok {
			return true
		}
		if s, ok := t.Type.(*ast.StructType); ok {
			for _, f := range s.Fields.List {
				for _, name := range f.Names {
					out[t.Name.Name+"."+name.Name] = strings.Join(strings.Fields(f.Doc.Text()), " ")
				}
			}
		}
		return true
	})
	return nil
}

// sections returns the names of the sections of the configuration: "general" has the settings outside of sections.
func sections() []string {
	out := []string{"general"}
	for _, f := range reflect.VisibleFields(reflect.TypeFor[config.Config]()) {
		if k := f.Type.Kind(); f.IsExported() && (k == reflect.Struct || k == reflect.Map) {
			out = append(out, f.Tag.Get("koanf"))
		}
	}
	return out
}

// tableOf returns the table of the settings of a section.
func tableOf(section string, meanings map[string]string) (string, error) {
	values, prefix := reflect.ValueOf(config.Defaults()), ""
	switch {
	case section == "providers":
		values, prefix = reflect.ValueOf(settings.Default[config.Provider]()), "providers.<NAME>."
	case section != "general":
		for _, f := range reflect.VisibleFields(values.Type()) {
			if f.Tag.Get("koanf") == section {
				values, prefix = values.FieldByIndex(f.Index), section+"."
				break
			}
		}
	}
	var b strings.Builder
	b.WriteString("\n| variable | meaning | values | default |\n|---|---|---|---|\n")
	for _, f := range reflect.VisibleFields(values.Type()) {
		if k := f.Type.Kind(); !f.IsExported() || k == reflect.Struct || k == reflect.Map {
			continue
		}
		declared := values.Type()
		if path := f.Index[:len(f.Index)-1]; len(path) > 0 {
			declared = declared.FieldByIndex(path).Type
		}
		meaning := meanings[declared.Name()+"."+f.Name]
		if meaning == "" {
			return "", fmt.Errorf("%s.%s has no comment", declared.Name(), f.Name)
		}
		name := config.Variable(prefix + f.Tag.Get("koanf"))
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", name, meaning, valuesOf(f),
			defaultOf(name, f, values.FieldByIndex(f.Index)))
	}
	b.WriteString("\n")
	return b.String(), nil
}

// valuesOf returns which values a setting may have, with their unit.
func valuesOf(f reflect.StructField) string {
	if words := f.Tag.Get("oneof"); words != "" {
		return "`" + strings.ReplaceAll(words, ",", "`, `") + "`"
	}
	limits, unit := f.Tag.Get("range"), f.Tag.Get("unit")
	least, most, _ := strings.Cut(limits, "..")
	var text string
	switch {
	case f.Type.Kind() == reflect.Bool:
		return "`true`, `false`"
	case limits == "":
		return ""
	case limits == ">0":
		text = "more than 0"
	case most == "":
		text = least + " or more"
	default:
		text = least + " to " + grouped(most)
	}
	if f.Type == reflect.TypeFor[time.Duration]() {
		return "duration, " + text
	}
	return strings.TrimSpace(text + " " + unit)
}

// defaultOf returns the default of a setting.
func defaultOf(name string, f reflect.StructField, v reflect.Value) string {
	switch value := v.Interface().(type) {
	case time.Duration:
		if value == 0 {
			return ""
		}
		text := value.String()
		for _, end := range []string{"m0s", "h0m"} {
			if strings.HasSuffix(text, end) {
				text = text[:len(text)-2]
			}
		}
		return "`" + text + "`"
	case []string:
		if len(value) > 0 {
			return "`" + strings.Join(value, ",") + "`"
		}
	case string:
		if value != "" && name != config.Variable("worker") { // this machine's name is not everyone's
			return "`" + value + "`"
		}
	default:
		text := "`" + fmt.Sprint(value) + "`"
		if f.Tag.Get("unit") == "bytes" {
			text += size(v.Int())
		}
		return text
	}
	return ""
}

// size returns a number of bytes in a larger unit.
func size(n int64) string {
	for _, unit := range []struct {
		bytes int64
		name  string
	}{{1 << 30, "GiB"}, {1 << 20, "MiB"}} {
		if n >= unit.bytes && n%unit.bytes == 0 {
			return fmt.Sprintf(" (%d %s)", n/unit.bytes, unit.name)
		}
	}
	return ""
}

// grouped returns a number with commas between thousands.
func grouped(digits string) string {
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}
