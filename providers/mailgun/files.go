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
// a request. The SDK would write them as application/octet-stream, and copy them twice. It also removes the text of a
// message that has only HTML: the SDK writes an empty one, which the mail would have as its first alternative.
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
	_, params, err := mime.ParseMediaType(req.Header.Get("Content-Type"))
	if err != nil || params["boundary"] == "" {
		return w.next.RoundTrip(req)
	}
	req, err = withoutEmptyText(req, params["boundary"])
	if err != nil {
		return nil, err
	}
	c, _ := req.Context().Value(filesKey{}).(*models.Call)
	if c == nil {
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

// maxBeforeText is more than the fields of a form have before its text: sender and subject.
const maxBeforeText = 64 << 10

// withoutEmptyText returns a request without the field text, if that is empty.
func withoutEmptyText(req *http.Request, boundary string) (*http.Request, error) {
	start := make([]byte, min(maxBeforeText, req.ContentLength))
	if _, err := io.ReadFull(req.Body, start); err != nil {
		return nil, err
	}
	// The boundary is random, so that nothing else in the form reads like this.
	empty := "--" + boundary + "\r\nContent-Disposition: form-data; name=\"text\"\r\n\r\n\r\n"
	shorter := bytes.Replace(start, []byte(empty), nil, 1)
	r := req.Clone(req.Context())
	r.Body = body{io.MultiReader(bytes.NewReader(shorter), req.Body), req.Body}
	r.ContentLength, r.GetBody = req.ContentLength-int64(len(start)-len(shorter)), nil
	return r, nil
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
