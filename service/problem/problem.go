// Package problem holds the errors that a user may see. The rooms of service return
// them, and the entrances turn them into answers and pages.
package problem

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/safedelivr/safedelivr/models"
)

// Kind classifies an error by what it means for the caller.
type Kind int

// The kinds of errors.
const (
	Internal     Kind = iota // a bug
	Malformed                // the request could not be read
	Unauthorized             // the credentials belong to no user
	Forbidden                // the caller is known but lacks permission
	NotFound                 // the thing does not exist or belongs to another user
	Gone                     // the thing is not kept any more
	NotAllowed               // the thing does not support this operation
	Conflict                 // the present state of the thing does not allow it
	TooLarge                 // a limit of this server is exceeded
	TooMany                  // the caller does this too often; retry after RetryAfter
	Unsupported              // the content type or encoding is not supported
	Invalid                  // the request was read, but its values are not valid
	Unavailable              // a service is down; retry after RetryAfter
)

// statuses maps the kinds of errors to HTTP status codes.
var statuses = map[Kind]int{
	Malformed:    http.StatusBadRequest,
	Unauthorized: http.StatusUnauthorized,
	Forbidden:    http.StatusForbidden,
	NotFound:     http.StatusNotFound,
	Gone:         http.StatusGone,
	NotAllowed:   http.StatusMethodNotAllowed,
	Conflict:     http.StatusConflict,
	TooLarge:     http.StatusRequestEntityTooLarge,
	TooMany:      http.StatusTooManyRequests,
	Unsupported:  http.StatusUnsupportedMediaType,
	Invalid:      http.StatusUnprocessableEntity,
	Unavailable:  http.StatusServiceUnavailable,
}

// Status returns the HTTP status code of the kind.
func (k Kind) Status() int {
	if status, ok := statuses[k]; ok {
		return status
	}
	return http.StatusInternalServerError
}

// Error is an error for users. Code is stable. Detail is for people and may change.
type Error struct {
	Kind       Kind
	Code       string
	Detail     string
	Fields     []FieldError
	Total      int    // number of all field errors if Fields does not hold them all; otherwise 0
	RetryAfter int    // in seconds; 0 if unknown
	BatchID    string // the batch to look up after acceptance_unknown
	Position   *int64 // number of valid bytes before bad_json

	cause error
}

// FieldError is one mistake in a request. Pointer is a JSON pointer (RFC 6901).
type FieldError struct {
	Pointer string `json:"pointer"`
	Code    string `json:"code"`
	Detail  string `json:"detail"`
}

// New returns an Error. If there are args, detail is a format for them.
func New(kind Kind, code, detail string, args ...any) *Error {
	if len(args) > 0 {
		detail = fmt.Sprintf(detail, args...)
	}
	return &Error{Kind: kind, Code: code, Detail: detail}
}

// Error implements error. The text is for logs: it contains the cause.
func (e *Error) Error() string {
	if e.cause != nil {
		return e.Code + ": " + e.cause.Error()
	}
	return e.Code + ": " + e.Detail
}

// Unwrap returns the cause. It is for logs, not for users.
func (e *Error) Unwrap() error { return e.cause }

// After sets the seconds until a retry makes sense, and returns e.
func (e *Error) After(seconds int) *Error {
	e.RetryAfter = seconds
	return e
}

// Because sets the cause and returns e.
func (e *Error) Because(cause error) *Error {
	e.cause = cause
	return e
}

// FromStore returns the Error for an error of the store; nil and an Error stay as they are. doing says what failed, for
// the log.
func FromStore(doing string, err error) error {
	var e *Error
	if err == nil || errors.As(err, &e) {
		return err
	}
	cause := fmt.Errorf("%s: %w", doing, err)
	switch {
	case errors.Is(err, models.ErrNotFound):
		return NotYours("thing")
	case errors.Is(err, models.ErrNewer):
		return New(Unavailable, "stored_by_newer_version",
			"A newer version of Safedelivr stored the data, and this server has not been upgraded. Repeat the request.",
		).After(5).Because(cause)
	case errors.Is(err, models.ErrConflict):
		return New(Unavailable, "changed_meanwhile",
			"Others change the same thing all the time. Repeat the request.").After(1).Because(cause)
	case errors.Is(err, models.ErrDamaged):
		return New(Internal, "stored_value_damaged",
			"The stored data cannot be read, and a retry does not help. Report the request ID to the operator.",
		).Because(cause)
	}
	return New(Unavailable, "store_unavailable",
		"The store cannot be reached. Nothing was changed; repeat the request.").After(5).Because(cause)
}

