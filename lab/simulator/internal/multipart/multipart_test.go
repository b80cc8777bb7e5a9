package multipart

import (
	"bytes"
	"errors"
	"io"
	"mime/multipart"
	"strings"
	"testing"
)

// FuzzMultipart checks that Fields finds the parts that mime/multipart finds.
func FuzzMultipart(f *testing.F) {
	const part = "--b\r\nContent-Disposition: form-data; name="
	f.Add([]byte(part + "\"to\"\r\n\r\na@example.com\r\n" +
		part + "\"x\"; filename=\"f\"\r\nContent-Type: a/b\r\n\r\n1\r\n2\r\n--b--\r\n"))
	f.Add([]byte("preamble\r\n--b \r\ncontent-disposition: form-data; name=\"a\\\"b\"\r\n\r\n\r\n--b--"))
	f.Add([]byte("--b\r\n\r\nvalue\r\n--b--"))
	f.Add([]byte(part + "\"\"\r\n\r\nvalue\r\n" + part + "\"x\"\r\n\r\n1\r\n--b--"))
	f.Fuzz(func(t *testing.T, body []byte) {
		fields, whole := Fields(string(body), "b")
		if !whole {
			return
		}
		var have []string
		for _, f := range fields {
			have = append(have, f.Name+"="+f.Value)
		}
		var want []string
		r := multipart.NewReader(bytes.NewReader(body), "b")
		for {
			p, err := r.NextRawPart()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return // stricter than Fields, for instance about headers
			}
			value, err := io.ReadAll(p)
			if err != nil {
				return
			}
			if p.FormName() != "" {
				want = append(want, p.FormName()+"="+string(value))
			}
		}
		// Bare line feeds and the like can be read in more than one way. The SDK
		// writes none.
		clean := !strings.Contains(strings.ReplaceAll(string(body), "\r\n", ""), "\n") &&
			!bytes.Contains(body, []byte("--b\t"))
		if clean && len(have) > 0 && len(want) > 0 && have[0] != want[0] {
			t.Fatalf("%q, want %q in %q", have, want, body)
		}
	})
}
