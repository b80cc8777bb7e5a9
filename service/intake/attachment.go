package intake

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"mime"
	"slices"
	"strings"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/problem"
)

// Limits of attachments.
const (
	MaxAttachments     = 100
	MaxAttachmentBytes = 25_000_000 // of all attachments of a message
	maxFilename        = 255        // bytes
	maxContentID       = 128        // bytes
)

// Attachment is a file of a request.
type Attachment struct {
	// One line of at most 255 bytes without `/`, `\` and `;`.
	Filename string `json:"filename" required:"true" min:"1" max:"255"`
	// Media type in lower case without parameters. Only `text/calendar; method=REQUEST` has one: mail programs offer to
	// accept such an invitation, whose file says METHOD:REQUEST, too. Default: application/octet-stream.
	Type string `json:"content_type"`
	// Makes the attachment an inline image, which the HTML refers to as `cid:` and this ID. Unique within the message.
	ContentID string `json:"content_id" pattern:"^[A-Za-z0-9_.@+-]{1,128}$"`
	// `inline` if there is a content ID, and `attachment` if there is none.
	Disposition string `json:"disposition" enum:"attachment,inline"`
	File        *File  `json:"content" required:"true" schema:"FileContent"`
	Flawed      bool   // the caller has reported mistakes in it
}

// attachments are the files of a request. Their bytes are in a buffer, one file behind the other.
type attachments struct {
	Kept map[string]*Spooled // files of the request that its caller has read before, by names that it chose

	files buffer
	list  []*Attachment
}

// File is a file of a request while it is read. It keeps the bytes until they are stored.
type File struct {
	files      *buffer
	from, size int64
	hash       hash.Hash
}

// NewFile begins a file. The file that was begun before it is complete.
func (a *attachments) NewFile() *File {
	return &File{files: &a.files, from: a.files.size, hash: sha256.New()}
}

// Write implements io.Writer. It returns an error if the attachments exceed their limit.
func (f *File) Write(p []byte) (int, error) {
	if f.files.size+int64(len(p)) > MaxAttachmentBytes {
		return 0, problem.New(problem.TooLarge, "attachments_too_large",
			"The attachments of a message may have at most %d bytes together.", MaxAttachmentBytes)
	}
	n, err := f.files.Write(p)
	if err != nil {
		return n, spoolError(err)
	}
	f.size += int64(n)
	return f.hash.Write(p)
}

// sum returns the SHA-256 of the file, in hex.
func (f *File) sum() string { return hex.EncodeToString(f.hash.Sum(nil)) }

// Attach adds the next attachment of the request, at a pointer. It reports mistakes in it.
func (in *Intake) Attach(at string, a *Attachment) {
	if len(in.list) == MaxAttachments {
		in.Wrong("/attachments", "too_many", "A message may have at most %d attachments.", MaxAttachments)
		return
	}
	if a.Type == "" {
		a.Type = "application/octet-stream"
	}
	if !a.Flawed {
		a.check(at, &in.Mistakes)
		same := func(o *Attachment) bool { return o.ContentID == a.ContentID }
		if a.ContentID != "" && validContentID(a.ContentID) && a.Disposition != "attachment" &&
			slices.ContainsFunc(in.list, same) {
			in.Wrong(at+"/content_id", "repeated", "Another attachment has this content id.")
		}
	}
	in.list = append(in.list, a)
}

func (a *Attachment) check(at string, m reporter) {
	if a.File != nil && a.File.size == 0 {
		m.Wrong(at+"/content", "required", "The attachment is empty. SendGrid takes none.")
	}
	switch {
	case a.Filename == "":
		m.Wrong(at+"/filename", "required", "The attachment has no file name.")
	case len(a.Filename) > maxFilename:
		m.Wrong(at+"/filename", "too_long", "The file name is longer than %d bytes.", maxFilename)
	case HasControls(a.Filename) || strings.ContainsAny(a.Filename, `/\;`) || strings.Trim(a.Filename, ".") == "":
		m.Wrong(at+"/filename", "invalid_name", `A file name is one line without /, \ and ;, and not only dots.`)
	}
	if kind, params, err := mime.ParseMediaType(a.Type); err == nil && invites(kind, params) {
		a.Type = invitation
	} else if err != nil || len(params) > 0 || kind != a.Type ||
		!strings.Contains(kind, "/") || strings.HasPrefix(kind, "multipart/") {
		m.Wrong(at+"/content_type", "invalid_value",
			"A content type is a media type in lower case without parameters, like application/pdf, and not multipart. "+
				"Only %s has a parameter.", invitation)
	}
	switch a.Disposition {
	case "", "attachment", "inline":
	default:
		m.Wrong(at+"/disposition", "invalid_value", "disposition must be attachment or inline.")
	}
	switch {
	case a.ContentID == "" && a.Disposition == "inline":
		m.Wrong(at+"/content_id", "required", "An inline attachment needs a content id, which the HTML refers to as cid:.")
	case a.ContentID != "" && a.Disposition == "attachment":
		m.Wrong(at+"/disposition", "conflict", "An attachment with a content id is inline.")
	case a.ContentID != "" && !validContentID(a.ContentID):
		m.Wrong(at+"/content_id", "invalid_name",
			"A content id has 1 to %d characters: letters a to z, digits, _, -, +, . or @.", maxContentID)
	}
}

// invitation is the content type of an invitation that mail programs offer to accept (RFC 6047, 2.4). SendGrid refuses
// all other parameters, and this one if it is written otherwise (sendgrid-nodejs issues 217 and 1313).
const invitation = "text/calendar; method=REQUEST"

// invites reports whether a content type is that of an invitation. UTF-8 is what the other types mean, too.
func invites(kind string, params map[string]string) bool {
	for name, value := range params {
		if name != "method" && !(name == "charset" && strings.EqualFold(value, "utf-8")) {
			return false
		}
	}
	return kind == "text/calendar" && strings.EqualFold(params["method"], "REQUEST")
}

// MediaType returns the type of a file without the parameters that some provider refuses.
func MediaType(kind string) string {
	if kind != invitation {
		kind, _, _ = strings.Cut(kind, ";")
	}
	return kind
}

func validContentID(s string) bool { return len(s) <= maxContentID && wordOf(s, "_-+.@") }

// described describes the attachments for the batch.
func (a *attachments) described() (out []models.Attachment) {
	for _, a := range a.list {
		if a.File == nil {
			continue // the mistake is listed
		}
		out = append(out, models.Attachment{
			Filename:  a.Filename,
			Type:      a.Type,
			ContentID: a.ContentID,
			Size:      a.File.size,
			SHA256:    a.File.sum(),
		})
	}
	return out
}

// Pieces calls f for each piece of the attachments of the checked batch; of equal attachments, for those of one. The
// piece is valid until f returns.
func (a *attachments) Pieces(f func(sha256 string, number int, piece []byte) error) error {
	var done []string
	var space []byte
	for _, one := range a.list {
		sum := one.File.sum()
		if slices.Contains(done, sum) {
			continue
		}
		done = append(done, sum)
		in, err := a.files.section(one.File.from, one.File.size)
		if err != nil {
			return spoolError(err)
		}
		if space == nil {
			space = make([]byte, min(models.PieceSize, a.files.size))
		}
		left := one.File.size
		for n := 0; left > 0; n++ {
			piece := space[:min(left, models.PieceSize)]
			if _, err := io.ReadFull(in, piece); err != nil {
				return spoolError(fmt.Errorf("%w: %w", errSpool, err))
			}
			if err := f(sum, n, piece); err != nil {
				return err
			}
			left -= int64(len(piece))
		}
	}
	return nil
}
