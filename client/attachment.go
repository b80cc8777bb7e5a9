package client

import (
	"encoding/json"
	"io"
	"mime"
	"os"
	"path/filepath"
)

// SendWindow is when mail leaves: while a clock in a time zone shows a time from From and before To, on some days.
type SendWindow struct {
	From string `json:"from" required:"true"` // Like `09:00`.
	// Like `17:30`, up to `24:00`. If it is not later than `from`, the window ends on the day after.
	To string `json:"to" required:"true"`
	// Days on which the window begins: `monday` to `sunday`. Default: every day.
	Weekdays []string `json:"weekdays,omitempty" max:"7"`
	TimeZone string   `json:"time_zone"`        // Default: the `time_zone` of the batch, or of the user.
	Strict   bool     `json:"strict,omitempty"` // Send nothing outside of the window.
}

// AnyTime returns the window that lets mail leave at any time, although the user has a window.
func AnyTime() *SendWindow { return &SendWindow{} }

// MarshalJSON implements [json.Marshaler].
func (w SendWindow) MarshalJSON() ([]byte, error) {
	if w.From == "" && w.To == "" {
		return json.Marshal("none")
	}
	type fields SendWindow
	return json.Marshal(fields(w))
}

// Attachment is a file of a mail.
type Attachment struct {
	// Filename is one line. The default is a name by the type. The characters /, \ and ; are replaced.
	Filename string `json:"filename,omitempty"`
	// ContentType is a media type. The default is application/octet-stream.
	ContentType string `json:"content_type,omitempty"`
	// ContentID makes the attachment an inline image, which the HTML refers to as cid: and this id.
	ContentID string `json:"content_id,omitempty"`
	Content   []byte `json:"content"`
}

// AttachFile returns the file at a path as an attachment. Its type follows from the extension of its name.
func AttachFile(path string) (Attachment, error) {
	f, err := os.Open(path)
	if err != nil {
		return Attachment{}, err
	}
	defer f.Close()
	return Attach(filepath.Base(path), f)
}

// Attach returns what it reads as an attachment with a name. Its type follows from the extension of the name.
func Attach(filename string, in io.Reader) (Attachment, error) {
	content, err := io.ReadAll(in)
	kind, _, _ := mime.ParseMediaType(mime.TypeByExtension(filepath.Ext(filename)))
	return Attachment{Filename: filename, ContentType: kind, Content: content}, err
}
