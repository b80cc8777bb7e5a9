package simulator

import (
	"bytes"
	"encoding/json"
	"net/http/httptest"
	"testing"

	"github.com/safedelivr/safedelivr/lab/simulator/internal/message"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/provider"
)

// fuzzKey is a signing key, so that not every run generates one.
var fuzzKey = func() string {
	s := New(Options{})
	defer s.Close()
	if err := s.AddAccount(Account{Name: "x", Kind: SendGrid, Key: "k"}); err != nil {
		panic(err)
	}
	return s.Accounts()[0].SigningKey
}()

func FuzzSendgrid(f *testing.F) {
	f.Add([]byte(`{"personalizations":[{"to":[{"email":"a@example.com"}],"custom_args":{"sd_r":"r0"},` +
		`"substitutions":{"{{name}}":"Name 0"}},{"to":[{"email":"hardbounce@sim.test"}],"custom_args":{"sd_r":"r1"}}],` +
		`"from":{"name":"Sender","email":"from@example.com"},"subject":"Hello {{name}}","custom_args":{"sd_a":"a"},` +
		`"content":[{"type":"text/plain","value":"Dear {{name}}"},{"type":"text/html","value":"<p>Dear {{name}}</p>"}]}`))
	f.Add([]byte(`{"personalizations":[{"to":[{"email":"a@b.cd"}],"custom_args":{"sd_r":"\ud800"}}],` +
		`"from":{"email":"a@b.cd"},"subject":"s","content":[{"type":"x","value":"y"}]}`))
	f.Fuzz(func(t *testing.T, body []byte) { fuzzSend(t, "application/json", body) })
}

func FuzzMailgun(f *testing.F) {
	const variables = "&text=x&v:sd_r=%25recipient.id%25&recipient-variables={\"b@c.de\":{\"id\":1}}"
	const part = "--b\r\nContent-Disposition: form-data; name="
	f.Add("text/plain", []byte("from=a@b.cd&to=b@c.de"+variables))
	f.Add("application/x-www-form-urlencoded", []byte("from=a@b.cd&to=b@c.de,x<c@d.ef>"+variables))
	f.Add("multipart/form-data; boundary=b", []byte(part+"\"from\"\r\n\r\na@b.cd\r\n"+
		part+"\"to\"\r\n\r\nc@d.ef\r\n"+part+"\"text\"\r\n\r\nt\r\n--b--"))
	f.Fuzz(func(t *testing.T, kind string, body []byte) { fuzzSend(t, kind, body) })
}

// fuzzSend checks that no request makes the simulator panic, and that what it
// stores can be read again.
func fuzzSend(t *testing.T, kind string, body []byte) {
	s := New(Options{RecipientKey: "sd_r", KeepContent: true, Seed: 1})
	defer s.Close()
	for _, a := range []Account{
		{Name: "sg", Kind: SendGrid, Key: "k", SigningKey: fuzzKey},
		{Name: "mg", Kind: Mailgun, Key: "k", Domain: "mg.sim.test"},
	} {
		if err := s.AddAccount(a); err != nil {
			t.Fatal(err)
		}
	}
	path := "/mg/v3/mg.sim.test/messages"
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
	s.EachCopy(func(id string, _ map[string]int) {
		for _, c := range s.Copies(id) {
			if c.ID == id {
				copies++
			}
		}
	})
	if int64(copies) != st.Copies {
		t.Fatalf("%d copies, %+v", copies, st)
	}
	for _, b := range s.store.Load().all() {
		e := &message.Event{Batch: &b.Batch, Due: b.Time}
		v := b.account.provider.View(e, 0)
		for i := range b.Copies {
			v.Copy = &b.Copies[i]
			for _, form := range []provider.Form{v.Stage.Hook, v.Stage.Log} {
				if text := form.Append(nil, v); !json.Valid(text) {
					t.Fatalf("event %q", text)
				}
			}
		}
	}
}
