package templates

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/problem"
)

// TestNumbersOfVariables: a number of a variable, a default or a list is the number that was sent.
func TestNumbersOfVariables(t *testing.T) {
	t.Parallel()
	var s client.TemplateSource
	require.NoError(t, json.Unmarshal([]byte(`{
		"subject": "{{ id }} {{ id | plus: 1 }} {{ long }}|{{ long | plus: 1 }} {{ total | divided_by: 5 }}",
		"text": "t{{ list[0] | plus: 1 }} {{ own | append: '' }} {{ own }} {{ price }} {{ small }} {{ word }}",
		"defaults": {"id": 9007199254740993, "long": 12345678901234567890123, "total": 12.0, "small": 1E-7}}`), &s))
	raw, err := json.Marshal(&s)
	require.NoError(t, err)
	var stored client.TemplateSource
	require.NoError(t, json.Unmarshal(raw, &stored), "as it is stored")
	f, err := newFiller(&stored, "")
	require.NoError(t, err)
	r := models.Recipient{Email: "a@example.com", Vars: map[string]string{"list": "[9007199254740993]", "own": "1e5",
		"price": "1.50", "word": "1e5"}}
	wrong, err := f.Fill(t.Context(), &r, []string{"list", "own", "price"}, nil)
	require.NoError(t, err)
	require.Empty(t, wrong)
	var c models.Content
	f.Content(&c)
	require.Equal(t, "9007199254740993 9007199254740994 12345678901234567890123|12345678901234567890124 2.4",
		r.Fill(c.Subject, nil))
	require.Equal(t, "t9007199254740994 100000.0 100000.0 1.50 0.0000001 1e5", r.Fill(c.Text, nil))
}

// TestHugeNumbersOfVariables: a number that takes much work is refused before a schema calculates with it.
func TestHugeNumbersOfVariables(t *testing.T) {
	t.Parallel()
	s := client.TemplateSource{TemplateContent: client.TemplateContent{Subject: "s", Text: "t"}, Schema: json.RawMessage(
		`{"properties": {"n": {"multipleOf": 0.01}}}`)}
	f, err := newFiller(&s, "")
	require.NoError(t, err)
	for _, n := range []string{"1e999999999", "1e400", strings.Repeat("9", 500), `{"a": [1e999999]}`} {
		r := models.Recipient{Email: "a@example.com", Vars: map[string]string{"n": n}}
		wrong, err := f.Fill(t.Context(), &r, []string{"n"}, nil)
		require.NoError(t, err)
		require.Len(t, wrong, 1, n)
		require.Equal(t, "wrong_type", wrong[0].Code)
		require.Equal(t, "/vars/n", wrong[0].Pointer)
	}
	s.Defaults = client.Values{"n": json.Number("1e999999999")}
	_, err = newFiller(&s, "")
	require.Error(t, err)
}

// TestCheckIsBounded: a schema cannot make the check of a recipient take long.
func TestCheckIsBounded(t *testing.T) {
	t.Parallel()
	all := strings.Repeat(`{"items": {"type": "integer"}},`, 1500)
	s := client.TemplateSource{TemplateContent: client.TemplateContent{Subject: "s", Text: "t"}, Schema: json.RawMessage(
		`{"properties": {"n": {"allOf": [` + strings.TrimSuffix(all, ",") + `]}}}`)}
	f, err := newFiller(&s, "")
	require.NoError(t, err)
	r := models.Recipient{Email: "a@example.com", Vars: map[string]string{"n": "[" + strings.Repeat("1,", 20_000) + "1]"}}
	wrong, err := f.Fill(t.Context(), &r, []string{"n"}, nil)
	require.NoError(t, err)
	require.Len(t, wrong, 1)
	require.Equal(t, "schema_mismatch", wrong[0].Code)
	require.Contains(t, wrong[0].Detail, "too large")
}

// TestCostOfCheck: numbers with many digits and long texts count for the schema that checks them. One with many keywords
// takes any number of recipients. Nothing is checked after the client has left.
func TestCostOfCheck(t *testing.T) {
	t.Parallel()
	schema := func(n int, one string) *Filler {
		s := client.TemplateSource{TemplateContent: client.TemplateContent{Subject: "s", Text: "t"}, Schema: json.RawMessage(
			`{"properties": {"n": {"allOf": [` + strings.Repeat(one+",", n-1) + one + `]}}}`)}
		f, err := newFiller(&s, "")
		require.NoError(t, err)
		return f
	}
	fill := func(f *Filler, value string) []problem.FieldError {
		r := models.Recipient{Email: "a@example.com", Vars: map[string]string{"n": value}}
		wrong, err := f.Fill(t.Context(), &r, []string{"n"}, nil)
		require.NoError(t, err)
		return wrong
	}
	f := schema(2400, `{"multipleOf": 1e-300}`)
	require.NotEmpty(t, fill(f, "1.5e300"), "it takes ten milliseconds for each recipient")
	require.Empty(t, fill(f, "1.5"))

	f = schema(3, `{"pattern": "(?:[ab]|.a|.b){0,600}$"}`)
	require.NotEmpty(t, fill(f, `"`+strings.Repeat("ab", 30_000)+`"`), "it takes seconds")
	require.Empty(t, fill(f, `"`+strings.Repeat("ab", 1_000)+`"`))

	f = schema(1, `{"enum": [`+strings.Repeat(`"x",`, 900)+`"y"]}`)
	for range 20_000 {
		if wrong := fill(f, `"y"`); len(wrong) > 0 {
			require.Empty(t, wrong)
		}
	}

	ctx, leave := context.WithCancel(t.Context())
	leave()
	_, err := f.Fill(ctx, &models.Recipient{}, nil, nil)
	require.ErrorIs(t, err, context.Canceled)
}
