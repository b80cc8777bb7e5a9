package operation

import (
	"bytes"
	"encoding/json"
	"reflect"
	"time"
)

// ATime is what KindOf says of a time.
const ATime = "an RFC 3339 time with a zone, like 2026-01-31T12:00:00Z"

// KindOf describes the type of a field, to which field points.
func KindOf(field any) string {
	switch field.(type) {
	case *bool:
		return "true or false"
	case *time.Time:
		return ATime
	case **int64, *int:
		return "a whole number"
	case *json.RawMessage:
		return "an object"
	}
	switch t := reflect.TypeOf(field).Elem(); t.Kind() {
	case reflect.Slice:
		return "a list of strings"
	case reflect.Map:
		switch t.Elem().Kind() {
		case reflect.String:
			return "an object of strings"
		case reflect.Struct:
			return "an object of objects"
		default:
			return "an object"
		}
	default:
		return "a string"
	}
}

// DecodeJSON decodes a value into a field, to which field points. It returns false if the value has another type.
func DecodeJSON(field any, value []byte) bool {
	d := json.NewDecoder(bytes.NewReader(value))
	d.DisallowUnknownFields()
	return string(value) != "null" && d.Decode(field) == nil
}
