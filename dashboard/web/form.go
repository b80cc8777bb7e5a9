package web

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
)

// MaxContent is the size limit of the form in bytes, without attachments. The API takes larger
// batches.
const MaxContent = 16 << 20

// SeeOther redirects to a path of this site. It returns no error, so that handlers can return what it returns.
func SeeOther(w http.ResponseWriter, r *http.Request, path string) error {
	http.Redirect(w, r, path, http.StatusSeeOther) //nolint:gosec // callers build the path, or take it through LocalPath
	return nil
}

// SameSecret compares in constant time.
func SameSecret(a, b string) bool { return HashOf(a) == HashOf(b) }

func HashOf(s string) string {
	h := sha256.Sum256([]byte(s))
	return hex.EncodeToString(h[:])
}

// LocalPath returns to if it is a path of this site, else "/".
func LocalPath(to string) string {
	u, err := url.Parse(to)
	if err != nil || u.Scheme != "" || u.Host != "" || u.User != nil ||
		!strings.HasPrefix(to, "/") || strings.HasPrefix(to, "//") || strings.ContainsAny(to, "\\\r\n\t") ||
		strings.HasPrefix(u.Path, "/login") || strings.HasPrefix(u.Path, "/live/") {
		return "/"
	}
	return to
}

// SelectedIDs returns the IDs of a form that was read.
func SelectedIDs(r *http.Request) (ids []models.ID, err error) {
	for _, text := range r.PostForm["id"] {
		id, err := models.ParseID(text)
		if err != nil {
			return nil, ErrNoPage
		}
		ids = append(ids, id)
	}
	return ids, nil
}

// BackFrom returns the page of this site that a form was sent from.
func BackFrom(r *http.Request) string {
	if from, err := url.Parse(r.Referer()); err == nil && from.Host == r.Host {
		return LocalPath(from.RequestURI())
	}
	return "/batches"
}

// Submitted reports whether a form with this secret was submitted before, and records that it
// is now. A form without a secret counts as new.
func (f *Frame) Submitted(ctx context.Context, v *Visitor, once string) (bool, error) {
	if len(once) != SecretLength {
		return false, nil
	}
	mine := models.Claim{ID: models.NewBatchID(time.Now()), Hash: HashOf(once), At: time.Now().UTC()}
	for {
		won, err := f.store.Claim(ctx, "form."+v.User+"."+mine.Hash, mine, sessionIdle)
		if !errors.Is(err, models.ErrOutcomeUnknown) || ctx.Err() != nil {
			return won.ID != mine.ID, StoreTrouble(err)
		}
	}
}

// WrongFields maps the fields of a form to the service's errors. The field is the
// first part of an error's pointer.
func WrongFields(e *service.Error) map[string]string {
	out := map[string]string{}
	for _, f := range e.Fields {
		field, _, _ := strings.Cut(strings.TrimPrefix(f.Pointer, "/"), "/")
		if out[field] == "" {
			out[field] = f.Detail
		} else if !strings.Contains(out[field], f.Detail) {
			out[field] += " " + f.Detail
		}
	}
	return out
}

// BadForm is the error for a form that cannot be parsed.
func BadForm(err error) error {
	return service.Fail(service.Malformed, "bad_form", "The form could not be read. Go back and try again.").Because(err)
}

// Lines normalises line ends to \n, and replaces NUL and invalid UTF-8. It is
// idempotent.
func Lines(s string) string {
	return strings.NewReplacer("\r\n", "\n", "\r", "\n", "\x00", "\ufffd").Replace(strings.ToValidUTF8(s, "\ufffd"))
}

// Words returns the words of a text that are separated by spaces and commas.
func Words(text string) []string {
	return strings.FieldsFunc(text, func(c rune) bool { return strings.ContainsRune(" ,;\r\n\t", c) })
}
