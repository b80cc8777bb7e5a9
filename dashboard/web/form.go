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
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/safedelivr/safedelivr/internal/perclient"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/operation"
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

// Form is what a visitor entered, with the mistakes in it.
type Form struct {
	url.Values
	Problem string // that is not about fields

	own   []string // fields that are not of an operation
	wrong []service.FieldError
}

// NewForm returns a form that has values and no mistakes.
func NewForm(values url.Values) *Form { return &Form{Values: values} }

// ReadForm reads a form of at most so many bytes. own are the fields that are not of an operation.
func ReadForm(w http.ResponseWriter, r *http.Request, most int64, own ...string) (*Form, error) {
	r.Body = http.MaxBytesReader(w, r.Body, most)
	err := r.ParseForm()
	if err != nil {
		err = BadForm(err)
	}
	return &Form{Values: r.PostForm, own: append(own, "once")}, err
}

// BadForm is the error for a form that cannot be parsed.
func BadForm(err error) error {
	return service.Fail(service.Malformed, "bad_form", "The form could not be read. Go back and try again.").Because(err)
}

// Own adds fields that are not of an operation.
func (f *Form) Own(names ...string) { f.own = append(f.own, names...) }

// Text returns a field without space around it.
func (f *Form) Text(name string) string { return strings.TrimSpace(f.Get(name)) }

// Has reports whether a list has a word, or a switch is on.
func (f *Form) Has(name, word string) bool {
	return slices.Contains(operation.Words(f.Values[name]...), word)
}

// Read decodes the form into the JSON object that v points to: see operation.ReadForm.
func (f *Form) Read(v any) error { return operation.ReadForm(v, f.Values, f.own...) }

// Repeat identifies the form, if its page had a field once: a second press changes nothing.
func (f *Form) Repeat(r *http.Request) (out service.Repeat) {
	if once := f.Get("once"); len(once) == SecretLength {
		out = service.Repeat{Route: "POST " + r.URL.Path, Hash: HashOf(f.Encode())}
		out.Key = once + out.Hash
	}
	return out
}

// Refused keeps the mistakes that an error lists, and shows them. It returns the error if it is none for users.
func (f *Form) Refused(err error, show func(status int) error) error {
	e := Refused(err)
	if e == nil {
		return err
	}
	if f.wrong = e.Fields; len(e.Fields) == 0 {
		f.Problem = e.Detail
	}
	return show(e.Kind.Status())
}

// pointed writes the pointer of a mistake as the name of a field.
var pointed = strings.NewReplacer("~1", "/", "~0", "~")

// at reports whether a mistake is in a field or in what is below it. Every mistake is in the field "".
func at(name string, m *service.FieldError) bool {
	in := pointed.Replace(strings.TrimPrefix(m.Pointer, "/"))
	return name == "" || in == name || strings.HasPrefix(in, name+"/")
}

// Mistaken reports whether a field, or one below it, has a mistake.
func (f *Form) Mistaken(name string) bool {
	return slices.ContainsFunc(f.wrong, func(m service.FieldError) bool { return at(name, &m) })
}

// Wrong returns the mistakes in a field and below it, once, for the place beside its input.
func (f *Form) Wrong(name string) string {
	var texts []string
	f.wrong = slices.DeleteFunc(slices.Clone(f.wrong), func(m service.FieldError) bool {
		here := at(name, &m)
		if here && !slices.Contains(texts, m.Detail) {
			texts = append(texts, m.Detail)
		}
		return here
	})
	return strings.Join(texts, " ")
}

// Rest returns the mistakes that stand beside no field: a page asks for them after it has asked for all fields.
func (f *Form) Rest() string { return strings.TrimSpace(f.Problem + " " + f.Wrong("")) }

// Beyond reports whether fields other than some are filled or have mistakes, so that the page must show them.
func (f *Form) Beyond(names ...string) bool {
	for name, texts := range f.Values {
		if !slices.Contains(append(f.own, names...), name) && strings.Join(texts, "") != "" {
			return true
		}
	}
	return slices.ContainsFunc(f.wrong, func(m service.FieldError) bool {
		return !slices.Contains(names, strings.TrimPrefix(m.Pointer, "/"))
	})
}

// ReadSelected reads a form about selected messages or batches, and their IDs.
func ReadSelected(w http.ResponseWriter, r *http.Request) (form *Form, ids []models.ID, err error) {
	if form, err = ReadForm(w, r, MaxForm); err != nil {
		return nil, nil, err
	}
	for _, text := range form.Values["id"] {
		id, err := models.ParseID(text)
		if err != nil {
			return nil, nil, ErrNoPage
		}
		ids = append(ids, id)
	}
	return form, ids, nil
}

// BackFrom returns the page of this site that a form was sent from.
func BackFrom(r *http.Request) string {
	if from, err := url.Parse(r.Referer()); err == nil && from.Host == r.Host {
		return LocalPath(from.RequestURI())
	}
	return "/batches"
}

// Submitted reports whether a form with this secret was submitted before, and records that it is now. A form without a
// secret counts as new.
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

// Lines normalises line ends to \n, and replaces NUL and invalid UTF-8. It is idempotent.
func Lines(s string) string {
	return strings.NewReplacer("\r\n", "\n", "\r", "\n", "\x00", "\ufffd").Replace(strings.ToValidUTF8(s, "\ufffd"))
}

// maxKept is the largest form in bytes that is kept when the session has ended. keptBytes bounds all such forms that
// are being read, because anybody may send one. An address has as much of it as one form needs.
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

// firstTime is how long a form without a session may take until it begins: a refusal does not wait for one that never
// comes.
const firstTime = 2 * time.Second

// hurry bounds the time until the body of a request begins. The server bounds the rest.
func hurry(w http.ResponseWriter, r *http.Request) {
	if r.Body != nil && r.Body != http.NoBody {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(firstTime)) // a recorder in a test has none
	}
}

// keepForm answers a form that came without a session: with the form, to send it again after a login.
func (f *Frame) keepForm(w http.ResponseWriter, r *http.Request) error {
	hurry(w, r)
	body := &keptBody{ReadCloser: http.MaxBytesReader(w, r.Body, maxKept), budget: &f.keeping,
		address: perclient.Address(r)}
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

// Question is the confirmation before an action: what the action does, to how many messages, and what cannot be undone.
type Question struct {
	Title string
	Text  []string
	Do    string // on the button
	Grave bool   // the action cannot be undone, or mail may arrive twice
	To    string // path that the form posts to
	Back  string
	Entry string // as that of a Page
	Once  string // idempotency key: a second press changes nothing

	IDs []string // of the selected entries

	Times  any // fields for the times of a batch; nil: there are none
	Status int // of the answer; 0: OK
}

// Ask shows a confirmation: in the page's dialog if htmx asked for it, else as a page of its own.
func (f *Frame) Ask(w http.ResponseWriter, r *http.Request, v *Visitor, q *Question) error {
	q.Once, q.To = NewSecret(), r.URL.EscapedPath()
	if list := r.URL.Query().Get("list"); list != "" { // of suppressions
		q.To += "?list=" + url.QueryEscape(list)
	}
	if r.Header.Get("Hx-Request") == "" {
		return f.Render(w, r, v, cmp.Or(q.Status, http.StatusOK), "ask", Page{Title: q.Title, Entry: q.Entry, Data: q})
	}
	ps, err := f.Parts("ask", q, "ask")
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = w.Write(ps["ask"]) // the browser may be gone
	return nil
}

// Action is a button for a command that can be given now.
type Action struct{ Do, Text string }
