package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"net/http"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/operation"
)

// operations are the calls of the API by their names: those of the table, and those that api has handlers of its own
// for.
var operations = sync.OnceValue(func() map[string]operation.Operation {
	out := map[string]operation.Operation{}
	for _, o := range append(service.Operations(new(service.Service)), rescheduleBatch) {
		out[o.Name] = o
	}
	return out
})

// verbs yields the operations that do something with a thing: "stop" with "batches". It leaves out the verbs in but.
func verbs(things string, but ...string) iter.Seq2[string, string] {
	return func(yield func(op, verb string) bool) {
		for name, o := range operations() {
			of, verb := o.Verb()
			if of == things && !slices.Contains(but, verb) && !yield(name, verb) {
				return
			}
		}
	}
}

// call is a command that is one call of the API. Its arguments are the parts of the path, and then fields of the body.
// Its flags are the parameters of the query and the other fields.
type call struct {
	op          string            // name of the operation; empty: the command makes calls of its own
	use         string            // verb and arguments
	short, long string            // default: title and text of the operation
	what        string            // the thing that the first argument names: "there is no WHAT NAME"
	json        string            // meaning of --json; empty: there is none
	fields      []string          // that arguments set
	only        []string          // fields that have flags; default: all
	flags       map[string]string // names of flags by their fields; "": it has none
	usage       map[string]string // texts of flags by their fields; default: the comments of the fields
	past        bool              // a span is one before now, as it is in a query
	whose       edit              // sets on whose behalf the call is
	ready       edit              // sets what arguments and flags do not say
}

// edit changes a request before it is made.
type edit func(ctx context.Context, r *request) error

// request is a call of the API, and on whose behalf it is.
type request struct {
	*operator
	op           operation.Operation
	method, path string
	query        url.Values
	body         map[string]any // nil: there is none
	args         []string
	raw          []byte // the answer
	what, named  string // "there is no WHAT NAMED"
}

// send makes the request, and decodes the answer into out.
func (r *request) send(ctx context.Context, out any) error {
	var in any
	if r.body != nil {
		in = r.body
	}
	if r.op.Out == nil {
		out = nil
	}
	return r.Call(ctx, r.method, r.path, r.query, in, out, client.Raw(&r.raw))
}

// put has the request replace what it would read by what body has.
func (r *request) put(body map[string]any) { r.method, r.body = http.MethodPut, body }

// ofSender has a request made on behalf of a user; without a name of the only one, or the one that init has added.
func ofSender(user *string) edit {
	return func(ctx context.Context, r *request) error {
		u, err := r.sender(ctx, *user)
		r.operator = r.as(u.ID)
		return err
	}
}

// ofAll has a request be about everyone.
func ofAll(_ context.Context, r *request) error {
	r.query.Set("everyone", "true")
	return nil
}

// ofUserOrAll has a request made on behalf of a user; without a name it is about everyone.
func ofUserOrAll(user *string) edit {
	return func(ctx context.Context, r *request) error {
		if *user == "" {
			return ofAll(ctx, r)
		}
		u, err := r.find(ctx, *user)
		r.operator = r.as(u.ID)
		return err
	}
}

// doing returns the command of a call. print prints the answer; with nil it is printed as JSON. With --json it is
// printed as it is, unless the call says what --json means: then print does that, too.
func doing[T any](c *cli, k call, print func(ctx context.Context, r *request, v *T) error) *cobra.Command {
	prints := k.json != ""
	if o := operations()[k.op]; !prints && o.Method() == http.MethodGet {
		k.json = jsonObject
	}
	return command(c, k, func(ctx context.Context, r *request) error {
		var v T
		err := r.send(ctx, &v)
		switch {
		case err != nil || r.op.Out == nil && print == nil:
			return err
		case c.json && !prints:
			return c.printRaw(r.raw)
		case print == nil:
			return c.printIndented(r.raw)
		}
		return print(ctx, r, &v)
	})
}

