package intake

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"mime"
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
	Filename, Type, ContentID string
	Disposition               string // attachment or inline; empty: inline if there is a content ID
	File                      *File
	Flawed                    bool // the caller has reported mistakes in it
}

// File is a file of a request while it is read. It keeps the bytes until they are stored.
type File struct {
	files      *buffer
	from, size int64
	hash       hash.Hash
}

// NewFile begins a file. The file that was begun before it is complete.
func (b *Builder) NewFile() *File {
	return &File{files: &b.files, from: b.files.size, hash: sha256.New()}
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

// AddAttachment adds the next attachment of the request. It reports mistakes in it.
func (b *Builder) AddAttachment(at string, a *Attachment) {
	if len(b.attachments) == MaxAttachments {
		b.Wrong("/attachments", "too_many", "A message may have at most %d attachments.", MaxAttachments)
		return
	}
	b.attachments = append(b.attachments, a)
	if a.Type == "" {
		a.Type = "application/octet-stream"
	}
	if !a.Flawed {
		b.checkAttachment(at, a)
	}
}

func (b *Builder) checkAttachment(at string, a *Attachment) {
	if a.File != nil && a.File.size == 0 {
		b.Wrong(at+"/content", "required", "The attachment is empty. SendGrid takes none.")
	}
	switch {
	case a.Filename == "":
		b.Wrong(at+"/filename", "required", "The attachment has no file name.")
	case len(a.Filename) > maxFilename:
		b.Wrong(at+"/filename", "too_long", "The file name is longer than %d bytes.", maxFilename)
	case HasControls(a.Filename) || strings.ContainsAny(a.Filename, `/\;`) || strings.Trim(a.Filename, ".") == "":
		b.Wrong(at+"/filename", "invalid_name", `A file name is one line without /, \ and ;, and not only dots.`)
	}
	if kind, params, err := mime.ParseMediaType(a.Type); err == nil && invites(kind, params) {
		a.Type = invitation
	} else if err != nil || len(params) > 0 || kind != a.Type ||
		!strings.Contains(kind, "/") || strings.HasPrefix(kind, "multipart/") {
		b.Wrong(at+"/content_type", "invalid_value",
			"A content type is a media type in lower case without parameters, like application/pdf, and not multipart. "+
				"Only %s has a parameter.", invitation)
	}
	switch a.Disposition {
	case "", "attachment", "inline":
	default:
		b.Wrong(at+"/disposition", "invalid_value", "disposition must be attachment or inline.")
	}
	switch {
	case a.ContentID == "" && a.Disposition == "inline":
		b.Wrong(at+"/content_id", "required", "An inline attachment needs a content id, which the HTML refers to as cid:.")
	case a.ContentID != "" && a.Disposition == "attachment":
		b.Wrong(at+"/disposition", "conflict", "An attachment with a content id is inline.")
	case a.ContentID != "" && !validContentID(a.ContentID):
		b.Wrong(at+"/content_id", "invalid_name",
			"A content id has 1 to %d characters: letters a to z, digits, _, -, +, . or @.", maxContentID)
	case a.ContentID != "" && b.contentIDs[a.ContentID]:
		b.Wrong(at+"/content_id", "repeated", "Another attachment has this content id.")
	}
	b.contentIDs[a.ContentID] = true
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

func validContentID(s string) bool {
	for i := range len(s) {
		c := s[i]
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		if !letter && !(c >= '0' && c <= '9') && strings.IndexByte("_-+.@", c) < 0 {
			return false
		}
	}
	return len(s) <= maxContentID
}

// attached describes the attachments for the batch.
func (b *Builder) attached() (out []models.Attachment) {
	for _, a := range b.attachments {
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

// Pieces calls f for each piece of the attachments of the checked batch; of equal attachments,
// for those of one. The piece is valid until f returns.
func (b *Builder) Pieces(f func(sha256 string, number int, piece []byte) error) error {
	done := map[string]bool{}
	var space []byte
	for _, a := range b.attachments {
		sum := a.File.sum()
		if done[sum] {
			continue
		}
		done[sum] = true
		in, err := b.files.section(a.File.from, a.File.size)
		if err != nil {
			return spoolError(err)
		}
		if space == nil {
			space = make([]byte, min(models.PieceSize, b.files.size))
		}
		left := a.File.size
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
