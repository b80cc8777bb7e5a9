package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/safedelivr/safedelivr/models/nearest"
)

// A Mistake is a wrong setting.
type Mistake struct {
	Setting string // like providers.sg.api_key; "" if there is no such setting
	Name    string // as it was typed: a variable, or the setting in the file
	Text    string // without secrets
}

// Error implements error.
func (m Mistake) Error() string { return m.Name + ": " + m.Text }

// Mistake returns a mistake in a setting, by the name that was typed.
func (c *Config) Mistake(setting, format string, args ...any) Mistake {
	return Mistake{setting, c.Name(setting), fmt.Sprintf(format, args...)}
}

// Name returns the name by which a setting was set, or can be set.
func (c *Config) Name(setting string) string { return c.names.of(setting) }

// names knows how settings were typed.
type names struct {
	typed map[string]string // by setting
	file  bool              // there is a file
}

func (n names) of(setting string) string {
	if name, ok := n.typed[setting]; ok {
		return name
	}
	section := setting[:strings.LastIndex(setting, ".")+1]
	for other, name := range n.typed {
		if section != "" && strings.HasPrefix(other, section) && strings.HasPrefix(name, Prefix) {
			return Variable(setting)
		}
	}
	if n.file {
		return setting
	}
	return Variable(setting)
}

// Variable returns the variable that sets a setting.
func Variable(setting string) string {
	return Prefix + strings.ToUpper(strings.NewReplacer(".", "_", "-", "_").Replace(setting))
}

// settingOf returns the setting that a variable sets, given its name in lower case without the prefix.
func settingOf(name string) (string, bool) {
	if rest, ok := strings.CutPrefix(name, "providers_"); ok {
		for _, field := range providerFields() {
			// the fields with the longest names come first: call_rate ends with rate, too
			if provider, ok := strings.CutSuffix(rest, "_"+field); ok && provider != "" {
				return "providers." + strings.ReplaceAll(provider, "_", "-") + "." + field, true
			}
		}
		return "", false
	}
	for _, setting := range general() {
		if strings.ReplaceAll(setting, ".", "_") == name {
			return setting, true
		}
	}
	return "", false
}

// general returns the settings outside of providers, with those that name the file of a secret.
func general() []string {
	var out []string
	for _, f := range reflect.VisibleFields(reflect.TypeFor[Config]()) {
		switch tag := f.Tag.Get("koanf"); {
		case tag == "" || f.Type.Kind() == reflect.Map:
		case f.Type.Kind() == reflect.Struct:
			for i := range f.Type.NumField() {
				out = append(out, tag+"."+f.Type.Field(i).Tag.Get("koanf"))
			}
		default:
			out = append(out, tag)
		}
	}
	for _, s := range secrets {
		out = append(out, s+fileSuffix)
	}
	return out
}

// providerFields returns the settings of a provider, longest first, with those that name the file of a secret.
func providerFields() []string {
	var out []string
	for _, f := range reflect.VisibleFields(reflect.TypeFor[Provider]()) {
		if !f.Anonymous {
			out = append(out, f.Tag.Get("koanf"))
		}
	}
	for _, s := range providerSecrets {
		out = append(out, s+fileSuffix)
	}
	slices.SortStableFunc(out, func(a, b string) int { return len(b) - len(a) })
	return out
}

// settingType returns the field of a setting. It is false for sections and for what does not exist.
func settingType(setting string) (reflect.StructField, bool) {
	var f reflect.StructField
	t := reflect.TypeFor[Config]()
	parts := strings.Split(setting, ".")
	for i := 0; i < len(parts); i++ {
		if t.Kind() == reflect.Map {
			t = t.Elem()
			continue // parts[i] is a provider's name
		}
		found, ok := field(t, parts[i])
		if !ok {
			return found, false
		}
		f, t = found, found.Type
	}
	return f, t.Kind() != reflect.Struct && t.Kind() != reflect.Map
}

// field returns the field of a struct with a name in the configuration.
func field(t reflect.Type, name string) (reflect.StructField, bool) {
	if t.Kind() == reflect.Struct && name != "" {
		for _, f := range reflect.VisibleFields(t) {
			if f.Tag.Get("koanf") == name {
				return f, true
			}
		}
	}
	return reflect.StructField{}, false
}

// candidates returns the names of settings that name may be a misspelling of. sep separates the parts of name: "." in
// the file, "_" in the environment.
func candidates(name, sep string) []string {
	var out []string
	for _, setting := range general() {
		if sep == "_" {
			setting = Variable(setting)
		}
		out = append(out, setting)
	}
	section, prefix := "providers", ""
	if sep == "_" {
		section, prefix = "PROVIDERS", Prefix
	}
	// Any part of what follows the section may be the provider's name.
	parts := strings.Split(strings.TrimPrefix(name, prefix), sep)
	for n := 2; n < len(parts); n++ {
		for _, field := range providerFields() {
			if sep == "_" {
				field = strings.ToUpper(field)
			}
			out = append(out, prefix+strings.Join([]string{section, strings.Join(parts[1:n], sep), field}, sep))
		}
	}
	return out
}

// Nearest returns the candidate that differs least from name, or "" if all differ by much. The prefix of variables does
// not count.
func Nearest(name string, candidates []string) string {
	plain := map[string]string{} // by the name without the prefix
	var names []string
	for _, c := range candidates {
		short := strings.TrimPrefix(c, Prefix)
		plain[short], names = c, append(names, short)
	}
	return plain[nearest.Of(strings.TrimPrefix(name, Prefix), names)]
}
