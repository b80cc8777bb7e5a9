package main

import (
	"context"
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
)

// maxNames is how many names a shell offers.
const maxNames = 100

// nameLists are the lists whose names a shell offers, by kind: the operation, the member of an item that names it, and
// the members that say what it is.
var nameLists = map[string]struct {
	op, name string
	about    []string
}{
	"user":     {"listUsers", "name", []string{"disabled", "paused"}},
	"provider": {"listProviders", "name", []string{"kind"}},
	"batch":    {"listBatches", "id", []string{"subject"}},
	"log":      {"searchLogs", "id", []string{"email", "subject"}},
	"key":      {"listKeys", "id", []string{"user_name", "name"}},
	"block":    {"listBlocks", "id", []string{"why"}},
	"parked":   {"listParked", "id", []string{"key"}},
}

// names returns names of a kind, each with a tab and a description.
func names(ctx context.Context, o *operator, kind string) (out []string, err error) {
	list := nameLists[kind]
	op := operations()[list.op]
	member, pages := itemsOf(&op)
	query := url.Values{}
	if pages {
		query.Set("limit", strconv.Itoa(maxNames))
	}
	if _, mine := op.In.FieldByName("Whose"); mine {
		query.Set("everyone", "true")
	}
	items, _, err := readPage[map[string]any](ctx, o, op.Path(), member, query)
	for _, item := range items {
		var about []string
		for _, name := range list.about {
			switch v := item[name].(type) {
			case string:
				about = append(about, v)
			case bool:
				if v {
					about = append(about, name)
				}
			}
		}
		out = append(out, fmt.Sprintf("%s\t%s", item[list.name], strings.Join(about, ", ")))
	}
	return out, err
}

// completeNames has shells complete the arguments of all commands that name something, and the flags --user and
// --provider.
func (c *cli) completeNames(root *cobra.Command) {
	for _, cmd := range root.Commands() {
		c.completeNames(cmd)
		_ = cmd.RegisterFlagCompletionFunc("user", c.offer("user")) // an error: it has no such flag
		if cmd.Name() != "init" {
			_ = cmd.RegisterFlagCompletionFunc("provider", c.offer("provider"))
		}
		if kind := argumentOf(cmd); kind != "" {
			cmd.ValidArgsFunction = c.offer(kind)
		}
	}
}

// argumentOf returns the kind of what the first argument of a command names; "" if it names nothing.
func argumentOf(cmd *cobra.Command) string {
	parent := cmd.Parent().Name()
	words := strings.Fields(strings.NewReplacer("[", "", "]", "").Replace(cmd.Use))
	if len(words) < 2 || cmd.CommandPath() == "safedelivr user add" {
		return ""
	}
	if words[1] == "BATCH" {
		return "batch"
	}
	switch parent {
	case "user", "provider", "batch", "log", "block", "parked":
		return parent
	case "key":
		return "user"
	}
	return ""
}

// offer returns a function that lists names of a kind. A running server lists them.
func (c *cli) offer(kind string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		kind := kind
		if len(args) > 0 && cmd.CommandPath() == "safedelivr key revoke" {
			kind = "key"
		} else if len(args) > 0 && kind != "provider" {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var out []string
		_ = c.withAPI(cmd.Context(), func(ctx context.Context, o *operator) (err error) { // without the API there are none
			out, err = names(ctx, o, kind)
			return err
		})
		return out, cobra.ShellCompDirectiveNoFileComp
	}
}
