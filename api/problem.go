package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/gin-gonic/gin"

	"github.com/safedelivr/safedelivr/api/dialect"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/problem"
)

// problemDetails is an error in an answer, as RFC 9457 describes it. Code is stable. Title and
// Detail are for people and may change.
type problemDetails struct {
	Type      string               `json:"type"`
	Title     string               `json:"title"`
	Status    int                  `json:"status"`
	Code      string               `json:"code"`
	Detail    string               `json:"detail,omitempty"`
	RequestID string               `json:"request_id,omitempty"`
	BatchID   string               `json:"batch_id,omitempty"`
	Position  *int64               `json:"position,omitempty"`
	Errors    []service.FieldError `json:"errors,omitempty"`
	Total     int                  `json:"errors_total,omitempty"`
}

const problemBase = "https://github.com/safedelivr/safedelivr/blob/main/docs/errors.md#"

// fail answers the request with an error. It logs the cause of the error.
func (s *Server) fail(c *gin.Context, err error) {
	var e *service.Error
	if !errors.As(err, &e) {
		e = internal().Because(err)
	}
	if cause := e.Unwrap(); cause != nil && c.Request.Context().Err() == nil {
		s.log.Error("request failed", "code", e.Code, "err", cause, "request_id", requestID(c), "path", c.FullPath())
	}
	c.Set(codeKey, e.Code)
	if v, ok := c.Get(dialectKey); ok {
		failIn(c, v.(*dialect.Dialect), e) //nolint:forcetypeassert // as it was set
	} else {
		writeProblem(c.Writer, e, requestID(c))
	}
	c.Abort()
}

// RefuseConnection answers a request of an address that has too many open.
func RefuseConnection(w http.ResponseWriter) {
	e := service.Fail(problem.TooMany, "too_many_connections", "Too many requests of this address are open.")
	e.RetryAfter = 1
	writeProblem(w, e, "")
}

// writeProblem answers a request with an error.
func writeProblem(w http.ResponseWriter, e *service.Error, requestID string) {
	status := e.Kind.Status()
	h := w.Header()
	h.Set("Content-Type", "application/problem+json")
	h.Set("Cache-Control", "no-store")
	if e.RetryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(e.RetryAfter))
	}
	if status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", `Bearer realm="safedelivr"`)
	}
	w.WriteHeader(status)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(problemDetails{ // the client may be gone
		Type:      problemBase + e.Code,
		Title:     http.StatusText(status),
		Status:    status,
		Code:      e.Code,
		Detail:    e.Detail,
		RequestID: requestID,
		BatchID:   e.BatchID,
		Position:  e.Position,
		Errors:    e.Fields,
		Total:     e.Total,
	})
}

// answer answers the request with the result of a use case.
func answer[T any](s *Server, c *gin.Context, v T, err error) {
	if err != nil {
		s.fail(c, err)
		return
	}
	c.JSON(http.StatusOK, v)
}

func internal() *service.Error {
	return service.Fail(service.Internal, "internal",
		"An internal error occurred. Report the request ID to the operator.")
}

func bodyTooLarge(limit int64) error {
	return service.Fail(service.TooLarge, "body_too_large", "The request is larger than %d bytes.", limit)
}

// valueTooLarge returns the error for a part of the request that exceeds its limit by far.
func valueTooLarge(pointer string) *service.Error {
	e := service.Fail(service.TooLarge, "value_too_large", "A part of the request is too large: see errors.")
	e.Fields = []service.FieldError{{
		Pointer: pointer,
		Code:    "too_long",
		Detail: fmt.Sprintf(
			"A recipient or a field may have at most %d bytes. Names and the space between values may have less.",
			maxRecipientJSON,
		),
	}}
	return e
}
