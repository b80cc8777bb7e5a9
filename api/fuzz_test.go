package api

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/settings"
	"github.com/safedelivr/safedelivr/service"
)

// posted returns the context of a POST.
func posted(kind string, body []byte) *gin.Context {
	c, _ := gin.CreateTestContext(httptest.NewRecorder())
	c.Request = httptest.NewRequest(http.MethodPost, "/", bytes.NewReader(body))
	c.Request.Header.Set("Content-Type", kind)
	return c
}

// FuzzReadFields: readFields accepts only JSON objects and decodes them like encoding/json.
func FuzzReadFields(f *testing.F) {
	for _, s := range []string{
		"", "{}", "[]", `{"why":"x","at":"2026-01-31T12:00:00Z","fail":true}`, `{"why":null}`, `{"why":"\ud83d"}`,
		`{"WHY":1}`, "\v{}", "\u00a0{}",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		var got, want struct {
			Why  string    `json:"why"`
			Fail bool      `json:"fail"`
			At   time.Time `json:"at"`
		}
		fields := map[string]any{"why": &got.Why, "fail": &got.Fail, "at": &got.At}
		if _, err := new(Server).readFields(posted("application/json", body), fields); err != nil {
			if e := failed(t, err); e.Kind != service.Invalid && e.Kind != service.Malformed && e.Kind != service.TooLarge {
				t.Fatal(err)
			}
			return
		}
		if len(bytes.TrimSpace(body)) == 0 {
			return
		}
		if err := json.Unmarshal(body, &want); err != nil || got != want {
			t.Fatalf("%s became %+v, want %+v: %v", body, got, want, err)
		}
	})
}

// FuzzReadMultipart: readMultipart reads the values of a form as net/http does.
func FuzzReadMultipart(f *testing.F) {
	part := func(name, value string) string {
		return "--X\r\nContent-Disposition: form-data; name=\"" + name + "\"\r\n\r\n" + value + "\r\n"
	}
	for _, s := range []string{
		"",
		part("subject", "s") + part("to", "a@b.de, c@d.de") + "--X--\r\n",
		part("to", "a@b.de") + part("to", `"x, y" <c@d.de>`) + part("providers", "sg,mg") + "--X--",
		part("text", "a\r\n--Y") + "--X",
	} {
		f.Add([]byte(s))
	}
	decoder := decoders(f, service.Config{Limits: settings.Limits{Recipients: 1000, Content: 1 << 20},
		SpoolDir: f.TempDir()}, "sg")
	f.Add([]byte(part("columns", `{"A": "email", "B": ""}`) +
		strings.Replace(part("to", "A,B\na@b.de,x"), `"to"`, `"to"; filename="a.csv"`, 1) + "--X--"))
	const kind = "multipart/form-data; boundary=X"
	f.Fuzz(func(t *testing.T, body []byte) {
		d := decoder()
		defer d.Close()
		if err := d.readMultipart(posted(kind, body).Request); err != nil || d.Found() > 0 {
			return
		}
		r := posted(kind, body).Request
		if err := r.ParseMultipartForm(1 << 20); err != nil || len(r.MultipartForm.File) > 0 {
			return
		}
		for _, name := range []string{"subject", "text", "html", "body"} {
			if d.textOf(name) != r.PostForm.Get(name) {
				t.Fatalf("%s of %q became %q", name, body, d.textOf(name))
			}
		}
	})
}

