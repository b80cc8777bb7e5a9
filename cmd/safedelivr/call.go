package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/operation"
)

// operations are the calls of the API by their names.
var operations = sync.OnceValue(func() map[string]operation.Operation {
	out := map[string]operation.Operation{}
	for _, o := range service.Operations(new(service.Service)) {
		out[o.Name] = o
	}
	return out
})

// call is a command that is one call of the API. Its arguments are the parts of the path, and then fields of the body. Its
// flags are the parameters of the query and the other fields.
type call struct {
	op          string            // name of the operation
	use         string            // verb and arguments
	short, long string            // default: title and text of the operation
	what        string            // the thing that the first argument names: "there is no WHAT NAME"
	fields      []string          // that arguments set
	flags       map[string]string // names of flags by their fields; "": it has none
	usage       map[string]string // texts of flags by their fields; default: the comments of the fields
	whose       whose             // on whose behalf it is
}

// whose says on whose behalf a command is, by the flags of its noun; nil: nobody's.
type whose func(ctx context.Context, o *operator, query url.Values) (*operator, error)

// doing returns the command of a call. print prints the answer; with nil it is printed as JSON.
func doing[T any](c *cli, k call, print func(ctx context.Context, o *operator, args []string, v *T) error) *cobra.Command {
	r := k.request(c)
	r.cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return c.withAPI(cmd.Context(), func(ctx context.Context, o *operator) error {
			o, path, query, body, err := r.fill(ctx, o, args)
			if err != nil {
				return err
			}
			var in any
			if r.op.HasBody() {
				in = body
			}
			var v T
			var raw []byte
			var out any = &v
			if r.op.Out == nil {
				out = nil
			}
			if err := o.Call(ctx, r.op.Method(), path, query, in, out, client.Raw(&raw)); err != nil {
				return r.missing(err, args)
			}
			return c.show(raw, func() error {
				if print == nil {
					return c.printIndented(raw)
				}
				return print(ctx, o, args, &v)
			})
		})
	}
	if r.op.Method() == http.MethodGet {
		return c.withJSON(r.cmd, jsonObject)
	}
	return r.cmd
}

// withUser returns a command with several calls, which are on behalf of a user. The query says so, too.
func (c *cli) withUser(
	of whose, use, short string, do func(ctx context.Context, o *operator, query url.Values, args []string) error,
) *cobra.Command {
	n := len(strings.Fields(use)) - 1
	return &cobra.Command{
		Use:   use,
		Short: short,
		Args:  takes(n, n),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.withAPI(cmd.Context(), func(ctx context.Context, o *operator) error {
				query := url.Values{}
				o, err := of(ctx, o, query)
				if err != nil {
					return err
				}
				return do(ctx, o, query, args)
			})
		},
	}
}

// request makes a request from arguments and flags.
type request struct {
	cmd   *cobra.Command
	op    operation.Operation
	parts int // of the path
	call  *call
	body  map[string]func() (any, error) // by field, of flags
	query map[string]func() (any, error) // by parameter, of flags
	flags map[string]string              // names by field
}

// request returns the command of a call without what it does.
func (k *call) request(c *cli) *request {
	o, ok := operations()[k.op]
	if !ok {
		panic("there is no operation " + k.op)
	}
	r := &request{op: o, call: k, flags: map[string]string{}}
	if k.short == "" {
		k.short = o.Title
	}
	words := strings.Fields(k.use)
	n := len(words) - 1
	if k.long == "" && n > 0 {
		k.long = plain(strings.ReplaceAll(o.Text, "`id`", words[1]))
	} else if k.long == "" {
		k.long = plain(o.Text)
	}
	r.cmd = &cobra.Command{
		Use: k.use, Short: k.short, Long: k.long, Args: takes(n, n), Annotations: map[string]string{"operation": k.op},
	}
	r.cmd.PreRun = func(*cobra.Command, []string) { c.flags = r.flags }
	r.body, r.query = map[string]func() (any, error){}, map[string]func() (any, error){}
	for _, p := range o.Parameters() {
		switch {
		case p.In == "path":
			r.parts++
		case p.Name != "limit" && p.Name != "cursor" && p.Name != "everyone" && p.Name != "installation":
			r.add(r.query, p.Name, p.Field, p.Declaring, true)
		}
	}
	if t := o.Body(); t != nil {
		for _, f := range operation.Fields(t) {
			r.add(r.body, f.Name, f.Field, f.Declaring, false)
		}
	}
	return r
}

