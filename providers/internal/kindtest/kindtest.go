// Package kindtest has what the tests of kinds of provider need besides models/providertest: golden requests, seeds of
// fuzzing, benchmarks, and what is found out about an account.
package kindtest

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/providertest"
	"github.com/safedelivr/safedelivr/providers/internal/inspect"
)

// Basic returns the header field Authorization with a user name and a password.
func Basic(credentials string) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(credentials))
}

// Authorized signs posts with a header field Authorization, for providertest.Suite.
func Authorized(value string) func(body []byte, _ time.Time) (http.Header, []byte) {
	return func(body []byte, _ time.Time) (http.Header, []byte) {
		return http.Header{"Authorization": {value}}, body
	}
}

// Files returns a call whose mails have images, a file and a header field with a value of each recipient.
func Files(recipients int, placeholder string) *models.Call {
	c, m := providertest.SampleCall(recipients), providertest.Mails()[24] // with images and a PDF
	c.Content, c.Files = &m.Content, [][]byte{[]byte("a"), []byte("b"), []byte("c")}
	c.Content.Headers = []models.Header{{Name: "List-Unsubscribe", Value: "<https://sender.test/u?" + placeholder + ">"}}
	return c
}

// Together returns a call with one mail to four recipients: two in To, and one in Cc and Bcc.
func Together() *models.Call {
	c := providertest.SampleCall(4)
	for i, role := range []models.Role{models.To, models.To, models.CC, models.BCC} {
		c.Recipients[i].Role = role
	}
	return c
}

// Requests compares the requests of calls with testdata/request.
func Requests(t *testing.T, p models.Composer, calls map[string]*models.Call) {
	t.Helper()
	for name, c := range calls {
		r, refused := p.Compose(c)
		var out bytes.Buffer
		if err := json.Indent(&out, r.Body, "", "  "); err != nil || refused != nil {
			t.Fatalf("%s: %v %+v", name, err, refused)
		}
		providertest.Golden(t, "request/"+name+".json", append(out.Bytes(), '\n'))
	}
}

// FuzzParse parses what a stranger could post, beginning with testdata/webhook and more.
func FuzzParse(f *testing.F, p models.Adapter, more ...[]byte) {
	f.Helper()
	files, err := filepath.Glob("testdata/webhook/*.json")
	if err != nil || len(files) == 0 {
		f.Fatal("no webhooks", err)
	}
	for _, file := range files {
		body, err := os.ReadFile(filepath.Clean(file))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(body)
	}
	for _, body := range more {
		f.Add(body)
	}
	f.Fuzz(func(t *testing.T, body []byte) { providertest.Sound(t, p.Parse(body)) })
}

// Compose measures how long the request of a call takes, some times over.
func Compose(b *testing.B, p models.Composer, recipients, times int) {
	b.Helper()
	c := providertest.SampleCall(recipients)
	b.ReportAllocs()
	for b.Loop() {
		for range times {
			if _, refused := p.Compose(c); refused != nil {
				b.Fatal(refused)
			}
		}
	}
}

// Found requires findings with texts: the state, a space, and a part of the text. One that is not OK says what to do.
func Found(t *testing.T, a inspect.Account, err error, name string, want ...string) {
	t.Helper()
	if err != nil || len(a.Findings) != len(want) {
		t.Fatalf("%s: %v %+v", name, err, a.Findings)
	}
	for i, f := range a.Findings {
		got := string(f.State) + " " + f.Text
		if !strings.Contains(got, want[i]) || (f.State == inspect.OK) != (f.ToDo == "") {
			t.Errorf("%s: %s (%s), want %s", name, got, f.ToDo, want[i])
		}
	}
}