// command returns the command of a call, which do carries out.
func command(c *cli, k call, do func(ctx context.Context, r *request) error) *cobra.Command {
	f := &form{call: &k, flags: map[string]string{}}
	if k.op != "" {
		var ok bool
		if f.op, ok = operations()[k.op]; !ok {
			panic("there is no operation " + k.op)
		}
		text := f.op.Text
		if words := strings.Fields(k.use); len(words) > 1 {
			text = strings.ReplaceAll(text, "`id`", words[1])
		}
		k.short, k.long = cmp.Or(k.short, f.op.Title), cmp.Or(k.long, plain(text))
	}
	f.cmd = &cobra.Command{
		Use: k.use, Short: k.short, Long: k.long, Annotations: map[string]string{"operation": k.op},
		ValidArgsFunction: c.offer(k.whose, valuesOf),
		PreRun:            func(*cobra.Command, []string) { c.flags = f.flags },
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.withAPI(cmd.Context(), func(ctx context.Context, o *operator) error {
				r, err := f.fill(ctx, o, args)
				if err == nil {
					err = do(ctx, r)
				}
				if r.what == "" {
					return err
				}
				return orMissing(err, r.what, r.named)
			})
		},
	}
	if k.op != "" {
		f.declare()
	}
	if k.json != "" {
		return c.withJSON(f.cmd, k.json)
	}
	return f.cmd
}

// form makes requests from arguments and flags.
type form struct {
	cmd    *cobra.Command
	op     operation.Operation
	call   *call
	parts  int                            // of the path
	fields []operation.Field              // of the body
	body   map[string]func() (any, error) // by field, of flags
	query  map[string]func() (any, error) // by parameter, of flags
	flags  map[string]string              // names by field
}

// declare adds the flags of the operation.
func (f *form) declare() {
	f.body, f.query = map[string]func() (any, error){}, map[string]func() (any, error){}
	for _, p := range f.op.Parameters() {
		switch {
		case p.In == "path":
			f.parts++
		case p.Name != "limit" && p.Name != "cursor" && p.Name != "everyone" && p.Name != "installation":
			f.add(f.query, p.Name, p.Field, p.Declaring, true)
		}
	}
	if t := f.op.Body(); t != nil {
		f.fields = operation.Fields(t)
		for _, m := range f.fields {
			f.add(f.body, m.Name, m.Field, m.Declaring, f.call.past)
		}
	}
}

// add adds the flag of a field. A span is one before now if the field is about the past.
func (f *form) add(
	to map[string]func() (any, error), name string, field reflect.StructField, in reflect.Type, past bool,
) {
	flag, ok := f.call.flags[name]
	if !ok {
		flag = flagName(name)
	}
	if slices.Contains(f.call.fields, name) || len(f.call.only) > 0 && !slices.Contains(f.call.only, name) {
		flag = ""
	}
	if f.flags[name] = flag; flag == "" {
		return
	}
	usage := cmp.Or(f.call.usage[name], usages[name], asUsage(comments[in.PkgPath()+"."+in.Name()+"."+field.Name]))
	value := newFlag(f.cmd.Flags(), flag, usage, field.Type, past)
	to[name] = func() (any, error) {
		if !f.cmd.Flags().Changed(flag) {
			return nil, nil
		}
		return value()
	}
}

// usages are the texts of flags whose fields say it to programs.
var usages = map[string]string{
	"dry_run": "print what the command would do, and change nothing",
	"why":     "reason, for the audit trail",
}