// add adds the flag of a field. A span is one before now if the field is about the past.
func (r *request) add(
	to map[string]func() (any, error), name string, f reflect.StructField, in reflect.Type, past bool,
) {
	flag, ok := r.call.flags[name]
	if !ok {
		flag = flagName(name)
	}
	if slices.Contains(r.call.fields, name) {
		flag = ""
	}
	if r.flags[name] = flag; flag == "" {
		return
	}
	usage := r.call.usage[name]
	if usage == "" {
		usage = usages[name]
	}
	if usage == "" {
		usage = asUsage(comments[in.Name()+"."+f.Name])
	}
	value := newFlag(r.cmd.Flags(), flag, usage, f.Type, past)
	to[name] = func() (any, error) {
		if !r.cmd.Flags().Changed(flag) {
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

// missing replaces a "not found" by an error that names the first argument.
func (r *request) missing(err error, args []string) error {
	if r.call.what == "" {
		return err
	}
	return orMissing(err, r.call.what, args[0])
}

// fill returns the parts of a request, and the caller on whose behalf it is.
func (r *request) fill(ctx context.Context, o *operator, args []string) (
	_ *operator, path string, query url.Values, body map[string]any, err error,
) {
	path = r.op.Path()
	for _, arg := range args[:min(r.parts, len(args))] {
		before, rest, _ := strings.Cut(path, "{")
		_, after, _ := strings.Cut(rest, "}")
		path = before + url.PathEscape(arg) + after
	}
	query, body = url.Values{}, map[string]any{}
	for i, name := range r.call.fields {
		if r.parts+i < len(args) {
			body[name] = args[r.parts+i]
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
	set(r.body, func(name string, v any) { body[name] = v })
	set(r.query, func(name string, v any) {
		if at, ok := v.(time.Time); ok {
			v = at.Format(time.RFC3339)
		}
		query.Set(name, fmt.Sprint(v))
	})
	if err == nil && r.call.whose != nil {
		o, err = r.call.whose(ctx, o, query)
	}
	return o, path, query, body, err
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

// listOf returns the command of a list whose items are of the type T. It reads page by page, so that memory does not grow
// with the list.
func listOf[T any](c *cli, l listing, row func(ctx context.Context, o *operator, v *T) []any) *cobra.Command {
	r := l.request(c)
	limit, all := 0, true
	if f := r.cmd.Flags(); l.paging {
		f.IntVar(&limit, "limit", 50, "how many")
		f.BoolVar(&all, "all", false, "all there are")
		r.cmd.MarkFlagsMutuallyExclusive("limit", "all")
	}
	r.cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if l.paging && limit < 1 {
			return wrongUsage("--limit %d: at least 1", limit)
		}
		return c.withAPI(cmd.Context(), func(ctx context.Context, o *operator) error {
			o, path, query, _, err := r.fill(ctx, o, args)
			if err != nil {
				return err
			}
			return r.missing(printList(ctx, c, o, &l, path, query, limit, all, row), args)
		})
	}
	return c.withJSON(r.cmd, jsonRows)
}

// printList prints a list, or the beginning of it. It prints nothing if the first page cannot be read.
func printList[T any](
	ctx context.Context, c *cli, o *operator, l *listing, path string, query url.Values, limit int, all bool,
	row func(ctx context.Context, o *operator, v *T) []any,
) error {
	op := operations()[l.op]
	member, pages := itemsOf(&op)
	t, n := c.newTable(l.head), 0
	for left := limit; all || left > 0; {
		if pages {
			size := pageRows
			if !all {
				size = min(left, pageRows)
			}
			query.Set("limit", fmt.Sprint(size))
		}
		items, next, err := readPage[T](ctx, o, path, member, query)
		if err != nil {
			return err
		}
		for i := range items {
			t.row(row(ctx, o, &items[i])...)
		}
		n, left = n+len(items), left-len(items) // a page may be short
		if n == 0 && next == "" && l.none != "" && !c.json {
			fmt.Fprintln(c.out, l.none)
			return nil
		}
		if err := t.flush(); err != nil || next == "" {
			return err
		}
		query.Set("cursor", next)
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

// show prints a value: with --json as one JSON object, or else as print does.
func (c *cli) show(raw []byte, print func() error) error {
	if !c.json {
		return print()
	}
	_, err := fmt.Fprintf(c.out, "%s\n", strings.TrimSpace(string(raw)))
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

// printJSON prints a value as one JSON object.
func (c *cli) printJSON(v any) error { return json.NewEncoder(c.out).Encode(v) }
