package dashboard

import (
	"maps"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
)

func TestCompose(t *testing.T) {
	t.Parallel()
	f := newRig(t, nil)
	b := f.byLink(LocalUser())
	form := url.Values{"from": {"Shop <shop@example.com>"}, "subject": {"Hi {{first}}"}, "text": {"Dear {{first}}"}, "do": {"send"},
		"to": {"E-Mail;Name;first\r\nann@example.com;Ann Lee;Ann\r\n\"bob@example.com\";;Bob\r\n"}, "once": {onceField.FindStringSubmatch(b.get("/compose").text)[1]}}
	t.Run("send", func(t *testing.T) {
		a := b.post("/compose", form)
		require.Equal(t, http.StatusOK, a.StatusCode)
		require.True(t, strings.HasPrefix(a.Request.URL.Path, "/batches/"), a.text)
		id := strings.TrimPrefix(a.Request.URL.Path, "/batches/")
		logs, err := f.service.Logs(t.Context(), service.Caller{User: "local"}, id, "", service.Page{})
		require.NoError(t, err)
		require.Len(t, logs.Logs, 2)
		require.Equal(t, "Ann Lee", logs.Logs[0].Name)
		again := b.post("/compose", form)
		require.Equal(t, a.Request.URL.Path, again.Request.URL.Path, "a second press sends nothing more")
	})
	t.Run("test mail", func(t *testing.T) {
		form := maps.Clone(form)
		form["do"], form["test"], form["row"] = []string{"test"}, []string{"me@example.com"}, []string{"2"}
		a := b.post("/compose", form)
		id := strings.TrimPrefix(a.Request.URL.Path, "/batches/")
		logs, err := f.service.Logs(t.Context(), service.Caller{User: "local"}, id, "", service.Page{})
		require.NoError(t, err, a.text)
		require.Len(t, logs.Logs, 1)
		require.Equal(t, "me@example.com", logs.Logs[0].Email)
	})
	t.Run("bad input", func(t *testing.T) {
		bad := url.Values{"from": {"nobody"}, "subject": {""}, "text": {"typed {{first}}"}, "do": {"send"}, "to": {"ann@example.com\nb@d\n<x>"}}
		a := b.post("/compose", bad)
		require.Equal(t, http.StatusUnprocessableEntity, a.StatusCode)
		for _, want := range []string{`id="from-wrong"`, `id="subject-wrong"`, `id="to-wrong"`, `value="nobody"`, "typed {{first}}", "Line 2:", "Line 3:", `aria-invalid="true"`} {
			require.Contains(t, a.text, want)
		}
	})
	t.Run("preview", func(t *testing.T) {
		form := maps.Clone(form)
		form["row"], form["html"] = []string{"2"}, []string{"<p>{{first}} {{missing}}</p>"}
		a := b.post("/compose/preview", form)
		require.Contains(t, a.text, "Hi Bob")
		require.Contains(t, a.text, "<p>Bob {{missing}}</p>")
		require.Contains(t, a.text, "{{missing}} has no value here")
		require.True(t, strings.HasPrefix(a.Header.Get("Content-Security-Policy"), "sandbox;"))
	})
	t.Run("curl", func(t *testing.T) {
		form := maps.Clone(form)
		form["do"] = []string{"curl"}
		require.Contains(t, b.post("/compose", form).text, "&#34;email&#34;: &#34;ann@example.com&#34;")
	})
}

func TestParseList(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		in   string
		want []listed
	}{
		"nothing":       {"", nil},
		"lines":         {"a@x.de\n\n b@x.de \n", []listed{{Line: 1, Email: "a@x.de"}, {Line: 3, Email: "b@x.de"}}},
		"commas":        {"a@x.de, \"Lee, Bob\" <b@x.de>; c@x.de", []listed{{Line: 1, Email: "a@x.de"}, {Line: 1, Email: `"Lee, Bob" <b@x.de>`}, {Line: 1, Email: "c@x.de"}}},
		"table":         {"email,First Name\na@x.de,Ann\n", []listed{{Line: 2, Email: "a@x.de", Vars: map[string]string{"First_Name": "Ann"}}}},
		"table, tabs":   {"Name\tAddress\nAnn\ta@x.de", []listed{{Line: 2, Email: "a@x.de", Name: "Ann"}}},
		"short row":     {"email;n;2nd\na@x.de", []listed{{Line: 2, Email: "a@x.de"}}},
		"odd variables": {"email;2nd\na@x.de;x", []listed{{Line: 2, Email: "a@x.de", Vars: map[string]string{"_2nd": "x"}}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, c.want, parseList(c.in).Rows)
		})
	}
}

func FuzzParseList(f *testing.F) {
	for _, s := range []string{"a@x.de", "email,a\nb,c", "\"a\nb", "email;x\n\"", "<,>\";", "\temail\n1\t2\t3"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		for _, row := range parseList(s).Rows {
			if row.Line < 1 {
				t.Fatalf("%q: a row on line %d", s, row.Line)
			}
			for name := range row.Vars {
				if !models.ValidVar(name) {
					t.Fatalf("%q: variable %q", s, name)
				}
			}
		}
	})
}