// newFlag adds a flag of the type of a field. It returns a function that returns its value as JSON has it.
func newFlag(f *pflag.FlagSet, name, usage string, t reflect.Type, past bool) func() (any, error) {
	switch {
	case t == reflect.TypeFor[time.Time]():
		text := f.String(name, "", usage)
		return func() (any, error) {
			at, err := parseTime(*text, past)
			if err != nil {
				err = wrongUsage("--%s: %w", name, err)
			}
			return at, err
		}
	case t.Kind() == reflect.Bool:
		on := f.Bool(name, false, usage)
		return func() (any, error) { return *on, nil }
	case t.Kind() == reflect.Int:
		n := f.Int(name, 0, usage)
		return func() (any, error) { return *n, nil }
	case t.Kind() == reflect.Slice:
		list := f.StringSlice(name, nil, usage)
		return func() (any, error) { return *list, nil }
	case t.Kind() == reflect.Map:
		list := f.StringArray(name, nil, usage)
		return func() (any, error) { return named("--"+name, *list, ":", "write 'Name: value'") }
	}
	text := f.String(name, "", usage)
	return func() (any, error) { return *text, nil }
}

// named returns values that are given as names and values with a separator.
func named(flag string, list []string, sep, form string) (map[string]string, error) {
	out := map[string]string{}
	for _, given := range list {
		name, value, ok := strings.Cut(given, sep)
		if name = strings.TrimSpace(name); !ok || name == "" {
			return nil, wrongUsage("%s %q: %s", flag, given, form)
		}
		if _, again := out[name]; again {
			return nil, wrongUsage("%s: %s is given twice", flag, name)
		}
		if out[name] = value; sep == ":" {
			out[name] = strings.TrimSpace(value)
		}
	}
	return out, nil
}

// fill returns a request. If it is not valid there is an error, too.
func (f *form) fill(ctx context.Context, o *operator, args []string) (r *request, err error) {
	r = &request{operator: o, op: f.op, query: url.Values{}, args: args, what: f.call.what}
	if len(args) > 0 {
		r.named = args[0]
	}
	if f.call.op != "" {
		if r.method, r.path = f.op.Method(), f.op.Path(); f.op.HasBody() {
			r.body = map[string]any{}
		}
	}
	r.path = withParts(r.path, args[:min(f.parts, len(args))])
	for i, name := range f.call.fields {
		if r.body[name] = args[f.parts+i]; f.isNumber(name) {
			if r.body[name], err = strconv.Atoi(args[f.parts+i]); err != nil {
				return r, wrongUsage("%s is not the number of a %s", args[f.parts+i], name)
			}
		}
	}
	set := func(flags map[string]func() (any, error), to func(name string, v any)) {
		for _, name := range slices.Sorted(maps.Keys(flags)) {
			v, wrong := flags[name]()
			if err = cmp.Or(err, wrong); v != nil {
				to(name, v)
			}
		}
	}
	set(f.body, func(name string, v any) { r.body[name] = v })
	set(f.query, func(name string, v any) {
		switch is := v.(type) {
		case time.Time:
			v = is.Format(time.RFC3339)
		case []string:
			v = strings.Join(is, ",")
		}
		r.query.Set(name, fmt.Sprint(v))
	})
	for _, edit := range []edit{f.call.whose, f.call.ready} {
		if err == nil && edit != nil {
			err = edit(ctx, r)
		}
	}
	return r, err
}

// withParts returns a path in which arguments replace the first parts.
func withParts(path string, args []string) string {
	for _, arg := range args {
		before, rest, _ := strings.Cut(path, "{")
		_, after, _ := strings.Cut(rest, "}")
		path = before + url.PathEscape(arg) + after
	}
	return path
}

// isNumber reports whether a field of the body is a number.
func (f *form) isNumber(name string) bool {
	return slices.ContainsFunc(f.fields, func(m operation.Field) bool {
		return m.Name == name && m.Field.Type.Kind() == reflect.Int
	})
}

// listing is a command that prints a list.
type listing struct {
	call
	head   string // of the columns, separated by tabs
	none   string // what is printed if the list is empty
	paging bool   // it has --limit and --all; otherwise all is printed
}

// pageRows is how many rows of a long list are read and laid out together.
const pageRows = 500

