// Package operation declares the calls of the API, each in one place.
//
// An Operation has the name of a call, its route, its scope, the structs of its request and of its answer, and the
// function that carries it out. Everything else is derived from it: the route and the strict decoding of the API, the
// description of the call in OpenAPI, and the method of the Go client.
//
// The struct of a request has a field for each part of the route and each parameter of the query:
//
//	type request struct {
//		ID     string `path:"id"`
//		Limit  int    `query:"limit"`
//		Body   client.EndpointSettings
//	}
//
// Body is the JSON object of the body. Its type and that of the answer belong to package client, so that server and
// client share them. Their comments are their documentation, and these tags their limits: max and min of a number, of
// the characters of a text, of the elements of a list; each of the characters of an element; enum of the values,
// separated by commas; pattern of a regular expression that the text matches; lines of a text that may have several
// lines; schema of the name of a hand-written schema, and whole if it is that of a list and not of its elements; const
// of the only value; unique of a list without repetitions; required of a field, or of Body, that a request must have;
// only of a field that only a request has. The tag required of an embedded struct names those of its fields that a
// request must have, and without those that it does not have. Check ignores max of a text with lines or enum: the
// function bounds the length of lines. It ignores min of a text or a list, and unique: they only describe.
package operation

import (
	"context"
	"net/http"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/caller"
	"github.com/safedelivr/safedelivr/service/idempotency"
)

// Operation is a call of the API.
type Operation struct {
	Name    string       // in OpenAPI
	Route   string       // method and path, like "POST /v1/endpoints/{id}"
	Tag     string       // the group of calls
	Title   string       // what it does, in a few words
	Text    string       // what else there is to know, in Markdown
	Scope   models.Scope // that an API key needs; empty: the function checks
	Status  int          // of the answer; default 200, or 204 if there is no body
	Returns string       // what the body of the answer is
	Errors  []int        // statuses of errors besides those of all calls
	Example string       // a body
	Media   string       // of an answer that is a text, or that may be lines instead of JSON
	Call    string       // name of the method of the Go client; default: Name with a capital letter
	MaxBody int64        // in bytes; default 64 KiB
	// Location returns the path of what was created; nil: the path of the request with the member ID of the answer.
	Location func(out any) string

	In  reflect.Type // struct of the request
	Out reflect.Type // struct of the answer; nil: there is no body

	repeats bool
	params  []Parameter
	run     func(ctx context.Context, who caller.Caller, in any, r idempotency.Repeat) (out any, replayed bool, err error)
}

// ByHand is the Call of an operation whose method is hand-written.
const ByHand = "-"

// Nothing is the answer of a call that has no body.
type Nothing struct{}

// Page selects a part of a list. The struct of a request embeds it.
type Page struct {
	// Items per page.
	Limit int `query:"limit" min:"1" max:"500" default:"50"`
	// `next_cursor` of the page before.
	Cursor string `query:"cursor"`
}

// OnePage is a request for a list that has no other parameters.
type OnePage struct{ Page }

// Whose says whose a list is. The struct of a request embeds it. The caller that a function gets is marked already.
type Whose struct {
	// `true`: that of all users. Needs the scope `operate`, too.
	All bool `query:"everyone"`
}

// Dry is embedded by the struct of a command that has a dry run.
type Dry struct {
	// `true`: answer what the command would do, and change nothing. A dry run ignores the Idempotency-Key.
	DryRun bool `query:"dry_run" default:"false"`
}

// Reading returns an operation that changes nothing, or that may be repeated as it is.
func Reading[In, Out any](
	o Operation, do func(ctx context.Context, who caller.Caller, in *In) (Out, error),
) Operation {
	o = Changing(o, func(ctx context.Context, who caller.Caller, in *In, _ idempotency.Repeat) (Out, bool, error) {
		out, err := do(ctx, who, in)
		return out, false, err
	})
	o.repeats = false
	return o
}

// Changing returns an operation that takes an Idempotency-Key. Its function reports whether the answer is that of an
// earlier request with the same key.
func Changing[In, Out any](
	o Operation,
	do func(ctx context.Context, who caller.Caller, in *In, r idempotency.Repeat) (out Out, replayed bool, err error),
) Operation {
	o.In, o.Out = reflect.TypeFor[In](), reflect.TypeFor[Out]()
	o.params, o.repeats = parameters(o.In), true
	if o.Out == reflect.TypeFor[Nothing]() {
		o.Out = nil
	}
	if o.Status == 0 {
		if o.Status = http.StatusOK; o.Out == nil {
			o.Status = http.StatusNoContent
		}
	}
	o.run = func(ctx context.Context, who caller.Caller, in any, r idempotency.Repeat) (any, bool, error) {
		return do(ctx, who, in.(*In), r) //nolint:forcetypeassert // New has made it
	}
	return o
}

// As returns the operation with an answer that clients know as a T. The answer that the function returns has the same
// JSON.
func As[T any](o Operation) Operation {
	o.Out = reflect.TypeFor[T]()
	return o
}

// Declared returns an operation that changes nothing, and that the API carries out by a handler of its own.
func Declared[In, Out any](o Operation) Operation {
	o = Reading[In, Out](o, nil)
	o.run = nil
	return o
}

// Runs reports whether Run carries out the operation.
func (o *Operation) Runs() bool { return o.run != nil }

