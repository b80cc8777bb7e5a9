// Package dialect has what the APIs of other services, which applications already speak, have in common. Each one is a
// Dialect, in a folder of its own. It reads requests into a service/intake.Intake, so that mail has the same checks,
// limits and certainty as by the product's own API. It answers in its own shape, also with errors.
package dialect

import (
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/intake"
	"github.com/safedelivr/safedelivr/service/problem"
)

// Dialect is the API of another service.
type Dialect struct {
	Name   string
	Prefix []string // of its paths, without a slash at the end; an unknown path below is answered in its shape
	Routes []Route
	// Fail returns the status and the body of the answer to a request that failed.
	Fail func(e *problem.Error) (status int, body any)
}

// Route is a call of a dialect.
type Route struct {
	Method string
	Path   string // with parameters as :name
	Scope  models.Scope
	Handle func(r *Request) (Answer, error)
}

// Request is a request whose caller is known.
type Request struct {
	*http.Request // its body is bounded

	Service *service.Service
	Who     service.Caller
	Param   func(name string) string // of the path
	Repeat  service.Repeat           // its key is empty if the client gave none
	Replays *Replays
	Ignored []string // names of fields that change nothing here, which the answer lists

	first *intake.Intake          // nil: none was needed
	trial *service.Trial          // nil: nothing was only checked
	bytes int                     // of its JSON, without what is in spool
	spool *intake.Spooled         // contents of attachments, one behind the other; nil: all are in memory
	large map[string]*intake.Part // of spool, by the names that ReadJSON put in their place
}

// Answer is the answer to a request that succeeded.
type Answer struct {
	Status int // 0: 200
	Body   any
	Batch  models.ID // that the request created, for the request log
	Header http.Header
}

// IgnoredField is the header field of answers with the fields of a request that were ignored.
const IgnoredField = "Safedelivr-Ignored"

const maxIgnored = 20 // names that an answer lists

// Ignore notes which of some names of a request's fields are not known.
func (r *Request) Ignore(names []string, known func(name string) bool) {
	for _, name := range names {
		name = models.OneLine(name)
		if len(r.Ignored) < maxIgnored && len(name) <= 64 && !known(name) && !slices.Contains(r.Ignored, name) {
			r.Ignored = append(r.Ignored, name)
		}
	}
}

// Among returns a function that reports whether a name is one of some words.
func Among(words string) func(name string) bool {
	list := strings.Fields(words)
	return func(name string) bool { return slices.Contains(list, name) }
}

// Owns returns the length of the prefix by which the dialect answers a path; 0: it does not.
func (d *Dialect) Owns(path string) int {
	longest := 0
	for _, prefix := range d.Prefix {
		if path == prefix || strings.HasPrefix(path, prefix+"/") {
			longest = max(longest, len(prefix))
		}
	}
	return longest
}

// Clean returns a path without repeated slashes and without one at its end: clients join base URL and path by text.
func Clean(path string) string {
	for strings.Contains(path, "//") {
		path = strings.ReplaceAll(path, "//", "/")
	}
	if len(path) > 1 {
		path = strings.TrimSuffix(path, "/")
	}
	return path
}

// Secret returns the API key of a request, by any of the ways in which clients send it: as the password of any user, as
// a bearer token, or as the token of a server. It is empty if there is none.
func Secret(r *http.Request) string {
	if _, password, ok := r.BasicAuth(); ok {
		return password
	}
	if scheme, secret, ok := strings.Cut(r.Header.Get("Authorization"), " "); ok && strings.EqualFold(scheme, "Bearer") {
		return strings.TrimSpace(secret)
	}
	return strings.TrimSpace(r.Header.Get("X-Postmark-Server-Token"))
}

// Origin returns the URL of the server as the client knows it.
func Origin(r *http.Request) *url.URL {
	u := &url.URL{Scheme: "http", Host: r.Host}
	if r.TLS != nil || strings.EqualFold(r.Header.Get("X-Forwarded-Proto"), "https") {
		u.Scheme = "https"
	}
	return u
}
