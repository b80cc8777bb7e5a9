package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/gin-gonic/gin"

	"github.com/safedelivr/safedelivr/service"
)

// Problem is an error answer as RFC 9457 describes it. Code is stable and part
// of the API; Detail is for people.
type Problem struct {
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

// statuses gives every kind of error its HTTP status.
var statuses = map[service.Kind]int{
	service.Internal:     http.StatusInternalServerError,
	service.Malformed:    http.StatusBadRequest,
	service.Unauthorized: http.StatusUnauthorized,
	service.Forbidden:    http.StatusForbidden,
	service.NotFound:     http.StatusNotFound,
	service.NotAllowed:   http.StatusMethodNotAllowed,
	service.Conflict:     http.StatusConflict,
	service.TooLarge:     http.StatusRequestEntityTooLarge,
	service.Unsupported:  http.StatusUnsupportedMediaType,
	service.Invalid:      http.StatusUnprocessableEntity,
	service.Unavailable:  http.StatusServiceUnavailable,
}

const problemBase = "https://github.com/safedelivr/safedelivr/blob/main/docs/errors.md#"

// fail ends the request with an error. What went wrong inside is logged and not
// shown.
func (s *Server) fail(c *gin.Context, err error) {
	var e *service.Error
	if !errors.As(err, &e) {
		e = internal().Because(err)
	}
	if cause := e.Unwrap(); cause != nil && c.Request.Context().Err() == nil {
		s.log.Error("request failed", "code", e.Code, "err", cause, "request_id", requestID(c), "path", c.FullPath())
	}
	status := statuses[e.Kind]
	h := c.Writer.Header()
	h.Set("Content-Type", "application/problem+json")
	h.Set("Cache-Control", "no-store")
	if e.RetryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(e.RetryAfter))
	}
	if status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", `Bearer realm="safedelivr"`)
	}
	c.Writer.WriteHeader(status)
	enc := json.NewEncoder(c.Writer)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(
		Problem{Type: problemBase + e.Code, Title: http.StatusText(status), Status: status, Code: e.Code, Detail: e.Detail,
			RequestID: requestID(
				c,
			), BatchID: e.BatchID, Position: e.Position, Errors: e.Fields, Total: e.Total},
	) // the client may be gone
	c.Abort()
}

// answer ends the request with what a use case returned.
func answer[T any](s *Server, c *gin.Context, v T, err error) {
	if err != nil {
		s.fail(c, err)
		return
	}
	c.JSON(http.StatusOK, v)
}

func internal() *service.Error {
	return service.Fail(service.Internal, "internal", "Something went wrong here. The request id helps to find it.")
}

func bodyTooLarge(limit int64) error {
	return service.Fail(service.TooLarge, "body_too_large", "The request has more than %d bytes.", limit)
}

// valueTooLarge is the error of something that is far beyond what it may be.
func valueTooLarge(pointer string) *service.Error {
	e := service.Fail(service.TooLarge, "value_too_large", "A part of the request is far too large.")
	e.Fields = []service.FieldError{
		{
			Pointer: pointer,
			Code:    "too_long",
			Detail:  fmt.Sprintf("A recipient has at most %d bytes; names and space between values less.", maxRecipientJSON),
		},
	}
	return e
}
