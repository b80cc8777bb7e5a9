package intake

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"slices"
	"strings"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/mailparse"
	"github.com/safedelivr/safedelivr/service/problem"
)

// Limits of attachments.
const (
	MaxAttachments     = 100
	MaxAttachmentBytes = 25_000_000 // of all attachments of a message
)

// Attachment is a file of a request.
type Attachment struct {
	// One line. Providers get at most 255 bytes of it, and `-` for `/`, `\` and `;`. Default: a name by the type, like
	// `attachment-1.pdf`.
	Filename string `json:"filename"`
	// A media type. Of its parameters only that of an invitation is kept, `text/calendar; method=REQUEST`: mail programs
	// offer to accept it if its file says METHOD:REQUEST, too. Default, also for what is no media type:
	// application/octet-stream.
	Type string `json:"content_type"`
	// Makes the attachment an inline image, which the HTML refers to as `cid:` and this ID. One that is not 1 to 128
	// letters a to z, digits, `_`, `-`, `+`, `.` and `@`, or that is repeated, is replaced, also in the HTML.
	ContentID string `json:"content_id"`
	// `inline` if there is a content ID, and `attachment` if there is none.
	Disposition string `json:"disposition" enum:"attachment,inline"`
	File        *File  `json:"content" required:"true" schema:"FileContent"`
	Flawed      bool   // the caller has reported mistakes in it

	at   string // pointer
	sent string // the content ID before it was replaced; empty: it was not
}

// attachments are the files of a request. Their bytes are in a buffer, one file behind the other.
type attachments struct {
	Kept map[string]*Part // files of the request that its caller has read before, by names that it chose

	files buffer
	list  []*Attachment
	names mailparse.Files
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

// Attach adds the next attachment of the request, at a pointer. It gives it a name, a type and a content ID that every
// provider takes, and reports mistakes in it.
func (in *Intake) Attach(at string, a *Attachment) {
	if len(in.list) == MaxAttachments {
		in.Wrong("/attachments", "too_many", "A message may have at most %d attachments.", MaxAttachments)
		return
	}
	if !a.Flawed {
		a.check(at, &in.Mistakes)
	}
	was := mailparse.ContentID(a.ContentID)
	valid := in.names.Attachment(a.Filename, a.Type, a.ContentID)
	a.Filename, a.Type, a.ContentID, a.at = valid.Filename, valid.Type, valid.ContentID, at
	if a.Type != invitation {
		a.Type, _, _ = strings.Cut(a.Type, ";")
	}
	first := func(o *Attachment) bool { return o.ContentID == was }
	if was != a.ContentID && !slices.ContainsFunc(in.list, first) { // else references are to the first one
		a.sent = was
	}
	in.list = append(in.list, a)
}

func (a *Attachment) check(at string, m reporter) {
	if a.File != nil && a.File.size == 0 {
		m.Wrong(at+"/content", "required", "The attachment is empty. SendGrid takes none.")
	}
	for _, one := range []struct{ name, value string }{
		{"filename", a.Filename}, {"content_type", a.Type}, {"content_id", a.ContentID},
	} {
		if HasControls(one.value) {
			m.Wrong(at+"/"+one.name, "invalid_header", "%s must be one line without control characters.", one.name)
		}
	}
	if len(a.ContentID) > mailparse.MaxContentID {
		m.Wrong(at+"/content_id", "too_long", "The content id is longer than %d bytes.", mailparse.MaxContentID)
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
	}
}

// invitation is the content type of an invitation that mail programs offer to accept (RFC 6047, 2.4). SendGrid refuses
// all other parameters, and this one if it is written otherwise (sendgrid-nodejs issues 217 and 1313).
const invitation = "text/calendar; method=REQUEST"

// checkReplaced reports content IDs that were replaced although values of recipients refer to them, where they cannot
// be replaced.
func (in *Intake) checkReplaced() error {
	replaced := slices.DeleteFunc(slices.Clone(in.list), func(a *Attachment) bool { return a.sent == "" })
	if len(replaced) == 0 {
		return nil
	}
	return in.each(func(_ place, r models.Recipient) error {
		for _, value := range r.Vars {
			for _, a := range replaced {
				if at := a.at + "/content_id"; mailparse.Refers(value, a.sent) && !in.At(at) {
					in.Wrong(at, "invalid_name", "The values of a recipient refer to this content id. "+
						"So it must have 1 to 128 characters: letters a to z, digits, _, -, +, . or @.")
				}
			}
		}
		return nil
	})
}

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
