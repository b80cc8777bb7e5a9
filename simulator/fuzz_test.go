package simulator

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"mime/multipart"
	"net/http/httptest"
	"strings"
	"testing"
	"unicode/utf8"
)

// FuzzScanner: the scanner takes what encoding/json takes, and reads the same
// strings.
func FuzzScanner(f *testing.F) {
	for _, seed := range []string{`{"a":[1,-0.5e+3,true,false,null,"x\n\u00e4\ud83d\ude00"],"b":{}}`, `[]`, ` "a" `, `01`, `{"a":1,}`, `"\x"`, "\"\xff\"", `{"a" 1}`, `1.`, `-`, `nul`, `[1 2]`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, doc []byte) {
		if bytes.Count(doc, []byte("[")) > maxDepth/2 || bytes.Count(doc, []byte("{")) > maxDepth/2 {
			return
		}
		var s scanner
		s.reset(doc)
		s.skip()
		if valid := json.Valid(doc); s.end() != valid {
			t.Fatalf("valid %v, have %v: %q", valid, s.end(), doc)
		}
		var want string
		if json.Unmarshal(doc, &want) == nil && bytes.HasPrefix(bytes.TrimLeft(doc, " \t\r\n"), []byte(`"`)) {
			s.reset(doc)
			if have := string(s.text(s.str())); have != want && utf8.Valid(doc) {
				t.Fatalf("%q, want %q", have, want)
			}
		}
		if quoted := appendQuoted(nil, doc); utf8.Valid(doc) {
			var back string
			if err := json.Unmarshal(quoted, &back); err != nil || back != string(doc) {
				t.Fatalf("%s: %v", quoted, err)
			}
		} else if !json.Valid(quoted) || !utf8.Valid(quoted) {
			t.Fatalf("%q", quoted)
		}
	})
}

// FuzzMultipart: the splitter finds the parts that mime/multipart finds.
func FuzzMultipart(f *testing.F) {
	f.Add([]byte("--b\r\nContent-Disposition: form-data; name=\"to\"\r\n\r\na@example.com\r\n--b\r\nContent-Disposition: form-data; name=\"x\"; filename=\"f\"\r\nContent-Type: a/b\r\n\r\n1\r\n2\r\n--b--\r\n"))
	f.Add([]byte("preamble\r\n--b \r\ncontent-disposition: form-data; name=\"a\\\"b\"\r\n\r\n\r\n--b--"))
	f.Add([]byte("--b\r\n\r\nvalue\r\n--b--"))
	f.Add([]byte("--b\r\nContent-Disposition: form-data; name=\"\"\r\n\r\nvalue\r\n--b\r\nContent-Disposition: form-data; name=\"x\"\r\n\r\n1\r\n--b--"))
	f.Fuzz(func(t *testing.T, body []byte) {
		var have []string
		whole := eachPart(body, "b", func(name, _, value []byte) { have = append(have, string(name)+"="+string(value)) })
		if !whole {
			return
		}
		var want []string
		r := multipart.NewReader(bytes.NewReader(body), "b")
		for {
			p, err := r.NextRawPart()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return // stricter than ours, for instance about headers
			}
			value, err := io.ReadAll(p)
			if err != nil {
				return
			}
			if p.FormName() != "" {
				want = append(want, p.FormName()+"="+string(value))
			}
		}
		// Bare line feeds and the like are read in more than one way. What the
		// SDK writes is not.
		if clean := !strings.Contains(strings.ReplaceAll(string(body), "\r\n", ""), "\n"); clean && !bytes.Contains(body, []byte("--b\t")) && len(have) > 0 && len(want) > 0 && have[0] != want[0] {
			t.Fatalf("%q, want %q in %q", have, want, body)
		}
	})
}

// FuzzSendgrid and FuzzMailgun: no request makes the simulator panic, and what
// it stores can be read again.
func FuzzSendgrid(f *testing.F) {
	body, _ := json.Marshal(sgMail("r", "a@example.com", "hardbounce@sim.test"))
	f.Add(body)
	f.Add([]byte(`{"personalizations":[{"to":[{"email":"a@b.cd"}],"custom_args":{"sd_r":"\ud800"}}],"from":{"email":"a@b.cd"},"subject":"s","content":[{"type":"x","value":"y"}]}`))
	f.Fuzz(func(t *testing.T, body []byte) { fuzzSend(t, "application/json", body) })
}

func FuzzMailgun(f *testing.F) {
	f.Add("text/plain", []byte("from=a@b.cd&to=b@c.de&text=x&v:sd_r=%25recipient.id%25&recipient-variables={\"b@c.de\":{\"id\":1}}"))
	f.Add("application/x-www-form-urlencoded", []byte("from=a@b.cd&to=b@c.de,x<c@d.ef>&text=x&v:sd_r=%25recipient.id%25&recipient-variables={\"b@c.de\":{\"id\":1}}"))
	f.Add("multipart/form-data; boundary=b", []byte("--b\r\nContent-Disposition: form-data; name=\"from\"\r\n\r\na@b.cd\r\n--b\r\nContent-Disposition: form-data; name=\"to\"\r\n\r\nc@d.ef\r\n--b\r\nContent-Disposition: form-data; name=\"text\"\r\n\r\nt\r\n--b--"))
	f.Fuzz(func(t *testing.T, kind string, body []byte) { fuzzSend(t, kind, body) })
}

func fuzzSend(t *testing.T, kind string, body []byte) {
	s := New(Options{RecipientKey: recipientKey, KeepContent: true, Seed: 1})
	defer s.Close()
	for _, a := range []Account{{Name: "sg", Kind: SendGrid, Key: "k", SigningKey: fuzzKey}, {Name: "mg", Kind: Mailgun, Key: "k", Domain: domain}} {
		if err := s.AddAccount(a); err != nil {
			t.Fatal(err)
		}
	}
	path := "/mg/v3/" + domain + "/messages"
	if kind == "application/json" {
		path = "/sg/v3/mail/send"
	}
	r := httptest.NewRequest("POST", path, bytes.NewReader(body))
	r.Header.Set("Content-Type", kind)
	if kind == "application/json" {
		r.Header.Set("Authorization", "Bearer k")
	} else {
		r.SetBasicAuth("api", "k")
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	st := s.Stats("")
	if (w.Code < 300) != (st.Accepted > 0) || w.Code >= 500 {
		t.Fatalf("%d, %+v", w.Code, st)
	}
	copies := 0
	s.EachCopy(func(id string, per map[string]int) {
		for _, c := range s.Copies(id) {
			if c.ID == id {
				copies++
			}
		}
	})
	if int64(copies) != st.Copies {
		t.Fatalf("%d copies, %+v", copies, st)
	}
	for _, a := range s.accountList() {
		for _, m := range s.store.Load().all() {
			if m.account != a {
				continue
			}
			e := &emission{m: m, off: uint32(m.sharedEnd()), left: int32(m.n), due: m.at}
			seg := e.take(e.left)
			seg.each(func(r record, _ cursor) bool {
				var text []byte
				switch p := a.provider.(type) {
				case *sendgrid:
					pen := p.pen(e, 0)
					text = pen.event(nil, r)
				case *mailgun:
					text = p.eventData(nil, e, r)
				}
				if r.outcome == e.outcome && !json.Valid(text) {
					t.Fatalf("event %q", text)
				}
				return true
			})
		}
	}
}

var fuzzKey = func() string {
	s := New(Options{})
	defer s.Close()
	if err := s.AddAccount(Account{Name: "x", Kind: SendGrid, Key: "k"}); err != nil {
		panic(err)
	}
	return s.Accounts()[0].SigningKey
}()