// listOf returns the command of a list whose items are of the type T. It reads page by page, so that memory does not
// grow with the list.
func listOf[T any](c *cli, l listing, row func(ctx context.Context, o *operator, v *T) []any) *cobra.Command {
	limit, all := 0, true
	l.json = jsonRows
	cmd := command(c, l.call, func(ctx context.Context, r *request) error {
		if l.paging && limit < 1 {
			return wrongUsage("--limit %d: at least 1", limit)
		}
		return printList(ctx, c, r, &l, limit, all, row)
	})
	if f := cmd.Flags(); l.paging {
		f.IntVar(&limit, "limit", 50, "how many")
		f.BoolVar(&all, "all", false, "all there are")
		cmd.MarkFlagsMutuallyExclusive("limit", "all")
	}
	return cmd
}

// printList prints a list, or the beginning of it. It prints nothing if the first page cannot be read.
func printList[T any](
	ctx context.Context, c *cli, r *request, l *listing, limit int, all bool,
	row func(ctx context.Context, o *operator, v *T) []any,
) error {
	member, pages := itemsOf(&r.op)
	t, n := c.newTable(l.head), 0
	for left := limit; all || left > 0; {
		if pages {
			size := pageRows
			if !all {
				size = min(left, pageRows)
			}
			r.query.Set("limit", fmt.Sprint(size))
		}
		items, next, err := readPage[T](ctx, r.operator, r.path, member, r.query)
		if err != nil {
			return err
		}
		for i := range items {
			t.row(row(ctx, r.operator, &items[i])...)
		}
		n, left = n+len(items), left-len(items) // a page may be short
		if n == 0 && next == "" && l.none != "" && !c.json {
			fmt.Fprintln(c.out, l.none)
			return nil
		}
		if err := t.flush(); err != nil || next == "" {
			return err
		}
		r.query.Set("cursor", next)
	}
	c.warn("There are more rows: --limit N or --all.")
	return nil
}

// itemsOf returns the member of an answer that has the items of a list, and whether the list has pages.
func itemsOf(o *operation.Operation) (member string, pages bool) {
	_, pages = o.In.FieldByName("Cursor")
	for _, f := range operation.Fields(o.Out) {
		if f.Field.Type.Kind() == reflect.Slice {
			return f.Name, pages
		}
	}
	panic(o.Name + " returns no list")
}

// aboutHTTP finds sentences that mean nothing on the command line: about scopes, where everybody is an operator, about
// statuses and pages.
var aboutHTTP = regexp.MustCompile(`the scope|he answer is [1-5]|It is [1-5]\d\d|next.cursor|everyone=true`)

// plain returns a text of the API as people read it in a terminal.
func plain(text string) string {
	sentences := slices.DeleteFunc(strings.SplitAfter(text, ". "), aboutHTTP.MatchString)
	return strings.TrimSpace(strings.ReplaceAll(strings.Join(sentences, ""), "`", ""))
}

// asUsage returns the comment of a field as the text of a flag.
func asUsage(text string) string {
	text = strings.TrimSuffix(plain(strings.TrimPrefix(text, "`true`: ")), ".")
	if about, value, ok := strings.Cut(text, ". Default: "); ok && value != "false" {
		text = about + " (default: " + value + ")"
	} else if ok {
		text = about
	}
	if len(text) > 1 && (text[1] >= 'a' && text[1] <= 'z' || text[1] == ' ') {
		text = strings.ToLower(text[:1]) + text[1:]
	}
	return text
}

// printRaw prints a JSON value on one line.
func (c *cli) printRaw(raw []byte) error {
	_, err := fmt.Fprintf(c.out, "%s\n", bytes.TrimSpace(raw))
	return err
}

// printIndented prints a JSON value for people.
func (c *cli) printIndented(raw []byte) error {
	var b bytes.Buffer
	if err := json.Indent(&b, bytes.TrimSpace(raw), "", "  "); err != nil {
		return err
	}
	_, err := fmt.Fprintln(c.out, b.String())
	return err
}
