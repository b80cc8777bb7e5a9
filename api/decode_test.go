package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/mail"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/settings"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/intake"
)

// numbered returns n JSON strings, separated by commas: addresses with the numbers from from
// on.
func numbered(from, n int) string {
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(`"r` + strconv.Itoa(from+i) + `@example.com"`)
	}
	return b.String()
}

// noCommands is a store without commands.
type noCommands struct{ models.Store }

func (noCommands) Commands(context.Context, int, int) ([]models.Command, error) { return nil, nil }

// decoders returns a function that returns a new decoder.
func decoders(t testing.TB, cfg service.Config, providers ...string) func() *decoder {
	t.Helper()
	deps := service.Deps{Config: cfg, Store: noCommands{}}
	for _, name := range providers {
		deps.Providers = append(deps.Providers, models.Provider{Name: name})
	}
	svc := service.New(deps)
	t.Cleanup(svc.Close)
	return func() *decoder { return newDecoder(svc.NewIntake(context.Background(), service.Caller{})) }
}

// failed returns err as an error of the use cases.
func failed(t testing.TB, err error) *service.Error {
	t.Helper()
	var e *service.Error
	require.ErrorAs(t, err, &e)
	return e
}

// TestBrokenJSON: the position of a mistake is the number of bytes before it.
func TestBrokenJSON(t *testing.T) {
	t.Parallel()
	decoder := decoders(t, service.Config{Limits: settings.Limits{Recipients: 1000, Content: 1000}})
	for name, c := range map[string]struct {
		body string
		at   int64
	}{
		"empty":                     {"", 0},
		"space":                     {"  ", 2},
		"no JSON":                   {"from=a@b.de", 1},
		"wrong first byte":          {"<xml/>", 0},
		"half a word":               {`{"a": tru}`, 9},
		"no colon":                  {`{"a" 1}`, 5},
		"no comma":                  {`{"a": 1 "b": 2}`, 8},
		"trailing comma":            {`{"a": 1,}`, 8},
		"single quotes":             {`{'a': 1}`, 1},
		"cut off in a string":       {`{"subject": "abc`, 16},
		"cut off after a member":    {`{"subject": "abc"`, 17},
		"cut off among recipients":  {`{"to": ["a@b.de", `, 18},
		"bad recipient":             {`{"to": ["a@b.de", {"email": x}]}`, 28},
		"no comma among recipients": {`{"to": ["a@b.de" "c@d.de"]}`, 17},
		"comma after recipients":    {`{"to": ["a@b.de",]}`, 17},
		"after many recipients":     {`{"to": [` + numbered(1000, 500) + `, !]}`, int64(8 + 500*20 - 1 + 2)},
		"control in a string":       {"{\"subject\": \"a\nb\"}", 14},
		"object after the end":      {`{"a": 1} {}`, 10},
		"garbage after the end":     {`{"a": 1} x`, 9},
		"member twice":              {`{"text": "", "text": ""}`, 19},
		"extra bracket":             {`{"to": []]}`, 9},
		"to as a broken object":     {`{"to": {"a": [}}`, 14},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := decoder()
			defer d.Close()
			p := failed(t, d.readJSON(strings.NewReader(c.body)))
			require.Equal(t, "bad_json", p.Code)
			require.NotNil(t, p.Position)
			require.Equal(t, c.at, *p.Position, p.Detail)
		})
	}
}

// endless is a reader that repeats a text forever.
type endless struct {
	text string
	read int
}

func (e *endless) Read(p []byte) (int, error) {
	for n := 0; n < len(p); {
		n += copy(p[n:], e.text)
	}
	e.read += len(p)
	return len(p), nil
}

// TestEndlessValues: a value without an end is refused after a bounded number of bytes.
func TestEndlessValues(t *testing.T) {
	t.Parallel()
	decoder := decoders(t, service.Config{Limits: settings.Limits{Recipients: 1000, Content: 100_000}})
	for name, c := range map[string]struct{ head, fill, code string }{
		"content":          {`{"html": "`, "xxxxxxxx", "content_too_large"},
		"another field":    {`{"colour": [`, "1,1,1,1,", "value_too_large"},
		"a recipient":      {`{"to": ["`, "xxxxxxxx", "value_too_large"},
		"a recipient's":    {`{"to": [{"vars": {"x": "`, "xxxxxxxx", "value_too_large"},
		"space":            {`{`, "        ", "value_too_large"},
		"space before to":  {`{"to": `, "        ", "value_too_large"},
		"space among them": {`{"to": ["a@b.de",`, "        ", "value_too_large"},
		"a name":           {`{"`, "xxxxxxxx", "value_too_large"},
		"to as an object":  {`{"to": {"`, "xxxxxxxx", "value_too_large"},
		"the first byte":   {``, "        ", "value_too_large"},
		"after the end":    {`{}`, "        ", "value_too_large"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := decoder()
			defer d.Close()
			e := &endless{text: c.fill}
			p := failed(t, d.readJSON(io.MultiReader(strings.NewReader(c.head), e)))
			require.Equal(t, c.code, p.Code)
			require.Equal(t, service.TooLarge, p.Kind)
			require.LessOrEqual(t, e.read, maxRecipientJSON+maxEscape*100_000)
		})
	}
}

