package config

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/knadh/koanf/parsers/yaml"
	"github.com/knadh/koanf/providers/file"
	"github.com/knadh/koanf/v2"

	"github.com/safedelivr/safedelivr/models/settings"
)

// Load reads the file at path and then the environment, which overrides it. An empty path means no file, and a nil
// environ means os.Environ. The error joins all mistakes, each a Mistake except that the file cannot be read.
func Load(path string, environ []string) (Config, error) {
	if environ == nil {
		environ = os.Environ()
	}
	l := loader{k: koanf.New("."), names: names{typed: map[string]string{}, file: path != ""}}
	if path != "" {
		l.readFile(path)
	}
	l.readEnvironment(environ)
	l.readSecrets()
	l.readValues()
	c := Defaults()
	if err := l.k.Unmarshal("", &c); err != nil { // all values have their types, and all settings exist
		l.mistakes = append(l.mistakes, err)
	}
	for name, p := range c.Providers {
		settings.Fill(&p)
		c.Providers[name] = p
	}
	c.names = l.names
	return c, errors.Join(append(l.mistakes, c.check(l.wrong)...)...)
}

// loader reads the settings that are set.
type loader struct {
	k        *koanf.Koanf
	names    names
	wrong    []string // settings with a mistake
	mistakes []error
}

// mistake notes a mistake in a setting, which is then not set.
func (l *loader) mistake(setting, format string, args ...any) {
	l.mistakes = append(l.mistakes, Mistake{setting, l.names.of(setting), fmt.Sprintf(format, args...)})
	l.wrong = append(l.wrong, setting)
	l.k.Delete(setting)
}

// unknown notes that a name is that of no setting. One of candidates may have been meant.
func (l *loader) unknown(name string, candidates []string) {
	text := "no such setting"
	if meant := Nearest(name, candidates); meant != "" {
		text += "; did you mean " + meant + "?"
	}
	l.mistakes = append(l.mistakes, Mistake{Name: name, Text: text})
}

func (l *loader) readFile(path string) {
	if err := l.k.Load(file.Provider(path), yaml.Parser()); err != nil {
		if line := tabbed(path); line > 0 {
			err = fmt.Errorf("line %d begins with a tab; YAML wants spaces", line)
		}
		l.mistakes = append(l.mistakes, fmt.Errorf("configuration file %s: %w", path, err))
		return
	}
	for _, key := range l.k.Keys() {
		setting := settingIn(key)
		switch _, ok := settingType(setting); {
		case ok:
			l.names.typed[setting] = key
		case l.k.Get(key) == nil: // a section without settings
			l.k.Delete(key)
		default:
			l.unknown(key, candidates(key, "."))
			l.k.Delete(key)
		}
	}
}

// tabbed returns the number of the first line of a file that has a tab before its first character, or 0.
func tabbed(path string) int {
	raw, _ := os.ReadFile(path) // an empty file has no such line
	number := 0
	for line := range strings.Lines(string(raw)) {
		number++
		text := strings.TrimLeft(line, " \t")
		if strings.Contains(line[:len(line)-len(text)], "\t") && strings.TrimSpace(text) != "" {
			return number
		}
	}
	return 0
}

func (l *loader) readEnvironment(environ []string) {
	values := map[string]string{} // the last one counts
	for _, v := range environ {
		if name, value, ok := strings.Cut(v, "="); ok && strings.HasPrefix(name, Prefix) {
			values[name] = value
		}
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		typed := strings.TrimPrefix(name, Prefix)
		if strings.HasPrefix(typed, "TEST_") || strings.HasPrefix(typed, "SERVICES_") || typed == "CONFIG" {
			continue // used by the test scripts and the command line
		}
		key, ok := settingOf(strings.ToLower(typed))
		if !ok {
			l.unknown(name, candidates(name, "_"))
			continue
		}
		setting := settingIn(key)
		if other := l.names.typed[setting]; strings.HasPrefix(other, Prefix) && l.k.String(setting) != "" {
			if values[name] != "" {
				l.names.typed[setting] = name
				l.mistake(setting, "set either this or %s", other)
			}
			continue
		}
		l.names.typed[setting] = name
		l.k.Delete(setting) // the environment overrides the file
		l.k.Delete(setting + fileSuffix)
		_ = l.k.Set(key, values[name]) // never an error: no setting is above another
	}
}

// readValues gives every value the type of its setting.
func (l *loader) readValues() {
	for _, setting := range l.k.Keys() {
		f, _ := settingType(setting)
		value, err := settings.Parse(f.Type, l.k.Get(setting))
		if err == nil && value != nil {
			err = settings.Check(f, value)
		}
		switch {
		case err != nil:
			l.mistake(setting, "%s", err)
		case value == nil:
			l.k.Delete(setting)
		default:
			_ = l.k.Set(setting, value)
		}
	}
}
