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
	// Status is the HTTP status.
	Status int `json:"status"`
	// Code says what is wrong, in one stable word. It is empty if the answer is not from Safedelivr, for example from a
	// proxy before it. All codes are in docs/errors.md.
	Code string `json:"code"`
	// Type is the address of the code's description.
	Type  string `json:"type"`
	Title string `json:"title"`
	// Detail says what is wrong, for people. It may change.
	Detail string `json:"detail"`
	// RequestID names the request in the server's log.
	RequestID string `json:"request_id"`
	// BatchID is the batch to ask for if Code is acceptance_unknown.
	BatchID string `json:"batch_id"`
	// Position is the number of bytes that are correct if Code is bad_json.
	Position int64 `json:"position"`
	// Fields are the mistakes in the request, at most the first hundred of them.
	Fields []FieldError `json:"errors"`
	// FieldsTotal counts all mistakes if Fields lists only the first ones.
	FieldsTotal int `json:"errors_total"`

	// RetryAfter is how long to wait before the request is repeated; zero if the server does not say.
	RetryAfter time.Duration `json:"-"`
	// Method and Path are those of the request.
	Method string `json:"-"`
	Path   string `json:"-"`
}

// FieldError is one mistake in a request.
type FieldError struct {
	// Pointer is a JSON pointer (RFC 6901) into the request, or the name of a query parameter.
	Pointer string `json:"pointer"`
	Code    string `json:"code"`
	Detail  string `json:"detail"`
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