// FuzzReadJSON: readJSON accepts only valid JSON and decodes it like encoding/json.
func FuzzReadJSON(f *testing.F) {
	for _, s := range []string{
		`{}`,
		`{"to":["a@b.de",{"email":"c@d.de","name":"C","vars":{"x":1.5,"y":"z","w":true}}],"html":"<b>",` +
			`"subject":"s","from":"a@b.de"}`,
		`{"to":{"a":[1,{}]},"providers":["sg",1]}`,
		`{"to":[{"email":"a\u0040b.de","vars":{"\"}":"]"}}],"allow_duplicates":true}`,
		`{"to":[null,5,[],{}]}`,
		"{\"text\":\"\xff\"}",
	} {
		f.Add([]byte(s))
	}
	decoder := decoders(f, service.Config{Limits: settings.Limits{Recipients: 1000, Content: 1 << 20},
		SpoolDir: f.TempDir()}, "sg")
	f.Fuzz(func(t *testing.T, body []byte) {
		d := decoder()
		defer d.Close()
		if d.readJSON(bytes.NewReader(body)) != nil {
			return
		}
		batch, wrong := d.Check()
		if wrong != nil && failed(t, wrong).Kind != service.Invalid {
			t.Fatal(wrong)
		}
		var m struct {
			Subject *string
			To      json.RawMessage
		}
		if err := json.Unmarshal(body, &m); err != nil {
			t.Fatalf("accepted, although encoding/json refuses it: %v", err)
		}
		if wrong != nil {
			return
		}
		var to []json.RawMessage
		if json.Unmarshal(m.To, &to) == nil && len(to) != d.Count() {
			t.Fatalf("%d recipients of %d", d.Count(), len(to))
		}
		want := map[string]bool{} // addresses with the number of their variables
		for i := range to {
			var o struct {
				Email string
				Vars  map[string]any
			}
			if json.Unmarshal(to[i], &o.Email) != nil {
				if err := json.Unmarshal(to[i], &o); err != nil {
					t.Fatalf("recipient %s: %v", to[i], err)
				}
			}
			a, err := intake.ParseAddress(o.Email)
			if err != nil {
				t.Fatalf("recipient %s was accepted: %v", to[i], err)
			}
			want[fmt.Sprint(a.Email, len(o.Vars))] = true
		}
		err := d.Chunks(func(_ int, rs []models.Recipient) error {
			for _, r := range rs {
				if !want[fmt.Sprint(r.Email, len(r.Vars))] && batch.Envelope == nil {
					t.Fatalf("no recipient became %+v", r)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	})
}

// textOf returns the value of a field that is a text.
func (d *decoder) textOf(name string) string {
	field, _ := d.Batch.Field(name)
	return *field.(*string) //nolint:forcetypeassert // a test
}

// FuzzReadForm: readForm decodes the forms that it accepts like net/url.
func FuzzReadForm(f *testing.F) {
	for _, s := range []string{
		"",
		"to=a@b.de&from=a@b.de&subject=s&body=b",
		"to=a%40b.de,+%22x,y%22+<c@d.de>&body=%00%ff",
		"a=%4",
		"&&=&to",
		"to=a@b.de&to=c@d.de&text=a+b%2b",
	} {
		f.Add([]byte(s))
	}
	decoder := decoders(f, service.Config{Limits: settings.Limits{Recipients: 1000, Content: 1 << 20},
		SpoolDir: f.TempDir()}, "sg")
	f.Fuzz(func(t *testing.T, body []byte) {
		d := decoder()
		defer d.Close()
		if d.readForm(bytes.NewReader(body)) != nil {
			return
		}
		if _, wrong := d.Check(); wrong != nil || bytes.IndexByte(body, ';') >= 0 { // net/url refuses semicolons
			return
		}
		v, err := url.ParseQuery(string(body))
		if err != nil {
			t.Fatalf("accepted, although net/url refuses it: %v", err)
		}
		for _, name := range []string{"subject", "text", "html", "body"} {
			if d.textOf(name) != v.Get(name) {
				t.Fatalf("%s of %q became %q", name, body, d.textOf(name))
			}
		}
	})
}

// FuzzFormRecipients: a list that is accepted is split like net/mail does, if net/mail can
// parse it.
func FuzzFormRecipients(f *testing.F) {
	for _, s := range []string{
		"a@b.de,c@d.de",
		`"x,\"y" <a@b.de>, (c, (d)) e@f.de`,
		`<a@b.de>,,`,
		`"a`,
		"a@b.de (x,\")\\,y)",
		`\,a@b.de`,
		"=?utf-8?q?a=2C?= <a@b.de>,b@c.de",
	} {
		f.Add(s)
	}
	decoder := decoders(f, service.Config{Limits: settings.Limits{Recipients: 1000, Content: 1 << 20},
		SpoolDir: f.TempDir()})
	f.Fuzz(func(t *testing.T, list string) {
		d := decoder()
		defer d.Close()
		var got []string
		d.add = func(r *intake.Recipient) error {
			to, ok := d.Recipient(r)
			if got = append(got, to.Email); !ok {
				return errEnough
			}
			return nil
		}
		if d.formRecipients(strings.NewReader(list)) != nil || len(got) == 0 {
			return
		}
		want, err := mail.ParseAddressList(list)
		if err != nil {
			return
		}
		if len(got) != len(want) {
			t.Fatalf("%q is %q, want %v", list, got, want)
		}
		for i := range want {
			if a, err := intake.ParseAddress("<" + want[i].Address + ">"); err != nil || a.Email != got[i] {
				t.Fatalf("%q is %q, want %v", list, got, want)
			}
		}
	})
}
