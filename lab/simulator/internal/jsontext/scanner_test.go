package jsontext

import (
	"bytes"
	"encoding/json"
	"testing"
	"unicode/utf8"
)

// FuzzScanner checks that a Scanner accepts what encoding/json accepts and reads
// the same strings, and that encoding/json reads what AppendQuoted writes.
func FuzzScanner(f *testing.F) {
	for _, seed := range []string{
		`{"a":[1,-0.5e+3,true,false,null,"x\n\u00e4\ud83d\ude00"],"b":{}}`,
		`[]`, ` "a" `, `01`, `{"a":1,}`, `"\x"`, "\"\xff\"", `{"a" 1}`, `1.`, `-`, `nul`, `[1 2]`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, doc []byte) {
		if bytes.Count(doc, []byte("[")) > maxDepth/2 || bytes.Count(doc, []byte("{")) > maxDepth/2 {
			return
		}
		s := Scanner{buf: doc}
		s.Skip()
		if valid := json.Valid(doc); s.End() != valid {
			t.Fatalf("valid %v, have %v: %q", valid, s.End(), doc)
		}
		var want string
		if json.Unmarshal(doc, &want) == nil && bytes.HasPrefix(bytes.TrimLeft(doc, " \t\r\n"), []byte(`"`)) {
			s.Reset(doc)
			if have := string(s.Text(s.ReadString())); have != want && utf8.Valid(doc) {
				t.Fatalf("%q, want %q", have, want)
			}
		}
		if quoted := AppendQuoted(nil, doc); utf8.Valid(doc) {
			var back string
			if err := json.Unmarshal(quoted, &back); err != nil || back != string(doc) {
				t.Fatalf("%s: %v", quoted, err)
			}
		} else if !json.Valid(quoted) || !utf8.Valid(quoted) {
			t.Fatalf("%q", quoted)
		}
	})
}
