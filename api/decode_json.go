package api

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/nearest"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/intake"
	"github.com/safedelivr/safedelivr/service/problem"
)

// Limits of the parts of a JSON request, in bytes.
const (
	maxRecipientJSON = 1 << 20  // of one recipient, or of a member that is not text
	maxBetween       = 64 << 10 // of a member's name with the space around it
	maxEscape        = 6        // of one escaped byte, like \u0041
)

// maxDepth is how deep values may be nested: as deep as encoding/json reads them.
const maxDepth = 10_000

// jsonReader is a decoder with bounded memory. A json.Decoder buffers whole values, so jsonReader limits how far it may
// read for the next value.
type jsonReader struct {
	*json.Decoder
	source    *source
	before    int64 // bytes of the body before those of the decoder
	read, max int64
	tooLarge  func() *service.Error // returns the error after max bytes
}

func newJSONReader(body io.Reader) *jsonReader {
	j := &jsonReader{source: &source{body: withoutMark(body)}}
	j.Decoder = json.NewDecoder(j)
	return j
}

// position returns the position in the body of a byte of the decoder.
func (j *jsonReader) position(at int64) int64 { return j.before + at }

var errValueTooLarge = errors.New("value too large")

// Read implements io.Reader for the decoder.
func (j *jsonReader) Read(p []byte) (int, error) {
	left := j.max - j.read
	if left <= 0 {
		return 0, errValueTooLarge
	}
	n, err := j.source.Read(p[:min(int64(len(p)), left)])
	j.read += int64(n)
	return n, err
}

// allow sets the limit of the next value to n bytes.
func (j *jsonReader) allow(n int64, tooLarge func() *service.Error) {
	j.max, j.tooLarge = j.InputOffset()+n, tooLarge
}

// readJSON decodes a request member by member. Memory does not grow with the number of recipients, wherever in the
// request they are.
func (d *decoder) readJSON(body io.Reader) error {
	return d.read(func() error { return d.json(body) })
}

func (d *decoder) json(body io.Reader) error {
	j := newJSONReader(body)
	if err := d.readObject(j); err != nil {
		return err
	}
	j.allow(maxBetween, somewhere)
	if _, err := j.Token(); !errors.Is(err, io.EOF) {
		if err == nil {
			err = errors.New("there is data after the end of the object")
		}
		return j.jsonError(err)
	}
	return nil
}

// valueAt returns the function for the error about a value that is too large.
func valueAt(pointer string) func() *service.Error {
	return func() *service.Error { return valueTooLarge(pointer) }
}

// somewhere is valueAt for a value without a pointer.
var somewhere = valueAt("")

func (d *decoder) readObject(j *jsonReader) error {
	j.allow(maxBetween, somewhere)
	t, err := j.Token()
	if err != nil {
		return j.jsonError(err)
	}
	if t != json.Delim('{') {
		d.Wrong("", "wrong_type", "The request must be a JSON object.")
		return d.Err()
	}
	for j.more(maxBetween, somewhere) {
		t, err := j.Token()
		if err != nil {
			return j.jsonError(err)
		}
		name, _ := t.(string) // the name of a member is always a string
		if d.again(name) {
			return j.jsonError(errors.New("the member " + problem.Quote(name) + " is repeated"))
		}
		if err := d.readMember(j, name); err != nil {
			return err
		}
	}
	if _, err := j.Token(); err != nil {
		return j.jsonError(err)
	}
	return nil
}

// more reports whether the object or list has another member, which may have n bytes.
func (j *jsonReader) more(n int64, tooLarge func() *service.Error) bool {
	j.allow(n, tooLarge)
	return j.More()
}

func (d *decoder) readMember(j *jsonReader, name string) error {
	switch name {
	case "to":
		return d.readRecipients(j)
	case "attachments":
		return d.readAttachments(j)
	}
	if field, _ := d.Batch.Field(name); isText(field) {
		j.allow(maxBetween+maxEscape*d.ContentLeft(), d.ContentTooLarge)
	} else {
		j.allow(maxRecipientJSON, valueAt(problem.Pointer(name)))
	}
	var raw json.RawMessage
	if err := j.Decode(&raw); err != nil {
		return j.jsonError(err)
	}
	return d.member(name, raw)
}

