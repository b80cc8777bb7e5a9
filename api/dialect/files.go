package dialect

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"hash"
	"io"
	"strconv"

	"github.com/safedelivr/safedelivr/service/intake"
	"github.com/safedelivr/safedelivr/service/mailparse"
)

// Files takes the files of a message.
type Files struct {
	hash hash.Hash
	n    int
}

// Attach reads a file and adds it to a request. An empty content ID means that it is not inline.
func (f *Files) Attach(in *intake.Intake, name, kind, contentID string, content io.Reader) error {
	if f.hash == nil {
		f.hash = sha256.New()
	}
	file := in.NewFile()
	name, kind, contentID = mailparse.Line(name), mailparse.Line(kind), mailparse.Line(contentID)
	_, _ = io.WriteString(f.hash, name+"\n"+kind+"\n"+contentID+"\n") // a hash never fails
	n, err := io.Copy(io.MultiWriter(file, f.hash), content)
	if err != nil || n == 0 { // no provider takes an empty file
		return err
	}
	in.Attach("/attachments/"+strconv.Itoa(f.n), &intake.Attachment{
		Filename: name, Type: kind, ContentID: contentID, File: file,
	})
	f.n++
	return nil
}

// AttachAll is Attach for the files of a list of objects in an object. content and name are members of them, and rest
// returns what else it needs.
func (f *Files) AttachAll(
	in *intake.Intake, o Object, list, content, name string, rest func(a Object) (kind, contentID string, err error),
) error {
	files, ok := o.Objects(list)
	if !ok {
		return Invalid("attachments", "wrong_type", "It must be a list of objects.")
	}
	for _, a := range files {
		kind, id, err := rest(a)
		if err == nil {
			ok, err = f.attachJSON(in, a, content, a.Text(name), kind, id)
		}
		if err != nil {
			return err
		}
		if !ok {
			return Invalid("attachments", "invalid_base64", "%s must be base64, or a list of bytes.", content)
		}
	}
	return nil
}

// attachJSON is Attach for a file whose bytes are a member of an object. It reports false if they cannot be decoded.
func (f *Files) attachJSON(in *intake.Intake, a Object, content, name, kind, contentID string) (ok bool, err error) {
	if file := in.Kept[a.kept(content)]; file != nil {
		from, err := file.Reader()
		if err != nil {
			return true, err
		}
		return true, f.Attach(in, name, kind, contentID, from)
	}
	data, ok := a.Bytes(content)
	if !ok {
		return false, nil
	}
	return true, f.Attach(in, name, kind, contentID, bytes.NewReader(data))
}

// kept returns the text of a member, or of data in it: the name of a file that is not in memory.
func (o Object) kept(name string) string {
	if buffer, ok := o.Object(name); ok {
		return buffer.Text("data")
	}
	return o.Text(name)
}

// Any reports whether there is a file.
func (f *Files) Any() bool { return f.n > 0 }

// Sum returns a hash of all files.
func (f *Files) Sum() string {
	if f.hash == nil {
		return ""
	}
	return hex.EncodeToString(f.hash.Sum(nil))
}
