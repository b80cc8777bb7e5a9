package service

import (
	"errors"
	"fmt"
	"strings"

	"github.com/safedelivr/safedelivr/models"
)

// Kind is what an error means for who asked.
type Kind int

// The kinds of error.
const (
	Internal     Kind = iota // a bug
	Malformed                // the request cannot be read
	Unauthorized             // these credentials belong to no user
	Forbidden                // the caller is known and may not do this
	NotFound                 // there is no such thing, or it belongs to another user
	NotAllowed               // no such operation on this thing
	Conflict                 // something stands against it at present
	TooLarge                 // beyond a limit of this server
	Unsupported              // a form that is not taken
	Invalid                  // it was read, and cannot be accepted as it is
	Unavailable              // not now; come back after RetryAfter
)

// Error is an error that is shown. Code is stable; Detail is for people.
type Error struct {
	Kind       Kind
	Code       string
	Detail     string
	Fields     []FieldError
	Total      int    // all field errors, where more than Fields lists; else 0
	RetryAfter int    // seconds; 0: not said
	BatchID    string // of acceptance_unknown: what to ask for
	Position   *int64 // of bad_json: how many bytes are fine

	cause error
}

// FieldError is one mistake in a request. Pointer is a JSON pointer (RFC 6901).
type FieldError struct {
	Pointer string `json:"pointer"`
	Code    string `json:"code"`
	Detail  string `json:"detail"`
}

// Fail makes an error.
func Fail(kind Kind, code, detail string, args ...any) *Error {
	if len(args) > 0 {
		detail = fmt.Sprintf(detail, args...)
	}
	return &Error{Kind: kind, Code: code, Detail: detail}
}

// Error implements error; it is for logs and tells the cause, too.
func (e *Error) Error() string {
	if e.cause != nil {
		return e.Code + ": " + e.cause.Error()
	}
	return e.Code + ": " + e.Detail
}

// Unwrap returns what went wrong inside. It is not for users.
func (e *Error) Unwrap() error { return e.cause }

// After tells when to come back, in seconds.
func (e *Error) After(seconds int) *Error {
	e.RetryAfter = seconds
	return e
}

// Because keeps what went wrong inside.
func (e *Error) Because(cause error) *Error {
	e.cause = cause
	return e
}

// storeError says what an error of the store means for who asked.
func storeError(doing string, err error) error {
	if errors.Is(err, models.ErrNotFound) {
		return notFound("thing")
	}
	if errors.Is(err, models.ErrDamaged) {
		return Fail(
			Internal,
			"stored_value_damaged",
			"What is stored of it cannot be read. To repeat the request is of no use: tell the operator, with the request id.",
		).
			Because(
				fmt.Errorf("%s: %w", doing, err),
			)
	}
	return Fail(
		Unavailable,
		"store_unavailable",
		"The store cannot be reached. Nothing was changed; repeat the request.",
	).After(
		5,
	).
		Because(
			fmt.Errorf("%s: %w", doing, err),
		)
}

// notFound is the error of what belongs to somebody: whether it is there is not
// told to others.
func notFound(what string) *Error {
	return Fail(NotFound, "not_found", "There is no such %s, or it is not yours.", what)
}

// noSuch is the error of what belongs to nobody.
func noSuch(what string) *Error { return Fail(NotFound, "not_found", "There is no such %s.", what) }

// maxFieldErrors bounds how many mistakes one error lists.
const maxFieldErrors = 100

// Mistakes gathers everything that is wrong with a request.
type Mistakes struct {
	list  []FieldError
	total int
}

// Wrong notes a mistake.
func (m *Mistakes) Wrong(pointer, code, detail string, args ...any) {
	m.total++
	if len(m.list) < maxFieldErrors {
		m.list = append(m.list, FieldError{Pointer: pointer, Code: code, Detail: fmt.Sprintf(detail, args...)})
	}
}

// Found is how many there are.
func (m *Mistakes) Found() int { return m.total }

// in completes e with the mistakes, or returns nil where there are none.
func (m *Mistakes) in(e *Error) error {
	if m.total == 0 {
		return nil
	}
	e.Fields = m.list
	if m.total > len(m.list) {
		e.Total = m.total
	}
	return e
}

// Query gathers the mistakes in the parameters of a question.
type Query struct{ Mistakes }

// Bad notes a parameter that is not valid.
func (q *Query) Bad(name, detail string, args ...any) {
	q.Wrong(Pointer(name), "invalid_value", detail, args...)
}

// Err is the error that lists the mistakes, or nil.
func (q *Query) Err() error {
	return q.in(Fail(Malformed, "invalid_query", "The parameters of the request are not valid: see errors."))
}

// Form gathers the mistakes in a small request.
type Form struct{ Mistakes }

// Err is the error that lists the mistakes, or nil.
func (f *Form) Err() error {
	return f.in(Fail(Invalid, "invalid_request", "Nothing was changed: see errors."))
}

var pointerEscapes = strings.NewReplacer("~", "~0", "/", "~1")

// Pointer makes a JSON pointer of member names.
func Pointer(parts ...string) string {
	var b strings.Builder
	for _, p := range parts {
		b.WriteByte('/')
		if strings.ContainsAny(p, "~/") {
			p = pointerEscapes.Replace(p)
		}
		b.WriteString(p)
	}
	return b.String()
}
