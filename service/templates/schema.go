package templates

import (
	"encoding/json"
	"fmt"
	"math"
)

// Bounds of a JSON Schema, besides its size. They are checked before it is compiled: a number like 1e999999 would be
// calculated with a million digits.
const (
	maxKeywords = 5_000 // members of its objects and elements of its lists
	maxPatterns = 100
	maxPattern  = 500 // bytes
	maxNumber   = 64  // characters
)

// schemaCost counts what a schema has.
type schemaCost struct{ keywords, patterns int }

// check returns an error if a part of a schema is too large. pattern reports whether it is the value of pattern.
func (c *schemaCost) check(v any, pattern bool) error {
	if c.keywords++; c.keywords > maxKeywords {
		return fmt.Errorf("a schema has at most %d keywords and values", maxKeywords)
	}
	switch v := v.(type) {
	case json.Number:
		return checkNumber(v)
	case string:
		if pattern {
			return c.pattern(v)
		}
	case []any:
		for _, e := range v {
			if err := c.check(e, false); err != nil {
				return err
			}
		}
	case map[string]any:
		for name, e := range v {
			if err := c.check(e, name == "pattern"); err != nil {
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
	return nil
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

// isZero reports whether a number in JSON has only zeros before its exponent. 0e999999 is harmless only without one.
func isZero(n string) bool {
	for _, r := range n {
		if r != '0' && r != '-' && r != '.' {
			return false
		}
	}
	return true
}
