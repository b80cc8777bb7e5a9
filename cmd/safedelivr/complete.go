package main

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
)

// maxNames is how many names a shell offers.
const maxNames = 100

// outsidePaths are the lists that have the first argument of a command whose call has it in no path.
var outsidePaths = map[string]string{
	"safedelivr batch rejected":   "/v1/batches",
	"safedelivr key list":         "/v1/users",
	"safedelivr provider check":   "/v1/providers",
	"safedelivr template preview": "/v1/templates",
}

// memberOf are the members of items that arguments name, by the word of the usage. Other words mean the id.
var memberOf = map[string]string{"NAME": "name", "USER": "name", "ADDRESS": "email"}

// aboutMembers are the members that say what an item is, if it has them.
var aboutMembers = []string{
	"kind", "disabled", "paused", "url", "user_name", "email", "name", "subject", "key", "reason", "why",
}

// valuesOf returns the request for the list that has the values of the next argument of a command, and the member of an
// item that is the value: {id} of /v1/X/{id} is one of GET /v1/X. It returns nil if there is no such list.
func valuesOf(cmd *cobra.Command, args []string) (r *request, member string) {
	words := strings.Fields(strings.NewReplacer("[", "", "]", "").Replace(cmd.Use))[1:]
	if path := outsidePaths[cmd.CommandPath()]; path != "" && (len(args) == 0 || slices.Contains(words, "…")) {
		return listAt(path, nil), cmp.Or(memberOf[words[0]], "id")
	}
	op := operations()[cmd.Annotations["operation"]]
	before := strings.Split(op.Path(), "/{")
	if len(before) <= len(args)+1 {
		return nil, ""
	}
	return listAt(strings.Join(before[:len(args)+1], "/{"), args), cmp.Or(memberOf[words[len(args)]], "id")
}

// listAt returns the request for the list at a path, whose parts are arguments, or nil if there is none.
func listAt(path string, parts []string) *request {
	for _, op := range operations() {
		if op.Route == http.MethodGet+" "+path {
			return &request{op: op, path: withParts(path, parts), query: url.Values{}}
		}
	}
	return nil
}

// names returns a member of the items of a list, each with a tab and a description.
func names(ctx context.Context, r *request, member string) (out []string, err error) {
	list, pages := itemsOf(&r.op)
	if pages {
		r.query.Set("limit", strconv.Itoa(maxNames))
	}
	items, _, err := readPage[map[string]any](ctx, r.operator, r.path, list, r.query)
	for _, item := range items {
		var about []string
		for _, name := range aboutMembers {
			switch v := item[name].(type) {
			case string:
				if name != member && v != "" {
					about = append(about, v)
				}
			case bool:
				if v {
					about = append(about, name)
				}
			}
		}
		out = append(out, fmt.Sprintf("%s\t%s", item[member], strings.Join(about, ", ")))
	}
	return out, err
}

// completeFlags has shells complete the flags --user and --provider of all commands.
func (c *cli) completeFlags(root *cobra.Command) {
	for _, cmd := range root.Commands() {
		c.completeFlags(cmd)
		for name, path := range map[string]string{"user": "/v1/users", "provider": "/v1/providers"} {
			values := func(*cobra.Command, []string) (*request, string) { return listAt(path, nil), "name" }
			if cmd.Name() != "init" {
				_ = cmd.RegisterFlagCompletionFunc(name, c.offer(nil, values)) // an error: it has no such flag
			}
		}
	}
}

// offer returns a function that lists values of an argument or a flag. A running server lists them. whose is that of
// the call.
func (c *cli) offer(
	whose edit, values func(cmd *cobra.Command, args []string) (r *request, member string),
) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) (out []string, then cobra.ShellCompDirective) {
		r, member := values(cmd, args)
		if then = cobra.ShellCompDirectiveNoFileComp; r == nil {
			if len(args) == 0 {
				then = cobra.ShellCompDirectiveDefault // it may be a file
			}
			return nil, then
		}
		_, all := r.op.In.FieldByName("Whose")
		_ = c.withAPI(cmd.Context(), func(ctx context.Context, o *operator) (err error) { // without the API there are none
			if r.operator = o; whose != nil {
				err = whose(ctx, r)
			} else if all {
				err = ofAll(ctx, r)
			}
			if err == nil {
				out, err = names(ctx, r, member)
			}
			return err
		})
		return out, then
	}
}