// FuzzPermissive: what strict mode accepts, permissive mode accepts whole; what it accepts in part, strict mode
// refuses. Every recipient of the request is kept, dropped as a repeat, or rejected.
func FuzzPermissive(f *testing.F) {
	for _, to := range []string{
		`["a@b.de"]`, `["a@b.de", "x", "a@b.de"]`, `[{"email": "a@b.de", "vars": {"n": 1}}, "c@d.de"]`,
		`[{"email": "a@b.de", "vars": {"n": []}}, {"email": "a@b.de", "vars": {"n": "a\nb"}}]`, `7`, `[7, {"/": 1}]`,
		`[{"email": "a@b.de", "time_zone": "Asia/Tokyo"}, {"email": "c@d.de", "deliver_at": "2001-01-01T00:00:00Z"}, ` +
			`"e@f.de"]`,
		`[{"email": "a@b.de", "send_window": {"from": "09:00", "to": "1"}}, {"email": "a@b.de", "expires_at": "x"}]`,
	} {
		f.Add([]byte(to))
	}
	decoder := decoders(f, service.Config{Limits: settings.Limits{Recipients: 1000, Content: 1 << 20},
		SpoolDir: f.TempDir()}, "sg")
	f.Fuzz(func(t *testing.T, to []byte) {
		body := []byte(`{"from": "a@b.de", "subject": "{{n}}", "text": "t", "to": ` + string(to) + `}`)
		strict, permissive := decoder(), decoder()
		defer strict.Close()
		defer permissive.Close()
		permissive.Permit()
		strictErr, err := strict.readJSON(bytes.NewReader(body)), permissive.readJSON(bytes.NewReader(body))
		if (strictErr == nil) != (err == nil) {
			t.Fatalf("%s: %v, %v", body, strictErr, err)
		}
		if err != nil {
			return
		}
		now := time.Now()
		whole, strictErr := strict.Check()
		if strictErr == nil {
			strictErr = strict.SetTimes(&whole, now)
		}
		part, err := permissive.Check()
		if err == nil {
			err = permissive.SetTimes(&part, now)
		}
		rejected := 0
		if err := permissive.EachRejected(func(r models.Rejection) error {
			if rejected++; r.Index < 0 || r.Index >= permissive.Count() || r.Code == "" {
				t.Fatalf("%s: %+v", body, r)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		switch {
		case strictErr == nil && (err != nil || rejected > 0 || part.Recipients != whole.Recipients):
			t.Fatalf("%s: strict mode accepts it, permissive mode rejects %d: %v", body, rejected, err)
		case err == nil && part.Recipients+part.Duplicates+rejected != permissive.Count():
			t.Fatalf("%s: %d kept, %d repeats, %d rejected", body, part.Recipients, part.Duplicates, rejected)
		case err == nil && (part.Rejected != rejected || part.Recipients == 0):
			t.Fatalf("%s: %+v", body, part)
		}
	})
}

// FuzzReadRecord: a record has an error or an id. White space in it changes nothing, and neither does its id change
// which records share its batch.
func FuzzReadRecord(f *testing.F) {
	for _, s := range []string{
		`{"id": "a", "action": "new", "from": "a@b.de", "to": "c@d.de", "subject": "s", "vars": {"a": 1.0}}`, `{"id": 7}`,
		`{"id": "a", "id": "b"}`, `{"id": "a", "headers": {"X-A": "1"}, "headers": 1}`, `{"id": "\ud800"}`, `7`,
		`{"id": "", "cc": []}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		var spaced bytes.Buffer
		if raw = bytes.TrimSpace(raw); json.Indent(&spaced, raw, "", " ") != nil {
			return // the reader of the request refuses it
		}
		r, other := readRecord(raw), readRecord(spaced.Bytes())
		if r.Wrong == nil && r.ID == "" {
			t.Fatalf("%s: no error and no id", raw)
		}
		if other.Raw, r.Raw = nil, nil; !reflect.DeepEqual(r, other) {
			t.Fatalf("%s: %+v, with white space %+v", raw, r, other)
		}
		if r.Wrong == nil && readRecord(bytes.Replace(raw, []byte(`"`+r.ID+`"`), []byte(`"other"`), 1)).Group != r.Group &&
			bytes.HasPrefix(raw, []byte(`{"id": "`+r.ID+`"`)) {
			t.Fatalf("%s: the id is part of the group", raw)
		}
	})
}

// FuzzCheckQuery: checkQuery answers with a problem or not at all.
func FuzzCheckQuery(f *testing.F) {
	for _, s := range []string{"", "limit=1&cursor=x", "limit=1&limit=2", "%zz", "a;b", "email=a+b@c.de", "&&=&"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, query string) {
		w := httptest.NewRecorder()
		c, _ := gin.CreateTestContext(w)
		c.Request = httptest.NewRequest(http.MethodGet, "/", nil)
		c.Request.URL.RawQuery = query
		new(Server).checkQuery(c)
		if !c.IsAborted() {
			return
		}
		raw, _ := io.ReadAll(w.Body)
		var p problemDetails
		if err := json.Unmarshal(raw, &p); err != nil || p.Code != "invalid_query" || w.Code != http.StatusBadRequest {
			t.Fatalf("%q: %d %s", query, w.Code, raw)
		}
	})
}

// FuzzValidText: a string is not valid exactly if encoding/json replaces a part of it.
func FuzzValidText(f *testing.F) {
	for _, s := range []string{`"a"`, `"\ud83d\ude00"`, `"\ud83d"`, `"\\ud83d"`, `"\ude00\ud83d"`, `"\ud83d\ud83d\ude00"`,
		"\"\xff\""} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		if len(raw) == 0 || raw[0] != '"' || !json.Valid(raw) || bytes.Contains(bytes.ToLower(raw), []byte("fffd")) ||
			bytes.Contains(raw, []byte("\ufffd")) {
			return
		}
		raw = bytes.TrimSpace(raw)
		if text := unquote(raw); validText(raw) == strings.Contains(text, "\ufffd") {
			t.Fatalf("%s became %q", raw, text)
		}
	})
}
