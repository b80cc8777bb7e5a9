package api

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/safedelivr/safedelivr/service"
)

// repeatOf reads the header Idempotency-Key; a request without one has an empty
// key. The hash is left to be filled.
func repeatOf(c *gin.Context) (service.Repeat, error) {
	values := c.Request.Header.Values("Idempotency-Key")
	if len(values) == 0 {
		return service.Repeat{}, nil
	}
	if len(values) > 1 || !validRepeatKey(values[0]) {
		return service.Repeat{}, service.Fail(
			service.Malformed,
			"invalid_idempotency_key",
			"An Idempotency-Key is 1 to 255 visible ASCII characters.",
		)
	}
	return service.Repeat{Key: values[0], Route: c.Request.Method + " " + c.FullPath()}, nil
}

func validRepeatKey(s string) bool {
	for i := 0; i < len(s); i++ {
		if s[i] <= ' ' || s[i] > '~' {
			return false
		}
	}
	return len(s) >= 1 && len(s) <= 255
}

// markReplay tells that this is the answer to an earlier request.
func markReplay(c *gin.Context, replayed bool) {
	if replayed {
		c.Header("Idempotency-Replayed", "true")
	}
}

const aTime = "a time by RFC 3339, with its zone: 2026-01-31T12:00:00Z"

// kindOf says what a field of a small request is.
func kindOf(field any) string {
	switch field.(type) {
	case *bool:
		return "true or false"
	case *time.Time:
		return aTime
	}
	return "a string"
}

// maxSmallBody bounds a request that is no batch.
const maxSmallBody = 64 << 10

// small reads a JSON object whose members go into fields: pointers, by name. No
// body at all is an empty object. The hash covers the path, too.
func (s *Server) small(c *gin.Context, fields map[string]any) (service.Repeat, error) {
	repeat, err := repeatOf(c)
	if err != nil {
		return repeat, err
	}
	raw, err := io.ReadAll(http.MaxBytesReader(c.Writer, c.Request.Body, maxSmallBody))
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		return repeat, bodyTooLarge(tooLarge.Limit)
	}
	sum := sha256.Sum256(append([]byte(c.Request.URL.Path+"\n"), raw...))
	repeat.Hash = hex.EncodeToString(sum[:])
	raw = bytes.TrimSpace(raw)
	if err == nil && len(raw) == 0 {
		return repeat, nil
	}
	if err != nil || !json.Valid(raw) || raw[0] != '{' {
		return repeat, service.Fail(service.Malformed, "bad_json", "The request is not a JSON object.")
	}
	var form service.Form
	seen := map[string]bool{}
	eachMember(raw, func(name string, value []byte) {
		at, field := service.Pointer(name), fields[name]
		switch {
		case field == nil:
			form.Wrong(at, "unknown_field", "There is no such field.")
		case seen[name]:
			form.Wrong(at, "repeated", "%s is given twice.", name)
		case json.Unmarshal(value, field) == nil:
		case value[0] == '"' && kindOf(field) == aTime:
			form.Wrong(at, "invalid_value", "%s is %s.", name, aTime)
		default:
			form.Wrong(at, "wrong_type", "%s is %s.", name, kindOf(field))
		}
		seen[name] = true
	})
	return repeat, form.Err()
}
