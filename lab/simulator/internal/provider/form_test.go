package provider

import (
	"encoding/json"
	"testing"
	"unicode/utf8"
)

// FuzzQuote checks that encoding/json reads what Quote writes.
func FuzzQuote(f *testing.F) {
	f.Add("a@example.com")
	f.Add("\"\\\n<>\x00ä\xff")
	f.Fuzz(func(t *testing.T, text string) {
		var back string
		quoted := Quote(nil, text)
		if err := json.Unmarshal(quoted, &back); err != nil || utf8.ValidString(text) && back != text {
			t.Fatalf("%s: %v", quoted, err)
		}
	})
}
