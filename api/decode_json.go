package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"unicode/utf8"
)

// The most that one piece of a JSON request may take, in bytes.
const (
	maxRecipientJSON = 1 << 20  // one recipient
	maxBetween       = 64 << 10 // a member's name with the space around it
	maxEscape        = 6        // \u0041 for one byte
)

// jsonReader is a decoder whose memory is bounded: it buffers a value whole, so
// it may not read further than the value that is expected next is allowed to be.
type jsonReader struct {
	*json.Decoder
	body      io.Reader
	read, max int64
	tooLarge  *Problem // the answer when max is reached
}

var errValueTooLarge = errors.New("value too large")

// Read implements io.Reader, for the decoder.
func (j *jsonReader) Read(p []byte) (int, error) {
	left := j.max - j.read
	if left <= 0 {
		return 0, errValueTooLarge
	}
	n, err := j.body.Read(p[:min(int64(len(p)), left)])
	j.read += int64(n)
	return n, err
}

// allow lets the next value have n bytes.
func (j *jsonReader) allow(n int64, tooLarge *Problem) {
	j.max, j.tooLarge = j.InputOffset()+n, tooLarge
}

// readJSON reads a request member by member, so that a list of recipients of
// any length takes no memory, wherever it stands.
func (in *intake) readJSON(body io.Reader) *Problem {
	j := &jsonReader{body: body}
	j.Decoder = json.NewDecoder(j)
	if p := in.readObject(j); p != nil {
		return p
	}
	j.allow(maxBetween, valueTooLarge(""))
	if _, err := j.Token(); !errors.Is(err, io.EOF) {
		if err == nil {
			err = errors.New("there is something after the end of the object")
		}
		return j.broken(err)
	}
	return nil
}

func (in *intake) readObject(j *jsonReader) *Problem {
	j.allow(maxBetween, valueTooLarge(""))
	t, err := j.Token()
	if err != nil {
		return j.broken(err)
	}
	if t != json.Delim('{') {
		in.wrong("", "wrong_type", "The request is a JSON object.")
		return in.problem()
	}
	for j.more(maxBetween, valueTooLarge("")) {
		t, err := j.Token()
		if err != nil {
			return j.broken(err)
		}
		name, _ := t.(string) // inside an object a token before a value is a string
		if in.seen[name] {
			return j.broken(errors.New("the member " + quoted(name) + " stands twice"))
		}
		in.seen[name] = true
		if p := in.readMember(j, name); p != nil {
			return p
		}
	}
	if _, err := j.Token(); err != nil {
		return j.broken(err)
	}
	return nil
}

// more reports whether the object or list goes on. What comes next may have n
// bytes.
func (j *jsonReader) more(n int64, tooLarge *Problem) bool {
	j.allow(n, tooLarge)
	return j.More()
}

func (in *intake) readMember(j *jsonReader, name string) *Problem {
	if name == "to" {
		return in.readRecipients(j)
	}
	j.allow(maxBetween+maxEscape*(in.cfg.MaxContent-in.content), in.contentTooLarge())
	var raw json.RawMessage
	if err := j.Decode(&raw); err != nil {
		return j.broken(err)
	}
	here := pointer(name)
	text := in.texts()[name]
	switch {
	case bytes.Equal(raw, []byte("null")) && in.isField(name):
	case text != nil:
		return in.jsonText(name, raw, text)
	case name == "providers":
		in.jsonProviders(raw)
	case name == "allow_duplicates":
		if json.Unmarshal(raw, &in.allowDuplicates) != nil {
			in.wrong(here, "wrong_type", "allow_duplicates is true or false.")
		}
	default:
		in.wrong(here, "unknown_field", "There is no such field.")
	}
	return nil
}

func (in *intake) jsonText(name string, raw []byte, text *string) *Problem {
	switch {
	case raw[0] != '"':
		in.bad[name] = true
		in.wrong(pointer(name), "wrong_type", "%s is a string.", name)
	case !utf8.Valid(raw):
		in.bad[name] = true
		in.wrong(pointer(name), "invalid_text", "%s is not UTF-8.", name)
	default:
		in.set[name] = true
		*text = unquote(raw)
		return in.addContent(len(*text))
	}
	return nil
}

func (in *intake) jsonProviders(raw []byte) {
	var list []json.RawMessage
	in.set["providers"] = true
	if json.Unmarshal(raw, &list) != nil {
		in.bad["providers"] = true
		in.wrong("/providers", "wrong_type", "providers is a list of account names.")
	}
	for i, p := range list {
		if p[0] != '"' {
			in.bad["providers"] = true
			in.wrong("/providers/"+strconv.Itoa(i), "wrong_type", "An account name is a string.")
			continue
		}
		in.providers = append(in.providers, named{i, unquote(p)})
	}
}