// isText reports whether a field holds a text.
func isText(field any) bool { _, ok := field.(*string); return ok }

// member decodes a field of the batch. It reports mistakes; an error is that of content that is too long.
func (d *decoder) member(name string, raw []byte) error {
	here := problem.Pointer(name)
	value, field := d.Batch.Field(name)
	if raw[0] == 'n' && field != nil { // null counts as absent
		return nil
	}
	switch into := value.(type) {
	case *string:
		switch {
		case name == intake.Template && raw[0] == '{':
			*into = d.jsonTemplate(raw)
		case jsonText(d, here, name, raw, field.Filled, into):
			return d.AddContent(len(*into))
		default:
			d.Unreadable(name)
		}
	case *[]string:
		if name == replyTo && string(raw) == `""` { // counts as absent
			return nil
		}
		if d.Batch.OneText = name == replyTo && raw[0] == '"'; d.Batch.OneText {
			raw = slices.Concat([]byte("["), raw, []byte("]"))
		}
		d.jsonList(name, raw, into, field.Most())
	case *[]models.Header, *map[string]string:
		d.jsonObject(name, raw, into)
		return d.AddContent(len(raw))
	case **intake.Window:
		*into = jsonWindow(d, here, raw)
	case *bool, **bool:
		if json.Unmarshal(raw, into) != nil {
			d.Wrong("/"+name, "wrong_type", "%s must be true or false.", name)
		}
	default:
		d.unknown(name)
	}
	return nil
}

// replyTo is the list that may be one text.
const replyTo = "reply_to"

// unknown reports that there is no field with a name.
func (d *decoder) unknown(name string) {
	if d.Full() { // such mistakes may be many
		d.Skip(1)
		return
	}
	d.Wrong(problem.Pointer(name), "unknown_field", "There is no field with this name.%s",
		nearest.Meant(name, d.names))
}

// jsonTemplate returns the reference of a template that is given as {name, version}.
func (d *decoder) jsonTemplate(raw []byte) string {
	var name, version string
	eachMember(raw, func(member string, value []byte) {
		at := "/" + intake.Template + problem.Pointer(member)
		switch {
		case member == "name" && value[0] == '"':
			name = unquote(value)
		case member == "version" && value[0] >= '0' && value[0] <= '9':
			version = "@" + string(value)
		case string(value) == `"latest"` && member == "version":
		case member == "name" || member == "version":
			d.Wrong(at, "wrong_type", "template is {name, version} with a string and a whole number.")
		default:
			d.Wrong(at, "unknown_field", "A template has only the fields name and version.")
		}
	})
	return name + version
}

// jsonList decodes the first elements of a list of strings. One that cannot be read is empty.
func (d *decoder) jsonList(name string, raw []byte, into *[]string, most int) {
	if raw[0] != '[' {
		d.Unreadable(name)
		d.Wrong("/"+name, "wrong_type", "%s must be a list of strings.", name)
		return
	}
	*into = []string{}
	for i, p := range elements(raw) {
		if i == most {
			return
		}
		at, text := "/"+name, ""
		if !d.Batch.OneText || name != replyTo {
			at += "/" + strconv.Itoa(i)
		}
		switch {
		case p[0] != '"':
			d.Unreadable(name)
			d.Wrong(at, "wrong_type", "%s must be a list of strings.", name)
		case !validText(p):
			d.Unreadable(name)
			d.Wrong(at, "invalid_text", "The text is not valid Unicode.")
		default:
			text = unquote(p)
		}
		*into = append(*into, text)
	}
}

