package templates

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"regexp/syntax"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// Bounds of a JSON Schema, besides its size. They are checked before it is compiled: a number like 1e999999 would be
// calculated with a million digits.
const (
	maxKeywords = 5_000 // members of its objects and elements of its lists
	maxPatterns = 100
	maxPattern  = 500       // bytes
	maxMatching = 20_000    // steps of all patterns, when their repeats are written out: .{1000} has 1,000
	maxNumber   = 64        // characters
	maxLevels   = 100       // of objects and lists in each other: compiling takes as long as their cube
	maxChecks   = 4_000_000 // keywords times values of a recipient: with more, a check can take seconds

	maxMatches = 100_000_000 // steps of patterns times bytes of a recipient's texts: about a second
)

// schemaCost counts what a schema has.
type schemaCost struct{ keywords, weight, patterns, steps int }

// check returns an error if a part of a schema is too large. pattern reports whether it is the value of pattern.
func (c *schemaCost) check(v any, pattern bool, level int) error {
	if c.keywords++; c.keywords > maxKeywords {
		return fmt.Errorf("a schema has at most %d keywords and values", maxKeywords)
	}
	c.weight++
	if level > maxLevels {
		return fmt.Errorf("a schema has at most %d levels", maxLevels)
	}
	switch v := v.(type) {
	case json.Number:
		f, _ := v.Float64()
		c.weight += weightOf(f)
		return checkNumber(v)
	case string:
		if pattern {
			return c.pattern(v)
		}
	case []any:
		for _, e := range v {
			if err := c.check(e, false, level+1); err != nil {
				return err
			}
		}
	case map[string]any:
		if v["format"] == "regex" { // each value of a recipient would be compiled
			return errors.New("the format regex is not supported")
		}
		for name, e := range v {
			if err := c.check(e, name == "pattern", level+1); err != nil {
				return err
			}
			if patterns, ok := e.(map[string]any); ok && name == "patternProperties" {
				for p := range patterns {
					if err := c.pattern(p); err != nil {
						return err
					}
				}
			}
		}
	}
	return nil
}

// pattern counts a regular expression.
func (c *schemaCost) pattern(p string) error {
	if c.patterns++; c.patterns > maxPatterns || len(p) > maxPattern {
		return fmt.Errorf("a schema has at most %d patterns of at most %d bytes", maxPatterns, maxPattern)
	}
	re, err := syntax.Parse(p, syntax.Perl)
	if err != nil {
		return nil //nolint:nilerr // compiling it says so
	}
	if c.steps += stepsOf(re); c.steps > maxMatching {
		return fmt.Errorf("a schema has at most %d steps in its patterns: repeat less in them", maxMatching)
	}
	return nil
}

// stepsOf returns about how many steps a regular expression has when it is compiled.
func stepsOf(re *syntax.Regexp) int {
	n := 1 + len(re.Rune)/8 // of a class of characters
	if re.Op == syntax.OpLiteral {
		n = 1 + len(re.Rune)
	}
	for _, sub := range re.Sub {
		n += stepsOf(sub)
	}
	if re.Op == syntax.OpRepeat {
		n *= max(re.Min, re.Max, 1)
	}
	return min(n, maxMatching+1)
}

var errNumber = fmt.Errorf("a number has at most %d characters, and is between 1e-300 and 1e300 or 0", maxNumber)

func checkNumber(n json.Number) error {
	if len(n) > maxNumber {
		return errNumber
	}
	f, err := n.Float64()
	if err != nil || math.Abs(f) > 1e300 {
		return errNumber
	}
	if f == 0 && !isZero(string(n)) || f != 0 && math.Abs(f) < 1e-300 {
		return errNumber
	}
	return nil
}

// weightOf returns what a number counts besides 1: a schema calculates with all its digits.
func weightOf(f float64) int {
	_, exponent := math.Frexp(f)
	return max(exponent, -exponent) / 16
}

// isZero reports whether a number in JSON has only zeros before its exponent. 0e999999 is harmless only without one.
func isZero(n string) bool {
	for _, r := range n {
		if r != '0' && r != '-' && r != '.' {
			return false
		}
	}
	return true
}

// noLoader refuses everything that a schema refers to outside of itself.
type noLoader struct{}

var errRemote = errors.New("a schema cannot refer to other documents")

func (noLoader) Load(string) (any, error) { return nil, errRemote }

// schema is a compiled JSON Schema.
type schema struct {
	*jsonschema.Schema
	weight int // of its keywords and values
	steps  int // of its patterns
}

// compileSchema compiles a JSON Schema. References are refused, also those inside of it:
// with them a small schema can describe a check that takes exponential time.
func compileSchema(raw json.RawMessage) (*schema, error) {
	if len(raw) > maxSchema {
		return nil, fmt.Errorf("a schema has at most %d bytes", maxSchema)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		return nil, fmt.Errorf("the schema is not JSON: %w", err)
	}
	if _, ok := doc.(map[string]any); !ok {
		return nil, errors.New("a schema is a JSON object")
	}
	var cost schemaCost
	if err := cost.check(doc, false, 1); err != nil {
		return nil, err
	}
	if name := reference(doc); name != "" {
		return nil, fmt.Errorf("%s is not supported: write what it refers to in its place", name)
	}
	c := jsonschema.NewCompiler()
	c.UseLoader(noLoader{})
	c.AssertFormat()
	const url = "urn:template:schema"
	if err := c.AddResource(url, doc); err != nil {
		return nil, fmt.Errorf("the schema cannot be used: %w", err)
	}
	compiled, err := c.Compile(url)
	if err != nil {
		return nil, fmt.Errorf("the schema cannot be used: %s", strings.ReplaceAll(err.Error(), url, ""))
	}
	return &schema{compiled, cost.weight, cost.steps}, nil
}

// reference returns a member of a schema that refers to another one, or "".
func reference(v any) string {
	switch v := v.(type) {
	case map[string]any:
		for _, name := range []string{"$ref", "$dynamicRef", "$recursiveRef"} {
			if _, ok := v[name]; ok {
				return name
			}
		}
		for _, member := range v {
			if name := reference(member); name != "" {
				return name
			}
		}
	case []any:
		for _, element := range v {
			if name := reference(element); name != "" {
				return name
			}
		}
	}
	return ""
}

// sizeOf returns how many values a value has; long text counts as many.
func sizeOf(v any) int {
	n := 1
	switch v := v.(type) {
	case string:
		n += len(v) / 16
	case float64:
		n += weightOf(v)
	case json.Number:
		n += len(v) / 4
	case []any:
		for _, e := range v {
			n += sizeOf(e)
		}
	case map[string]any:
		for name, e := range v {
			n += len(name)/16 + sizeOf(e)
		}
	}
	return n
}

// textIn returns how many bytes the texts in a value have.
func textIn(v any) (n int) {
	switch v := v.(type) {
	case string:
		return len(v)
	case []any:
		for _, e := range v {
			n += textIn(e)
		}
	case map[string]any:
		for name, e := range v {
			n += len(name) + textIn(e)
		}
	}
	return n
}

// fits reports whether the variables of a recipient can be checked in a short time.
func (s *schema) fits(vars map[string]any) bool {
	return s.weight*sizeOf(vars) <= maxChecks && s.steps*textIn(vars) <= maxMatches
}
