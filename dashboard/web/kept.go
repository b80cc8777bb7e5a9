package web

import (
	"errors"
	"io"
	"net/http"
	"net/netip"
	"net/url"

	"golang.org/x/sync/semaphore"

	"github.com/safedelivr/safedelivr/internal/perclient"
)

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
