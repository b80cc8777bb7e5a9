package client

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"mime"
	"mime/multipart"
	"net/http"
	"net/textproto"
	"strconv"
	"strings"
)

// Permissive lets a batch leave out the recipients with mistakes, instead of refusing it.
func Permissive() CallOption { return func(c *call) { c.set("mode", "permissive") } }

// Rejected lists the recipients of a request that were left out.
type Rejected struct {
	Count int         `json:"count" min:"0"`
	First []Rejection `json:"first,omitempty" max:"100"` // The first of them, in an answer to the request.
}

// Rejection says why a recipient was left out.
type Rejection struct {
	Index int `json:"index" min:"0"` // Of the recipient in the request, from 0.
	// Of a file: the line on which the recipient begins. The first line is 1.
	Row     int    `json:"row,omitempty" min:"1"`
	Column  string `json:"column,omitempty"` // Of a table: the heading of the column.
	Pointer string `json:"pointer"`          // JSON pointer (RFC 6901) to the mistake.
	Code    string `json:"code"`             // Stable. docs/errors.md lists all codes.
	Detail  string `json:"detail"`           // For people. It may change.
}

// Rejected returns the recipients that were left out of a batch, in the order of the request.
func (c *Client) Rejected(ctx context.Context, batch string, o ListOptions) iter.Seq2[Rejection, error] {
	return list[Rejection](ctx, c, listing{path: route("batches", batch, "rejected"), name: "rejected"}, o)
}

// ExportRejected writes the recipients that were left out of a batch to w as CSV.
func (c *Client) ExportRejected(ctx context.Context, batch string, w io.Writer, options ...CallOption) error {
	return c.do(ctx, newCall(http.MethodGet, route("batches", batch, "rejected.csv"), options), w)
}

// File is a file of recipients.
type File struct {
	// Name ends in .csv for a table, whose first row has the names of the columns, or in .ndjson for a recipient in each
	// line as JSON.
	Name string
	// Columns says what columns of a table are, by their headings: email, name, the name of a variable, or empty to leave
	// the column out. Others are what their headings say.
	Columns map[string]string
	// Content is read while it is sent.
	Content io.Reader
}

// CreateBatchFromFile is CreateBatch for the recipients of a file: b.To must be empty.
func (c *Client) CreateBatchFromFile(
	ctx context.Context, b NewBatch, f File, options ...CallOption,
) (Accepted, error) {
	var out Accepted
	attachments := b.Attachments
	b.Attachments = nil
	fields, err := formFields(b)
	if err != nil {
		return out, err
	}
	if len(f.Columns) > 0 {
		raw, err := json.Marshal(f.Columns)
		if err != nil {
			return out, err
		}
		fields["columns"] = string(raw)
	}
	r, w := io.Pipe()
	form := multipart.NewWriter(w)
	written := make(chan struct{})
	go func() {
		defer close(written)
		_ = w.CloseWithError(writeForm(form, fields, attachments, f)) // the reader of the pipe gets the error
	}()
	call := newCall(http.MethodPost, route("batches"), options)
	call.header.Set("Content-Type", form.FormDataContentType())
	call.body = r
	err = c.do(ctx, call, &out)
	_ = r.Close() // the writer stops if the answer came early
	<-written
	return out, err
}

// formFields returns the fields of a batch as those of a form.
func formFields(b NewBatch) (map[string]string, error) {
	raw, err := json.Marshal(b)
	if err != nil {
		return nil, err
	}
	var members map[string]any
	if err := json.Unmarshal(raw, &members); err != nil {
		return nil, err
	}
	fields := map[string]string{}
	for name, value := range members {
		switch v := value.(type) {
		case string:
			fields[name] = v
		case bool:
			fields[name] = strconv.FormatBool(v)
		case []any:
			var parts []string
			for _, part := range v {
				text, ok := part.(string)
				if !ok {
					return nil, fmt.Errorf("CreateBatchFromFile: a form has no %s", name)
				}
				parts = append(parts, text)
			}
			fields[name] = strings.Join(parts, ",")
		default:
			raw, err := json.Marshal(v)
			if err != nil {
				return nil, err
			}
			fields[name] = string(raw)
		}
	}
	return fields, nil
}

// writeForm writes the fields of a form, the attachments, and then the file.
func writeForm(w *multipart.Writer, fields map[string]string, attachments []Attachment, f File) error {
	for name, value := range fields {
		if err := w.WriteField(name, value); err != nil {
			return err
		}
	}
	for i := range attachments {
		a := &attachments[i]
		about := mime.FormatMediaType("form-data", map[string]string{"name": "attachments", "filename": a.Filename})
		header := textproto.MIMEHeader{"Content-Disposition": {about}}
		if a.ContentType != "" {
			header.Set("Content-Type", a.ContentType)
		}
		if a.ContentID != "" {
			header.Set("Content-ID", "<"+a.ContentID+">")
		}
		part, err := w.CreatePart(header)
		if err != nil {
			return err
		}
		if _, err := part.Write(a.Content); err != nil {
			return err
		}
	}
	part, err := w.CreateFormFile("to", f.Name)
	if err != nil {
		return err
	}
	if _, err := io.Copy(part, f.Content); err != nil {
		return err
	}
	return w.Close()
}
