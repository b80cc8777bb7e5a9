package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Error is an answer that is not a success: a problem as RFC 9457 describes it.
type Error struct {
	Status    int          `json:"status"`
	Code      string       `json:"code"` // Stable. docs/errors.md lists all codes.
	Type      string       `json:"type" format:"uri"`
	Title     string       `json:"title"`
	Detail    string       `json:"detail"` // For people. It may change.
	RequestID string       `json:"request_id"`
	BatchID   string       `json:"batch_id,omitempty"` // Of `acceptance_unknown`: the ID of the batch to look up.
	Position  int64        `json:"position,omitempty"` // Of `bad_json`: the number of bytes before the mistake.
	Fields    []FieldError `json:"errors,omitempty" max:"100"`
	// Number of all mistakes. Only present if `errors` does not list them all.
	FieldsTotal int `json:"errors_total,omitempty"`
	// RetryAfter is how long to wait before the request is repeated; zero if the server does not say.
	RetryAfter time.Duration `json:"-"`
	// Method and Path are those of the request.
	Method string `json:"-"`
	Path   string `json:"-"`
}

// FieldError is one mistake in a request.
type FieldError struct {
	// JSON pointer (RFC 6901) to the mistake in the request; the name of the field in a form or a query.
	Pointer string `json:"pointer"`
	Code    string `json:"code"`   // Stable. docs/errors.md lists all codes.
	Detail  string `json:"detail"` // For people. It may change.
}

// Error returns the request, the status and what is wrong, field by field.
func (e *Error) Error() string {
	var out strings.Builder
	fmt.Fprintf(&out, "%s %s: %d %s", e.Method, e.Path, e.Status, e.Code)
	if e.Code == "" {
		out.WriteString(http.StatusText(e.Status))
	}
	if e.Detail != "" {
		out.WriteString(": " + e.Detail)
	}
	for _, f := range e.Fields {
		out.WriteString("; " + f.Pointer + ": " + f.Detail)
	}
	if e.RequestID != "" {
		out.WriteString(" (request " + e.RequestID + ")")
	}
	return out.String()
}

// ErrorCode returns the Code of the [*Error] in err's tree, or "" if there is none.
func ErrorCode(err error) string {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	return ""
}

// Repeatable reports whether a request that ended with err may succeed if it is sent again: no answer arrived, the same
// request is still running, or the server answered 5xx. A request that changes something must have had an
// [IdempotencyKey], or it may be carried out twice.
func Repeatable(err error) bool {
	if err == nil {
		return false
	}
	e, ok := errors.AsType[*Error](err)
	return !ok || e.Code == "request_running" || e.Status >= http.StatusInternalServerError
}

// maxErrorText is how much is kept of an answer that is no problem, in bytes.
const maxErrorText = 1000

func readError(call *call, resp *http.Response) error {
	e := &Error{}
	raw, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20)) // what arrived of it is shown
	if json.Unmarshal(raw, e) != nil || e.Code == "" {
		e = &Error{Detail: strings.TrimSpace(string(raw[:min(len(raw), maxErrorText)]))}
	}
	e.Status, e.Method, e.Path = resp.StatusCode, call.method, call.path
	if e.RequestID == "" {
		e.RequestID = resp.Header.Get("X-Request-Id")
	}
	if seconds, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && seconds > 0 {
		e.RetryAfter = time.Duration(seconds) * time.Second
	}
	return e
}
