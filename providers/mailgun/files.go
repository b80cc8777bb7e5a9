package mailgun

import (
	"bytes"
	"io"
	"mime"
	"net/http"
	"strings"

	"github.com/safedelivr/safedelivr/models"
)

// fileWriter is a RoundTripper that appends the attachments of a call to the form of a request. The SDK would write
// them without their types, and copy them twice. It also removes an empty text beside HTML, which would be shown first.
type fileWriter struct {
	call *models.Call
	next http.RoundTripper
}

// maxBeforeText is more than the fields of a form have before its text: sender and subject.
const maxBeforeText = 64 << 10

// RoundTrip implements http.RoundTripper.
func (w fileWriter) RoundTrip(req *http.Request) (*http.Response, error) {
	_, params, err := mime.ParseMediaType(req.Header.Get("Content-Type"))
	if err != nil {
		return nil, err
	}
	start := make([]byte, min(maxBeforeText, req.ContentLength))
	if _, err := io.ReadFull(req.Body, start); err != nil {
		return nil, err
	}
	// The boundary is random, so that nothing else in the form reads like this.
	next, end := "--"+params["boundary"]+"\r\n", "\r\n--"+params["boundary"]+"--\r\n"
	empty := next + "Content-Disposition: form-data; name=\"text\"\r\n\r\n\r\n"
	shorter := bytes.Replace(start, []byte(empty), nil, 1)
	size := req.ContentLength - int64(len(start)-len(shorter))
	form := io.MultiReader(bytes.NewReader(shorter), req.Body)
	if len(w.call.Files) > 0 {
		size -= int64(len(end)) // of the SDK's form without its end
		parts := []io.Reader{io.LimitReader(form, size)}
		for i, data := range w.call.Files {
			header := "\r\n" + next + fileHeader(&w.call.Content.Attachments[i])
			parts = append(parts, strings.NewReader(header), bytes.NewReader(data))
			size += int64(len(header) + len(data))
		}
		form = io.MultiReader(append(parts, strings.NewReader(end))...)
		size += int64(len(end))
	}
	r := req.Clone(req.Context())
	r.Body, r.ContentLength, r.GetBody = body{form, req.Body}, size, nil
	return w.next.RoundTrip(r)
}

// body reads from one reader and closes another.
type body struct {
	io.Reader
	io.Closer
}

// fileHeader returns the header of an attachment's part. Mailgun takes the name of an inline
// file as its content ID.
func fileHeader(a *models.Attachment) string {
	field, name := "attachment", a.Filename
	if a.ContentID != "" {
		field, name = "inline", a.ContentID
	}
	return `Content-Disposition: form-data; name="` + field + `"; filename="` + strings.ReplaceAll(name, `"`, `\"`) +
		"\"\r\nContent-Type: " + a.Type + "\r\n\r\n"
}
