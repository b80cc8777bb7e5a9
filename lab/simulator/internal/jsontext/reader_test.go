package jsontext

import (
	"bytes"
	"encoding/json"
	"testing"
	"unicode/utf8"
)

// FuzzReader checks that a Reader accepts what encoding/json accepts and reads the same
// values, and that encoding/json reads what AppendQuoted writes.
func FuzzReader(f *testing.F) {
	for _, seed := range []string{
		`{"a":[1,-0.5e+3,true,false,null,"x\n\u00e4\ud83d\ude00"],"b":{}}`, `[[],{"\\":"\""} , 1 ]`,
		`[]`, ` "a" `, `-1`, `01`, `{"a":1,}`, `"\x"`, `{"a" 1}`, `1.`, `-`, `nul`, `[1 2]`, `[1,]`, `[`,
		"\"\n\"", "\"\xff\"", `"\ud800"`, `{"" : {"a":{"b":[]}}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, doc []byte) {
		var back string
		quoted := AppendQuoted(nil, string(doc))
		if err := json.Unmarshal(quoted, &back); err != nil || utf8.Valid(doc) && back != string(doc) {
			t.Fatalf("%s: %v", quoted, err)
		}
		if bytes.Count(doc, []byte("["))+bytes.Count(doc, []byte("{")) > maxDepth {
			return
		}
		r := NewReader(string(doc))
		text := r.Skip()
		if valid := json.Valid(doc); r.OK() != valid {
			t.Fatalf("valid %v, have %v: %q", valid, r.OK(), doc)
		} else if !valid {
			return
		}
		if text != string(bytes.Trim(doc, " \t\r\n")) {
			t.Fatalf("%q in %q", text, doc)
		}
		var want any
		if err := json.Unmarshal(doc, &want); err != nil {
			return // a number is too large
		}
		if have := value(NewReader(string(doc))); !same(have, want) {
			t.Fatalf("%v, want %v", have, want)
		}
	})
}

// value reads any value with the methods for its type. Numbers and words are their text.
func value(r *Reader) any {
	switch r.Peek() {
	case '"':
		return r.String()
	case '{':
		m := map[string]any{}
		r.Object(func(key string) { m[key] = value(r) })
		return m
	case '[':
		list := []any{}
		r.Array(func() { list = append(list, value(r)) })
		return list
	}
	return json.RawMessage(r.Skip())
}

// same compares values by their JSON.
func same(have, want any) bool {
	a, err1 := json.Marshal(have)
	var normal any
	err2 := json.Unmarshal(a, &normal)
	a, err3 := json.Marshal(normal)
	b, err4 := json.Marshal(want)
	return err1 == nil && err2 == nil && err3 == nil && err4 == nil && bytes.Equal(a, b)
}
