package main

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/safedelivr/safedelivr/client"
)

// maxNames is how many names a shell offers.
const maxNames = 100

// printNames prints names of a kind: a name and what it is, separated by a tab.
func printNames(ctx context.Context, o *operator, kind string, say func(name, what string)) error {
	page := client.ListOptions{PageSize: maxNames}
	switch kind {
	case "user":
		list, err := first(o.ListUsers(ctx, page), maxNames)
		for i := range list {
			say(list[i].Name, strings.Join(userStates(&list[i]), ","))
		}
		return err
	case "provider":
		list, err := o.ListProviders(ctx)
		for i := range list.Providers {
			say(list.Providers[i].Name, list.Providers[i].Kind)
		}
		return err
	case "batch", "log":
		return printBatchNames(ctx, o, kind, say)
	case "key":
		list, err := first(o.ListKeys(ctx, page), maxNames)
		for i := range list {
			say(list[i].ID, list[i].UserName+" "+list[i].Name)
		}
		return err
	case "block":
		list, err := o.ListBlocks(ctx)
		for i := range list.Blocks {
			say(list.Blocks[i].ID, list.Blocks[i].Why)
		}
		return err
	case "parked":
		list, err := first(o.ListParked(ctx, page), maxNames)
		for _, m := range list {
			say(m.ID, m.Key)
		}
		return err
	}
	return nil
}

// printBatchNames prints the IDs of the newest batches, or of the first logs of some of them.
func printBatchNames(ctx context.Context, o *operator, kind string, say func(name, what string)) error {
	some := maxNames
	if kind == "log" {
		some /= 10
	}
	options := client.LogOptions{ListOptions: client.ListOptions{PageSize: some}}
	list, err := first(o.FindBatches(ctx, client.BatchOptions{Everyone: true, Recipients: options}), some)
	for i := range list {
		if kind == "batch" {
			say(list[i].ID, list[i].Subject)
			continue
		}
		logs, err := first(o.Logs(ctx, list[i].ID, options), some)
		if err != nil {
			return err
		}
		for k := range logs {
			say(logs[k].ID, logs[k].Email+", "+list[i].Subject)
		}
	}
	return err
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
		err := c.withAPI(cmd.Context(), func(ctx context.Context, o *operator) error {
			return printNames(ctx, o, kind, func(name, what string) { out = append(out, name+"\t"+what) })
		})
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return out, cobra.ShellCompDirectiveNoFileComp
	}
}
