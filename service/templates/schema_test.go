package templates

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSchemaIsBounded: numbers, patterns and keywords of a schema are bounded before it is compiled.
func TestSchemaIsBounded(t *testing.T) {
	t.Parallel()
	many := func(n int, one string) string { return strings.Repeat(one+",", n-1) + one }
	for name, schema := range map[string]string{
		"huge numbers":     `{"allOf": [` + many(2500, `{"maximum": 1e999999}`) + `]}`,
		"one huge number":  `{"maximum": 1e400}`,
		"a tiny number":    `{"multipleOf": 1e-999999}`,
		"zero, far away":   `{"maximum": 0e999999}`,
		"a long number":    `{"maximum": 0.` + strings.Repeat("1", 100) + `}`,
		"many patterns":    `{"allOf": [` + many(101, `{"pattern": "(a+)+b"}`) + `]}`,
		"a long pattern":   `{"pattern": "` + strings.Repeat("a", 501) + `"}`,
		"pattern property": `{"patternProperties": {"` + strings.Repeat("a", 501) + `": {}}}`,
		"costly patterns":  `{"allOf": [` + many(9, `{"pattern": "`+strings.Repeat(".{1000}", 70)+`"}`) + `]}`,
		"nested repeats":   `{"patternProperties": {"` + strings.Repeat("(.{10}){99}", 40) + `": {}}}`,
		"regex of values":  `{"properties": {"p": {"format": "regex"}}}`,
		"many levels":      strings.Repeat(`{"allOf":[`, 51) + `{}` + strings.Repeat(`]}`, 51),
		"many objects":     strings.Repeat(`{"not":`, 101) + `{}` + strings.Repeat(`}`, 101),
		"many keywords":    `{"enum": [` + many(5001, `1`) + `]}`,
	} {
		_, err := compileSchema([]byte(schema))
		require.Error(t, err, name)
		require.Regexp(t, "a schema has at most|a number has at most|regex is not supported", err.Error(), name)
	}
	_, err := compileSchema([]byte(strings.Repeat(`{"not":`, 99) + `{}` + strings.Repeat(`}`, 99)))
	require.NoError(t, err)
	_, err = compileSchema([]byte(`{"pattern": "("}`))
	require.ErrorContains(t, err, "the schema cannot be used")
	require.NotContains(t, err.Error(), "file:", "it names no folder of the machine")
	_, err = compileSchema([]byte(`{"type": "object", "properties": {"n": {"maximum": 1e10, "multipleOf": 0.01},
		"pattern": {"type": "string", "pattern": "^[a-z]+$"}}, "patternProperties": {"^x": {}}}`))
	require.NoError(t, err)
}
