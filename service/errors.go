package service

import "github.com/safedelivr/safedelivr/service/problem"

// The errors of the use cases are those of package problem. The entrances use these names.
type (
	// Kind is problem.Kind.
	Kind = problem.Kind
	// Error is problem.Error.
	Error = problem.Error
	// FieldError is problem.FieldError.
	FieldError = problem.FieldError
	// Mistakes is problem.Mistakes.
	Mistakes = problem.Mistakes
	// Form is problem.Form.
	Form = problem.Form
)

// The kinds of errors.
const (
	Internal     = problem.Internal
	Malformed    = problem.Malformed
	Unauthorized = problem.Unauthorized
	Forbidden    = problem.Forbidden
	NotFound     = problem.NotFound
	NotAllowed   = problem.NotAllowed
	Conflict     = problem.Conflict
	TooLarge     = problem.TooLarge
	TooMany      = problem.TooMany
	Unsupported  = problem.Unsupported
	Invalid      = problem.Invalid
	Unavailable  = problem.Unavailable
)

// Fail returns an Error. If there are args, detail is a format for them.
func Fail(kind Kind, code, detail string, args ...any) *Error {
	return problem.New(kind, code, detail, args...)
}

// Pointer returns the JSON pointer of a path of member names.
func Pointer(names ...string) string { return problem.Pointer(names...) }

// Quote returns s in quotes, for a detail. It cuts s after 60 characters.
func Quote(s string) string { return problem.Quote(s) }

// storeError returns the Error for an error of the store. doing says what failed.
func storeError(doing string, err error) error { return problem.FromStore(doing, err) }

// notFound returns the error for a thing of a user. It does not reveal whether the thing
// exists.
func notFound(what string) *Error { return problem.NotYours(what) }

// noSuch returns the error for a thing that does not exist and would have no owner.
func noSuch(what string) *Error { return problem.NoSuch(what) }
