package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/safedelivr/safedelivr/models"
)

// Problem is an error answer as RFC 9457 describes it. Code is stable and part
// of the API; Detail is for people.
type Problem struct {
	Type      string       `json:"type"`
	Title     string       `json:"title"`
	Status    int          `json:"status"`
	Code      string       `json:"code"`
	Detail    string       `json:"detail,omitempty"`
	RequestID string       `json:"request_id,omitempty"`
	BatchID   string       `json:"batch_id,omitempty"` // of acceptance_unknown: what to ask for
	Position  *int64       `json:"position,omitempty"` // of bad_json: how many bytes are fine
	Errors    []FieldError `json:"errors,omitempty"`
	Total     int          `json:"errors_total,omitempty"` // all field errors, where more than Errors lists

	retryAfter int   // seconds
	cause      error // for our log alone
}

// FieldError is one mistake in a request. Pointer is a JSON pointer (RFC 6901).
type FieldError struct {
	Pointer string `json:"pointer"`
	Code    string `json:"code"`
	Detail  string `json:"detail"`
}

// maxFieldErrors bounds how many mistakes one answer lists.
const maxFieldErrors = 100

// mistakes gathers everything that is wrong with a request.
type mistakes struct {
	errors []FieldError
	total  int
}

func (m *mistakes) wrong(pointer, code, detail string, args ...any) {
	m.total++
	if len(m.errors) < maxFieldErrors {
		m.errors = append(m.errors, FieldError{Pointer: pointer, Code: code, Detail: fmt.Sprintf(detail, args...)})
	}
}

// list is the answer that lists the mistakes, or nil where there are none.
func (m *mistakes) list(status int, code, detail string) *Problem {
	if m.total == 0 {
		return nil
	}
	p := problem(status, code, detail)
	p.Errors = m.errors
	if m.total > len(m.errors) {
		p.Total = m.total
	}
	return p
}

// problem is the answer to everything that was found wrong with a batch.
func (in *intake) problem() *Problem {
	return in.list(http.StatusUnprocessableEntity, "invalid_request", "The batch was not accepted and nothing was stored: see errors.")
}

var pointerEscapes = strings.NewReplacer("~", "~0", "/", "~1")

// pointer makes a JSON pointer of member names.
func pointer(parts ...string) string {
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

func bodyTooLarge(limit int64) *Problem {
	return problem(http.StatusRequestEntityTooLarge, "body_too_large", "The request has more than %d bytes.", limit)
}

func (in *intake) contentTooLarge() *Problem {
	return problem(http.StatusRequestEntityTooLarge, "content_too_large", "Subject, text, HTML and the other fields but to have at most %d bytes together.", in.cfg.MaxContent)
}

// valueTooLarge is the answer to something that is far beyond what it may be.
func valueTooLarge(pointer string) *Problem {
	p := problem(http.StatusRequestEntityTooLarge, "value_too_large", "A part of the request is far too large.")
	p.Errors = []FieldError{{Pointer: pointer, Code: "too_long", Detail: fmt.Sprintf("A recipient has at most %d bytes; names and space between values less.", maxRecipientJSON)}}
	return p
}

const problemBase = "https://github.com/safedelivr/safedelivr/blob/main/docs/errors.md#"

func problem(status int, code, detail string, args ...any) *Problem {
	if len(args) > 0 {
		detail = fmt.Sprintf(detail, args...)
	}
	return &Problem{Type: problemBase + code, Title: http.StatusText(status), Status: status, Code: code, Detail: detail}
}

func (p *Problem) after(seconds int) *Problem {
	p.retryAfter = seconds
	return p
}

// write ends the request with the problem.
func (p *Problem) write(c *gin.Context) {
	p.RequestID = requestID(c)
	h := c.Writer.Header()
	h.Set("Content-Type", "application/problem+json")
	h.Set("Cache-Control", "no-store")
	if p.retryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(p.retryAfter))
	}
	if p.Status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", `Bearer realm="safedelivr"`)
	}
	c.Writer.WriteHeader(p.Status)
	e := json.NewEncoder(c.Writer)
	e.SetEscapeHTML(false)
	_ = e.Encode(p) // the client may be gone
	c.Abort()
}

// storeProblem says what an error of the store means for the client. The error
// itself is logged and not shown.
func (s *Server) storeProblem(c *gin.Context, doing string, err error) *Problem {
	if errors.Is(err, models.ErrNotFound) {
		return problem(http.StatusNotFound, "not_found", "There is no such thing, or it is not yours.")
	}
	if c.Request.Context().Err() == nil {
		s.log.Error("store failed", "doing", doing, "err", err, "request_id", requestID(c))
	}
	return problem(http.StatusServiceUnavailable, "store_unavailable", "The store cannot be reached. Nothing was changed; repeat the request.").after(5)
}
