package jsontext

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"testing"
)

// FuzzReader checks that a reader accepts what encoding/json accepts and reads the same values.
func FuzzReader(f *testing.F) {
	for _, seed := range []string{
		`{"a":[1,-0.5e+3,true,false,null,"x\n\u00e4\ud83d\ude00"],"b":{}}`, `[[],{"\\":"\""} , 1 ]`,
		`[]`, ` "a" `, `-1`, `01`, `{"a":1,}`, `"\x"`, `{"a" 1}`, `1.`, `-`, `nul`, `[1 2]`, `[1,]`, `[`,
		"\"\n\"", "\"\xff\"", `"\ud800"`, `{"" : {"a":{"b":[]}}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, doc []byte) {
		if bytes.Count(doc, []byte("["))+bytes.Count(doc, []byte("{")) > maxDepth {
			return
		}
		r := &reader{text: string(doc)}
		text := r.skip()
		if valid := json.Valid(doc); r.ok() != valid {
			t.Fatalf("valid %v, have %v: %q", valid, r.ok(), doc)
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
		if have := value(&reader{text: string(doc)}); !same(have, want) {
			t.Fatalf("%v, want %v", have, want)
		}
	})
}

// value reads any value with the methods for its type. Numbers and words are their text.
func value(r *reader) any {
	switch r.peek() {
	case '"':
		return r.string()
	case '{':
		m := map[string]any{}
		r.object(func(key string) { m[key] = value(r) })
		return m
	case '[':
		list := []any{}
		r.list('[', ']', func() { list = append(list, value(r)) })
		return list
	}
	return json.RawMessage(r.skip())
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

// TestDecodeReadsWhatUnmarshalReads compares the values of both, and what neither takes.
func TestDecodeReadsWhatUnmarshalReads(t *testing.T) {
	t.Parallel()
	type inner struct {
		A string `json:"a"`
		B int64  `json:"b"`
	}
	type outer struct {
		In   inner    `json:"in"`
		Ptr  *inner   `json:"ptr"`
		List []inner  `json:"list"`
		Tags []string `json:"tags"`
		Yes  bool     `json:"yes"`
	}
	for _, doc := range []string{
		`{"in":{"a":"x\u00e4","b":-7},"ptr":{"a":"p"},"list":[{"a":"1"},{"b":2}],"tags":["a","b"],"yes":true,"other":[{}]}`,
		`{"in":null,"ptr":null,"list":null,"tags":null,"yes":null}`, `{}`,
		`{"in":1}`, `{"in":{"a":1}}`, `{"in":{"b":"1"}}`, `{"in":{"b":1.5}}`, `{"yes":"true"}`, `{"tags":[1]}`, `[]`, ``,
		`{}x`,
	} {
		var have, want outer
		ok, err := Decode(doc, &have), json.Unmarshal([]byte(doc), &want)
		if ok != (err == nil) || ok && !reflect.DeepEqual(have, want) {
			t.Errorf("%s: %v %+v, want %v %+v", doc, ok, have, err, want)
		}
	}
}

func TestObjectsKeepTheirOrder(t *testing.T) {
	t.Parallel()
	var v struct {
		Pairs Pairs `json:"pairs"`
		Texts Texts `json:"texts"`
		Raw   Raw   `json:"raw"`
	}
	if !Decode(`{"pairs":{"b":"2","a":"1"}, "texts": {"x" : "y"} ,"raw": [ 1] }`, &v) {
		t.Fatal("not valid")
	}
	if fmt.Sprint(v) != `{[{b 2} {a 1}] {"x" : "y"} [ 1]}` {
		t.Errorf("%v", v)
	}
	for _, doc := range []string{`{"pairs":{"a":1}}`, `{"texts":{"a":1}}`, `{"texts":[]}`, `{"raw":}`} {
		if Decode(doc, &v) {
			t.Errorf("%s is valid", doc)
		}
	}
	const members Raw = `{"n":1.5,"s":"\u0061","o":{"x":1},"none":null,"n":2}`
	for name, want := range map[string]string{"n": "1.5", "s": "a", "o": "", "none": "", "missing": ""} {
		if text, ok := members.Member(name); text != want || ok != (want != "") {
			t.Errorf("%s: %q %v", name, text, ok)
		}
	}
}