func (in *intake) readRecipients(j *jsonReader) *Problem {
	in.set["to"] = true
	j.allow(maxRecipientJSON, valueTooLarge("/to"))
	t, err := j.Token()
	if err != nil {
		return j.broken(err)
	}
	if t != json.Delim('[') {
		if t != nil { // null is as good as absent
			in.bad["to"] = true
			in.wrong("/to", "wrong_type", "to is a list of addresses or of {email, name, vars}.")
		}
		return skipObject(j, t)
	}
	var raw json.RawMessage
	for j.more(maxRecipientJSON, valueTooLarge("/to/"+strconv.Itoa(in.index))) {
		if err := j.Decode(&raw); err != nil {
			return j.broken(err)
		}
		if p := in.taken(in.jsonRecipient(raw)); p != nil {
			return p
		}
	}
	if _, err := j.Token(); err != nil {
		return j.broken(err)
	}
	return nil
}

// skipObject reads over the object that t begins, if it does.
func skipObject(j *jsonReader, t json.Token) *Problem {
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
		j.allow(maxRecipientJSON, valueTooLarge("/to"))
		var err error
		if t, err = j.Token(); err != nil {
			return j.broken(err)
		}
	}
}

// jsonRecipient takes "address", or {"email", "name", "vars"}. Every mistake in
// it is listed.
func (in *intake) jsonRecipient(raw []byte) error {
	here := "/to/" + strconv.Itoa(in.index)
	before := in.total
	var r recipient
	switch {
	case !utf8.Valid(raw):
		in.wrong(here, "invalid_text", "The recipient is not UTF-8.")
	case raw[0] == '"':
		r.email = unquote(raw)
	case raw[0] == '{':
		r.pointer = "/email"
		given := map[string]bool{}
		eachMember(raw, func(name string, value []byte) {
			at := here + pointer(name)
			if given[name] {
				in.wrong(at, "repeated", "%s stands twice.", quoted(name))
			}
			given[name] = true
			switch {
			case name == "vars" && value[0] == '{':
				r.vars = in.jsonVars(at, value)
			case value[0] == 'n' && (name == "vars" || name == "name"): // null is as good as absent
			case name == "vars":
				in.wrong(at, "wrong_type", "vars is an object of strings, numbers and booleans.")
			case name != "email" && name != "name":
				in.wrong(at, "unknown_field", "A recipient has email, name and vars.")
			case value[0] != '"':
				in.wrong(at, "wrong_type", "%s is a string.", name)
			case name == "email":
				r.email = unquote(value)
			default:
				r.name = unquote(value)
			}
		})
		if !given["email"] {
			in.wrong(here+"/email", "required", "A recipient has an email.")
		}
	default:
		in.wrong(here, "wrong_type", "A recipient is an address or {email, name, vars}.")
	}
	r.flawed = in.total > before
	return in.recipient(&r)
}

// jsonVars reads variables: strings, and numbers and booleans as they are
// written.
func (in *intake) jsonVars(here string, object []byte) map[string]string {
	vars := map[string]string{}
	eachMember(object, func(name string, value []byte) {
		if _, again := vars[name]; again {
			in.wrong(here+pointer(name), "repeated", "%s stands twice.", quoted(name))
		}
		switch value[0] {
		case '"':
			vars[name] = unquote(value)
		case '{', '[', 'n':
			in.wrong(here+pointer(name), "wrong_type", "A variable is a string, a number or a boolean.")
		default:
			vars[name] = string(value)
		}
	})
	return vars
}

// broken is the answer to JSON that cannot be read on, with the position. The
// decoder counts only the bytes of whole values, so that the broken one is read
// once more on its own.
func (j *jsonReader) broken(err error) *Problem {
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return bodyTooLarge(tooLarge.Limit)
	case errors.Is(err, errValueTooLarge):
		return j.tooLarge
	}
	at := j.InputOffset()
	var syntax *json.SyntaxError
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		at, err = j.read, errors.New("the JSON ends too early")
	} else if errors.As(err, &syntax) {
		var v json.RawMessage
		if errors.As(json.NewDecoder(j.Buffered()).Decode(&v), &syntax) {
			at += syntax.Offset - 1
		}
	}
	p := problem(http.StatusBadRequest, "bad_json", "After %d bytes: %s.", at, err)
	p.Position = &at
	return p
}
