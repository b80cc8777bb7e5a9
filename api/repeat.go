package api

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"maps"
	"mime"
	"net/http"
	"slices"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/safedelivr/safedelivr/models/nearest"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/operation"
	"github.com/safedelivr/safedelivr/service/problem"
)

// repeatOf returns the key of the header Idempotency-Key and its route. The key is empty if
// the header is missing. The caller sets the hash.
func repeatOf(c *gin.Context) (service.Repeat, error) {
	values := c.Request.Header.Values("Idempotency-Key")
	if len(values) == 0 {
		return service.Repeat{}, nil
	}
	if len(values) > 1 || !validRepeatKey(values[0]) {
		return service.Repeat{}, service.Fail(service.Malformed, "invalid_idempotency_key",
			"Send one Idempotency-Key of 1 to 256 visible ASCII characters.")
	}
	return service.Repeat{Key: values[0], Route: c.Request.Method + " " + c.FullPath()}, nil
}

func validRepeatKey(s string) bool {
	for i := 0; i < len(s); i++ {
		if s[i] <= ' ' || s[i] > '~' {
			return false
		}
	}
	return len(s) >= 1 && len(s) <= 256 // as many as Resend takes
}

// markReplay marks the answer as that of an earlier request.
func markReplay(c *gin.Context, replayed bool) {
	if replayed {
		c.Header("Idempotency-Replayed", "true")
	}
}

// wrongEncoding is the error for a body that is compressed.
func wrongEncoding() error {
	return service.Fail(service.Unsupported, "wrong_encoding",
		"The body must not have a Content-Encoding. Send it uncompressed.")
}

// asJSON are the types of a body that may be JSON, by its first byte.
var asJSON = map[byte]string{'{': "application/json", '[': "application/json"}

// requireJSON returns an error if the body of the request is not declared as JSON. first is its first byte.
func requireJSON(c *gin.Context, first byte) error {
	if e := c.GetHeader("Content-Encoding"); e != "" && !strings.EqualFold(e, "identity") {
		return wrongEncoding()
	}
	if kind, _, err := mime.ParseMediaType(c.GetHeader("Content-Type")); err != nil || kind != "application/json" {
		if err := looksLikeJSON(first, asJSON); err != nil {
			return err
		}
		return service.Fail(service.Unsupported, "wrong_type", "The Content-Type of a command must be application/json.")
	}
	return nil
}

// setter is a field whose value is taken by a function, which reports mistakes in it. The value may be null.
type setter func(raw []byte, form *problem.Form)

// set decodes a value into a field. It returns false if the value has another type.
func set(field any, value []byte, form *problem.Form) bool {
	if f, ok := field.(setter); ok {
		f(value, form)
		return true
	}
	return operation.DecodeJSON(field, value)
}

// maxFieldsBody is the size in bytes of the largest request that is not a batch.
const maxFieldsBody = 64 << 10

// jsonSpace is the white space of JSON; bytes.TrimSpace trims more.
const jsonSpace = " \t\r\n"

// readFields decodes the JSON object in the body into fields, which maps names to pointers.
// An empty body of any type counts as an empty object. The hash of the returned Repeat
// includes the path and the query.
func (s *Server) readFields(c *gin.Context, fields map[string]any) (service.Repeat, error) {
	return s.readFieldsUpTo(c, fields, maxFieldsBody)
}

// readFieldsUpTo is readFields for a body of at most most bytes.
func (s *Server) readFieldsUpTo(c *gin.Context, fields map[string]any, most int64) (service.Repeat, error) {
	repeat, err := repeatOf(c)
	if err != nil {
		return repeat, err
	}
	raw, err := io.ReadAll(http.MaxBytesReader(c.Writer, c.Request.Body, most))
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		return repeat, bodyTooLarge(tooLarge.Limit)
	}
	about := c.Request.URL.Path + "\n" + c.Request.URL.Query().Encode() + "\n"
	sum := sha256.Sum256(append([]byte(about), raw...))
	repeat.Hash = hex.EncodeToString(sum[:])
	all := len(raw)
	raw = bytes.TrimPrefix(raw, []byte(byteOrderMark))
	raw = bytes.TrimLeft(raw, jsonSpace)
	before := all - len(raw)
	raw = bytes.TrimRight(raw, jsonSpace)
	if err == nil && len(raw) == 0 {
		return repeat, nil
	}
	first := byte(0)
	if len(raw) > 0 {
		first = raw[0]
	}
	if err := requireJSON(c, first); err != nil {
		return repeat, err
	}
	if err != nil {
		return repeat, badJSON(int64(all), errJSONEnds)
	}
	if err := checkJSON(raw, int64(before)); err != nil {
		return repeat, err
	}
	var form problem.Form
	if raw[0] != '{' {
		form.Wrong("", "wrong_type", "The body must be a JSON object.")
		return repeat, form.Err()
	}
	seen, known := map[string]bool{}, slices.Sorted(maps.Keys(fields))
	eachMember(raw, func(name string, value []byte) {
		at, field := problem.Pointer(name), fields[name]
		switch {
		case field == nil:
			form.Wrong(at, "unknown_field", "There is no field with this name.%s",
				nearest.Meant(name, known))
		case seen[name]:
			form.Wrong(at, "repeated", "%s is repeated.", name)
		case !validText(value):
			form.Wrong(at, "invalid_text", "%s is not valid Unicode text.", name)
		case set(field, value, &form):
		case value[0] == '"' && operation.KindOf(field) == operation.ATime:
			form.Wrong(at, "invalid_value", "%s must be %s.", name, operation.ATime)
		default:
			form.Wrong(at, "wrong_type", "%s must be %s.", name, operation.KindOf(field))
		}
		seen[name] = true
	})
	return repeat, form.Err()
}