// jsonObject decodes header fields or metadata.
func (d *decoder) jsonObject(name string, raw []byte, into any) {
	switch {
	case raw[0] != '{':
		d.Wrong("/"+name, "wrong_type", "%s must be an object.", name)
	case !validText(raw):
		d.Wrong("/"+name, "invalid_text", "%s is not valid Unicode text.", name)
	case name == "headers":
		*into.(*[]models.Header) = d.jsonHeaders("/headers", raw) //nolint:forcetypeassert // that of the field
	default:
		*into.(*map[string]string) = d.jsonValues("/metadata", "A value of metadata", raw, nil) //nolint:forcetypeassert // as above
	}
}

// jsonHeaders returns the first header fields.
func (d *decoder) jsonHeaders(here string, raw []byte) (headers []models.Header) {
	eachMember(raw, func(name string, value []byte) {
		switch {
		case len(headers) > intake.MaxHeaders:
		case value[0] != '"':
			d.Wrong(here+problem.Pointer(name), "wrong_type", "The value of a header field must be a string.")
		default:
			headers = append(headers, models.Header{Name: name, Value: unquote(value)})
		}
	})
	return headers
}

func (d *decoder) readRecipients(j *jsonReader) error {
	j.allow(maxRecipientJSON, valueAt("/to"))
	t, err := j.Token()
	if err != nil {
		return j.jsonError(err)
	}
	if t != json.Delim('[') {
		if t != nil { // null counts as absent
			d.Unreadable("to")
			d.Wrong("/to", "wrong_type", "to must be a list of addresses or of objects {email, name, vars, metadata, headers}.")
		}
		return skipObject(j, t, "/to")
	}
	var raw json.RawMessage
	tooLarge := func() *service.Error { return valueTooLarge("/to/" + strconv.Itoa(d.Count())) }
	for j.more(maxRecipientJSON, tooLarge) {
		if err := j.Decode(&raw); err != nil {
			return j.jsonError(err)
		}
		if err := d.add(d.jsonRecipient(raw)); err != nil {
			return err
		}
	}
	if _, err := j.Token(); err != nil {
		return j.jsonError(err)
	}
	return nil
}

// skipObject skips the object or list at a pointer that begins with t. If t is another value, there is nothing to skip.
func skipObject(j *jsonReader, t json.Token, at string) error {
	for depth := 0; ; {
		switch t {
		case json.Delim('{'), json.Delim('['):
			depth++
		case json.Delim('}'), json.Delim(']'):
			depth--
		}
		if depth == 0 {
			return nil
		}
		if depth > maxDepth {
			return j.jsonError(errors.New("the value is nested too deeply"))
		}
		j.allow(maxRecipientJSON, valueAt(at))
		var err error
		if t, err = j.Token(); err != nil {
			return j.jsonError(err)
		}
	}
}

// jsonRecipient decodes a recipient: an address or an object {email, name, vars, metadata, headers}. It reports every
// mistake in it. The recipient is valid until the next one is decoded.
func (d *decoder) jsonRecipient(raw []byte) *intake.Recipient {
	here, before := "/to/"+strconv.Itoa(d.Count()), d.Found()
	d.recipient = intake.Recipient{}
	r := &d.recipient
	switch {
	case !validText(raw):
		d.Wrong(here, "invalid_text", "The recipient is not valid Unicode text.")
	case raw[0] == '"':
		r.Email = unquote(raw)
	case raw[0] == '{':
		r.Pointer = "/email"
		d.recipientMembers(here, raw, r)
	default:
		d.Wrong(here, "wrong_type", "A recipient must be an address or an object {email, name, vars, metadata, headers}.")
	}
	r.Flawed = d.Found() > before
	return r
}