// About returns a function that returns the Error for an error of the store about a thing of a user, as FromStore does.
func About(what string) func(doing string, err error) error {
	return func(doing string, err error) error {
		if errors.Is(err, models.ErrNotFound) {
			return NotYours(what)
		}
		return FromStore(doing+" "+what, err)
	}
}

// IsNotFound reports whether an error is one of NotYours or NoSuch.
func IsNotFound(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Kind == NotFound
}

// NotYours returns the error for a thing of a user. It does not reveal whether the thing exists.
func NotYours(what string) *Error {
	return New(NotFound, "not_found", "There is no such %s, or it belongs to another user.", what)
}

// NoSuch returns the error for a thing that does not exist and would have no owner.
func NoSuch(what string) *Error { return New(NotFound, "not_found", "There is no such %s.", what) }

// maxFieldErrors is the number of mistakes that one error lists.
const maxFieldErrors = 100

// Mistakes collects the mistakes in a request.
type Mistakes struct {
	list  []FieldError
	total int
}

// Wrong adds a mistake. detail is a format for args.
func (m *Mistakes) Wrong(pointer, code, detail string, args ...any) {
	if m.Full() {
		m.Skip(1)
		return
	}
	m.add(FieldError{Pointer: pointer, Code: code, Detail: fmt.Sprintf(detail, args...)})
}

func (m *Mistakes) add(f FieldError) {
	m.total++
	if !m.Full() {
		m.list = append(m.list, f)
	}
}

// Add adds the mistakes of another list, and replaces the beginning of their pointers.
func (m *Mistakes) Add(other *Mistakes, from, to string) {
	for _, f := range other.list {
		if rest, ok := strings.CutPrefix(f.Pointer, from); ok {
			f.Pointer = to + rest
		}
		m.add(f)
	}
	m.Skip(other.total - len(other.list))
}

// Skip counts n mistakes that are not listed.
func (m *Mistakes) Skip(n int) { m.total += n }

// Full reports whether further mistakes are only counted.
func (m *Mistakes) Full() bool { return len(m.list) == maxFieldErrors }

// Found returns the number of mistakes.
func (m *Mistakes) Found() int { return m.total }

// At reports whether a listed mistake is at a pointer.
func (m *Mistakes) At(pointer string) bool {
	return slices.ContainsFunc(m.list, func(f FieldError) bool { return f.Pointer == pointer })
}

// In adds the mistakes to e and returns it, or returns nil if there are none.
func (m *Mistakes) In(e *Error) error {
	if m.total == 0 {
		return nil
	}
	e.Fields = m.list
	if m.total > len(m.list) {
		e.Total = m.total
	}
	return e
}

// Form collects the mistakes in a request that is not a batch.
type Form struct{ Mistakes }

// Err returns the error that lists the mistakes, or nil if there are none.
func (f *Form) Err() error {
	return f.In(New(Invalid, "invalid_request", "The request is not valid; nothing was changed. See errors."))
}

var pointerEscapes = strings.NewReplacer("~", "~0", "/", "~1")

// maxPointerName is the length in bytes of the longest name that a pointer holds whole.
const maxPointerName = 256

// Pointer returns the JSON pointer of a path of member names. It cuts longer names than any valid one.
func Pointer(names ...string) string {
	var b strings.Builder
	for _, name := range names {
		b.WriteByte('/')
		if len(name) > maxPointerName {
			name = strings.ToValidUTF8(name[:maxPointerName], "") + "…"
		}
		if strings.ContainsAny(name, "~/") {
			name = pointerEscapes.Replace(name)
		}
		b.WriteString(name)
	}
	return b.String()
}

// Quote returns s in quotes, for a detail. It cuts s after 60 characters.
func Quote(s string) string {
	n := 0
	for i := range s {
		if n++; n > 60 {
			s = s[:i] + "…"
			break
		}
	}
	return strconv.Quote(s)
}
