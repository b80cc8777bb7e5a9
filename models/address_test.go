package models

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestEraseText: an address is replaced in every form, and no other address is touched.
func TestEraseText(t *testing.T) {
	t.Parallel()
	const gone = ErasedAddress
	for text, want := range map[string]string{
		"":                                "",
		"ann@x.test":                      gone,
		"<Ann@X.TEST>: 550 ann@x.test.":   "<" + gone + ">: 550 " + gone + ".",
		"ann@x.test.example":              "ann@x.test.example",
		"ann@x.testing":                   "ann@x.testing",
		"joann@x.test":                    "joann@x.test",
		"jo.ann@x.test":                   "jo.ann@x.test",
		`{"to":"\u003cann@x.test\u003e"}`: `{"to":"\u003c` + gone + `\u003e"}`,
		`"a\nann@x.test"`:                 `"a\n` + gone + `"`,
		"to=%3Cann%40x.test%3E&x=1":       "to=%3C" + gone + "%3E&x=1",
		"é ann@x.test ü":                  "é " + gone + " ü",
	} {
		require.Equal(t, want, EraseText(text, "Ann@x.test"), text)
	}
	require.Equal(t, "r="+gone, EraseText("r=a%2Bb%40x.test", "a+b@x.test"))
}