// Once returns an operation that is carried out once for an Idempotency-Key.
func Once[In, Out any](
	guard *idempotency.Guard, o Operation, do func(ctx context.Context, who caller.Caller, in *In) (Out, error),
) Operation {
	return Changing(o, func(ctx context.Context, who caller.Caller, in *In, r idempotency.Repeat) (Out, bool, error) {
		return idempotency.Once(ctx, guard, who.User, r, func(ctx context.Context, _ models.Claim, _ bool) (Out, error) {
			return do(ctx, who, in)
		})
	})
}

// New returns a pointer to an empty request.
func (o *Operation) New() any { return reflect.New(o.In).Interface() }

// Run carries out the operation. The request is one that New returned.
func (o *Operation) Run(
	ctx context.Context, who caller.Caller, in any, r idempotency.Repeat,
) (out any, replayed bool, err error) {
	return o.run(ctx, who, in, r)
}

// Description returns Text with the scope that a key needs.
func (o *Operation) Description() string {
	if o.Scope == "" {
		return o.Text
	}
	return strings.TrimSpace(o.Text + " Needs the scope `" + string(o.Scope) + "`.")
}

// Method returns the method of the route.
func (o *Operation) Method() string {
	method, _, _ := strings.Cut(o.Route, " ")
	return method
}

// Path returns the path of the route.
func (o *Operation) Path() string {
	_, path, _ := strings.Cut(o.Route, " ")
	return path
}

// Verb returns what a route like POST /v1/batches/{id}/stop does with a thing: "batches" and "stop". They are empty for
// other routes, and for those that create something.
func (o *Operation) Verb() (things, verb string) {
	parts := strings.Split(o.Path(), "/")
	if o.Method() != http.MethodPost || o.Status == http.StatusCreated || len(parts) != 5 || parts[3][0] != '{' {
		return "", ""
	}
	return parts[2], parts[4]
}

// Body returns the type of the body, or nil if the request has none.
func (o *Operation) Body() reflect.Type {
	if f, ok := o.In.FieldByName("Body"); ok {
		return f.Type
	}
	return nil
}

// HasBody reports whether a request of the operation may have a body. A command without fields may have an empty
// object.
func (o *Operation) HasBody() bool {
	m := o.Method()
	return m == http.MethodPost || m == http.MethodPut || m == http.MethodPatch
}

// Repeats reports whether a request may have an Idempotency-Key.
func (o *Operation) Repeats() bool { return o.repeats }

// Parameter is a part of the path or of the query.
type Parameter struct {
	Name      string
	In        string // path or query
	Field     reflect.StructField
	Declaring reflect.Type // the struct that declares it
}

// Parameters returns the parts of the path and of the query, in the order of the struct.
func (o *Operation) Parameters() []Parameter { return o.params }

func parameters(in reflect.Type) (out []Parameter) {
	for _, f := range reflect.VisibleFields(in) {
		for _, where := range []string{"path", "query"} {
			if name := f.Tag.Get(where); name != "" {
				out = append(out, Parameter{name, where, f, declaring(in, f)})
			}
		}
	}
	return out
}

// declaring returns the struct, embedded in t or t itself, that declares a field.
func declaring(t reflect.Type, f reflect.StructField) reflect.Type {
	for _, i := range f.Index[:len(f.Index)-1] {
		t = t.Field(i).Type
	}
	return t
}

// Field is a member of a JSON object.
type Field struct {
	Name      string
	Omitted   bool // from an answer, if it is empty
	Required  bool // in a request
	Field     reflect.StructField
	Declaring reflect.Type // the struct that declares it

	index          []int // of the field, with those of the structs around it
	enum           []string
	pattern        *regexp.Regexp // nil: any text
	lines          bool           // several lines are allowed
	max, min, each int            // 0: there is no limit
}

// fields are those of structs, by type.
var fields sync.Map

// Fields returns the members of the JSON object that a struct describes, those of embedded structs included.
func Fields(t reflect.Type) []Field {
	if v, ok := fields.Load(t); ok {
		return v.([]Field) //nolint:forcetypeassert // nothing else is stored
	}
	out := fieldsOf(t)
	fields.Store(t, out)
	return out
}

func fieldsOf(t reflect.Type) (out []Field) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, rest, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && name == "":
			required, without := strings.Split(f.Tag.Get("required"), ","), strings.Split(f.Tag.Get("without"), ",")
			for _, inner := range fieldsOf(f.Type) {
				if slices.Contains(without, inner.Name) {
					continue
				}
				inner.index = append([]int{i}, inner.index...)
				inner.Required = inner.Required || slices.Contains(required, inner.Name)
				out = append(out, inner)
			}
		case name != "" && name != "-":
			field := Field{
				Name: name, Omitted: strings.Contains(rest, "omit"), Required: f.Tag.Get("required") != "", Field: f, Declaring: t,
				index: []int{i}, max: limit(f.Tag, "max"), min: limit(f.Tag, "min"), each: limit(f.Tag, "each"),
				lines: f.Tag.Get("lines") != "",
			}
			if text := f.Tag.Get("pattern"); text != "" {
				field.pattern = regexp.MustCompile(text)
			}
			if values := f.Tag.Get("enum"); values != "" {
				field.enum = strings.Split(values, ",")
			}
			out = append(out, field)
		}
	}
	return out
}

// limit returns the number of a tag; 0: there is none.
func limit(tag reflect.StructTag, name string) int {
	n, _ := strconv.Atoi(tag.Get(name))
	return n
}

// Pointers returns pointers to the members of the JSON object that v points to, by their names.
func Pointers(v reflect.Value) map[string]any {
	list := Fields(v.Type().Elem())
	out := make(map[string]any, len(list))
	for i := range list {
		out[list[i].Name] = v.Elem().FieldByIndex(list[i].index).Addr().Interface()
	}
	return out
}
