package web

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/safedelivr/safedelivr/internal/perclient"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
)

// MaxContent is the size limit in bytes of a form with the content of a message or a list, without attachments.
const MaxContent = 16 << 20

// SeeOther redirects to a path of this site. It returns no error, so that handlers can return what it returns.
func SeeOther(w http.ResponseWriter, r *http.Request, path string) error {
	http.Redirect(w, r, path, http.StatusSeeOther) //nolint:gosec // callers build the path, or take it through LocalPath
	return nil
}

// HashOf returns the SHA-256 of a text in hex. The time of a comparison of hashes says nothing about secrets.
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
		won, err := f.Store.Claim(ctx, "form."+v.User+"."+mine.Hash, mine, sessionIdle)
		if !errors.Is(err, models.ErrOutcomeUnknown) || ctx.Err() != nil {
			return won.ID != mine.ID, StoreTrouble(err)
		}
	}
}

// Refused returns the error that says what is wrong with a request; nil: err is no such error.
func Refused(err error) *service.Error {
	if e, ok := errors.AsType[*service.Error](err); ok && e.Kind != service.Internal {
		return e
	}
	return nil
}

// WrongFields maps the fields of a form to the mistakes in them; nil: err is not about fields. The field is the first part
// of a mistake's pointer.
func WrongFields(err error) map[string]string {
	e, ok := errors.AsType[*service.Error](err)
	if !ok || len(e.Fields) == 0 {
		return nil
	}
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

// maxKept is the size in bytes of the largest form that is kept when the session has ended, and keptBytes that of all
// such forms that are being read: anybody may send one. An address has as much of it as one form needs.
const (
	maxKept   = 4 << 20
	keptBytes = 4 * maxKept
)

// keptBudget counts the bytes of forms as they arrive, so that slow forms keep out no other.
type keptBudget struct {
	all *semaphore.Weighted
	of  perclient.Counts
}

// take takes n more bytes for an address. It returns false if they are too many.
func (k *keptBudget) take(address netip.Addr, n int64) bool {
	if !k.of.Add(address, n, maxKept) {
		return false
	}
	if !k.all.TryAcquire(n) {
		k.of.Remove(address, n)
		return false
	}
	return true
}

// release gives back the bytes of a form.
func (k *keptBudget) release(address netip.Addr, n int64) {
	k.all.Release(n)
	k.of.Remove(address, n)
}

// keptBody is the body of a form that counts against the budget.
type keptBody struct {
	io.ReadCloser
	budget  *keptBudget
	address netip.Addr
	size    int64
}

var errKept = errors.New("too many forms are being read")

// Read implements io.Reader.
func (b *keptBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if !b.budget.take(b.address, int64(n)) {
		return 0, errKept
	}
	b.size += int64(n)
	return n, err
}

// keptForm is a form that was sent after the session had ended.
type keptForm struct {
	To        string
	Multipart bool
	Fields    url.Values
	Lost      bool // it was too large, or could not be read
}

// keepForm answers a form that came without a session: with the form, to send it again after
// a login.
func (f *Frame) keepForm(w http.ResponseWriter, r *http.Request) error {
	body := &keptBody{ReadCloser: http.MaxBytesReader(w, r.Body, maxKept), budget: &f.keeping, address: perclient.Address(r)}
	defer func() { f.keeping.release(body.address, body.size) }()
	r.Body = body
	kept := keptForm{To: r.URL.RequestURI()}
	err := r.ParseForm()
	if err == nil {
		err = r.ParseMultipartForm(maxKept) //nolint:gosec // bounded above
	}
	if errors.Is(err, errKept) {
		return errNoSession
	}
	kept.Multipart = !errors.Is(err, http.ErrNotMultipart)
	kept.Fields, kept.Lost = r.PostForm, err != nil && kept.Multipart
	w.Header().Set("Cache-Control", "no-store")
	return f.Render(w, r, nil, http.StatusUnauthorized, "ended", Page{Title: "Your session has ended", Data: kept})
}

// Question is the confirmation before an action: what the action does, to how many
// messages, and what cannot be undone.
type Question struct {
	Title string
	Text  []string
	Do    string // on the button
	Grave bool   // the action cannot be undone, or mail may arrive twice
	To    string // path that the form posts to
	Back  string
	Once  string // idempotency key: a second press changes nothing

	IDs []string // of the selected entries

	Times  any // fields for the times of a batch; nil: there are none
	Status int // of the answer; 0: OK
}

// Ask shows a confirmation: in the page's dialog if htmx asked for it, else as a
// page of its own.
func (f *Frame) Ask(w http.ResponseWriter, r *http.Request, v *Visitor, active string, q *Question) error {
	q.Once, q.To = NewSecret(), r.URL.EscapedPath()
	if list := r.URL.Query().Get("list"); list != "" { // of suppressions
		q.To += "?list=" + url.QueryEscape(list)
	}
	if r.Header.Get("Hx-Request") == "" {
		return f.Render(w, r, v, cmp.Or(q.Status, http.StatusOK), "ask", Page{Title: q.Title, Active: active, Data: q})
	}
	ps, err := f.Parts("ask", q, "ask")
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = w.Write(ps["ask"]) // the browser may be gone
	return nil
}

// Answered reads the form of a confirmation.
func Answered(w http.ResponseWriter, r *http.Request) (why string, repeat service.Repeat) {
	r.Body = http.MaxBytesReader(w, r.Body, MaxForm)
	why = strings.TrimSpace(r.PostFormValue("why"))
	repeat = service.Repeat{Route: "POST " + r.URL.Path, Hash: HashOf(why)}
	if once := r.PostFormValue("once"); len(once) == SecretLength {
		repeat.Key = once + repeat.Hash
	}
	return why, repeat
}

// Action is a button for a command that can be given now.
type Action struct{ Do, Text string }