// recipientMembers decodes the members of a recipient that is an object.
func (d *decoder) recipientMembers(here string, object []byte, r *intake.Recipient) {
	var space [8]string
	given := space[:0]
	eachMember(object, func(name string, value []byte) {
		if slices.Contains(given, name) {
			d.Wrong(here+problem.Pointer(name), "repeated", "%s is repeated.", problem.Quote(name))
		}
		switch {
		case d.recipientMember(here, name, value, r):
		case isTime(name):
			if value[0] != 'n' { // null counts as absent
				jsonTime(d, here+"/"+name, name, value, &r.Times)
			}
		case name != "email":
			d.Wrong(here+problem.Pointer(name), "unknown_field",
				"A recipient has only the fields email, name, vars, metadata, headers, "+
					"deliver_at, expires_at, time_zone and send_window.")
			return // such mistakes may be many
		case value[0] != '"':
			d.Wrong(here+"/email", "wrong_type", "email must be a string.")
		default:
			r.Email = unquote(value)
		}
		given = append(given, name)
	})
	if !slices.Contains(given, "email") {
		d.Wrong(here+"/email", "required", "The recipient has no email.")
	}
}

// recipientMember decodes a member that a recipient of a batch and a record of a message have. It returns false if they
// have none with this name.
func (d *decoder) recipientMember(here, name string, value []byte, r *intake.Recipient) bool {
	values := name == "vars" || name == "metadata"
	if !values && name != "name" && name != "headers" {
		return false
	}
	at := here + "/" + name
	switch {
	case value[0] == 'n': // null counts as absent
	case values && value[0] != '{':
		d.Wrong(at, "wrong_type", "%s must be an object of strings, numbers and booleans.", name)
	case name == "vars":
		r.Vars = d.jsonValues(at, "A variable", value, &r.JSON)
	case name == "metadata":
		r.Metadata = d.jsonValues(at, "A value of metadata", value, nil)
	case name == "headers" && value[0] != '{':
		d.Wrong(at, "wrong_type", "headers must be an object.")
	case name == "headers":
		r.Headers = d.jsonHeaders(at, value)
	case value[0] != '"':
		d.Wrong(at, "wrong_type", "%s must be a string.", name)
	default:
		r.Name = unquote(value)
	}
	return true
}

// jsonValues decodes values: strings, and numbers and booleans as they are written in the request. It keeps one more
// than a recipient may have variables. what names a value. For variables, names collects those whose value is not a
// string; lists and objects are kept as JSON then.
func (d *decoder) jsonValues(here, what string, object []byte, names *[]string) map[string]string {
	vars := map[string]string{}
	eachMember(object, func(name string, value []byte) {
		if len(vars) > intake.MaxVars {
			return
		}
		if _, again := vars[name]; again {
			d.Wrong(here+problem.Pointer(name), "repeated", "%s is repeated.", problem.Quote(name))
		}
		kind := value[0]
		if names != nil && kind != '"' && kind != 'n' {
			*names = append(*names, name)
			kind = '0' // it is kept as it is written
		}
		switch kind {
		case '"':
			vars[name] = unquote(value)
		case '{', '[', 'n':
			d.Wrong(here+problem.Pointer(name), "wrong_type", "%s must be a string, a number or a boolean.", what)
		default:
			vars[name] = string(value)
		}
	})
	return vars
}

// jsonError returns the error for JSON that cannot be decoded, with the position of the mistake. The decoder counts
// only the bytes of complete values, so jsonError decodes the value with the mistake once more on its own.
func (j *jsonReader) jsonError(err error) error {
	var tooLarge *http.MaxBytesError
	var refused *service.Error
	switch {
	case errors.As(err, &refused): // by the reader of attachments
		return refused
	case errors.As(err, &tooLarge):
		return bodyTooLarge(tooLarge.Limit)
	case errors.Is(err, errValueTooLarge):
		return j.tooLarge()
	}
	at := j.InputOffset()
	var syntax *json.SyntaxError
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		at, err = j.read, errJSONEnds
	} else if errors.As(err, &syntax) {
		var v json.RawMessage
		again := json.NewDecoder(j.Buffered()).Decode(&v)
		// With another error than that of the value, the mistake is that a value is here.
		if inValue := new(json.SyntaxError); errors.As(again, &inValue) && inValue.Error() == syntax.Error() {
			at += inValue.Offset - 1
		}
	}
	return badJSON(j.position(at), err)
}
