package mailgun

import (
	"bytes"
	"context"
	"io"
	"mime"
	"net/http"
	"strings"

	"github.com/safedelivr/safedelivr/models"
)

// fileWriter is a RoundTripper that appends the attachments of the context's call to the form of
// a request. The SDK would write them as application/octet-stream, and copy them twice.
type fileWriter struct{ next http.RoundTripper }

type filesKey struct{}

// withFiles returns a context for a request that carries the attachments of a call.
func withFiles(ctx context.Context, c *models.Call) context.Context {
	if len(c.Content.Attachments) == 0 {
		return ctx
	}
	return context.WithValue(ctx, filesKey{}, c)
}

// RoundTrip implements http.RoundTripper.
func (w fileWriter) RoundTrip(req *http.Request) (*http.Response, error) {
	c, _ := req.Context().Value(filesKey{}).(*models.Call)
	_, params, err := mime.ParseMediaType(req.Header.Get("Content-Type"))
	if c == nil || err != nil || params["boundary"] == "" {
		return w.next.RoundTrip(req)
	}
	end := "\r\n--" + params["boundary"] + "--\r\n"
	size := req.ContentLength - int64(len(end)) // of the SDK's form without its end
	parts := []io.Reader{io.LimitReader(req.Body, size)}
	for i, data := range c.Files {
		header := "\r\n--" + params["boundary"] + "\r\n" + fileHeader(&c.Content.Attachments[i])
		parts = append(parts, strings.NewReader(header), bytes.NewReader(data))
		size += int64(len(header) + len(data))
	}
	parts = append(parts, strings.NewReader(end))
	size += int64(len(end))
	r := req.Clone(req.Context())
	r.Body = body{io.MultiReader(parts...), req.Body}
	r.ContentLength, r.GetBody = size, nil
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
