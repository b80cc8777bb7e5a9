package api

import (
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/settings"
	"github.com/safedelivr/safedelivr/service"
)

// BenchmarkReading reads and checks batches of one, a thousand and a million recipients in each format.
func BenchmarkReading(b *testing.B) {
	open := decoders(b, service.Config{Limits: settings.Limits{Recipients: 2_000_000, Content: 1 << 20},
		SpoolDir: b.TempDir()}, "sg")
	const content = `"from": "Shop <shop@example.com>", "subject": "Hello {{first}}", "html": "<p>{{first}}</p>"`
	for _, n := range []int{1, 1000, 1_000_000} {
		for format, prepare := range map[string]func() (body string, read func(d *decoder, body io.Reader) error){
			"objects": func() (string, func(d *decoder, body io.Reader) error) {
				return `{` + content + `, "to": [` + each(n, `{"email": "r%d@example.com", "vars": {"first": "Ann"}}`) + `]}`,
					(*decoder).readJSON
			},
			"texts": func() (string, func(d *decoder, body io.Reader) error) {
				return `{"from": "shop@example.com", "subject": "Hello", "text": "t", "to": [` +
						each(n, `"r%d@example.com"`) + `]}`,
					(*decoder).readJSON
			},
			"form": func() (string, func(d *decoder, body io.Reader) error) {
				return "from=shop@example.com&subject=Hello&text=t&to=" + each(n, "r%d@example.com"), (*decoder).readForm
			},
			"file": func() (string, func(d *decoder, body io.Reader) error) {
				return "--X\r\nContent-Disposition: form-data; name=\"to\"; filename=\"a.csv\"\r\n\r\nemail;first\n" +
						strings.ReplaceAll(each(n, "r%d@example.com;Ann"), ",", "\n") + "\r\n--X--\r\n",
					func(d *decoder, body io.Reader) error {
						r, err := http.NewRequest(http.MethodPost, "/", body) //nolint:noctx // it is not sent
						require.NoError(b, err)
						r.Header.Set("Content-Type", "multipart/form-data; boundary=X")
						return d.readMultipart(r)
					}
			},
		} {
			b.Run(format+"/"+strconv.Itoa(n), func(b *testing.B) {
				body, read := prepare()
				b.ReportAllocs()
				b.ResetTimer()
				for range b.N {
					d := open()
					if err := read(d, strings.NewReader(body)); err != nil {
						b.Fatal(err)
					}
					if _, err := d.Check(); err != nil && format != "file" { // the file has no content
						b.Fatal(err)
					}
					if err := d.Chunks(func(int, []models.Recipient) error { return nil }); err != nil {
						b.Fatal(err)
					}
					d.Close()
				}
			})
		}
	}
}
