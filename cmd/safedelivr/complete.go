package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/mail"
)

// maxNames is how many names a shell offers.
const maxNames = 100

// namesCommand prints names for the completion in shells: a name and what it is, separated by a tab.
func (c *cli) namesCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "names KIND",
		Hidden: true,
		Args:   takes(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.withService(cmd.Context(), func(ctx context.Context, svc *service.Service) error {
				return c.printNames(ctx, svc, args[0])
			})
		},
	}
}

func (c *cli) printNames(ctx context.Context, svc *service.Service, kind string) error {
	who, page := c.operator(), service.Page{Limit: maxNames}
	say := func(name, what string) { fmt.Fprintf(c.out, "%s\t%s\n", name, what) }
	switch kind {
	case "user":
		list, err := svc.People.ListUsers(ctx, who, page)
		for i := range list.Users {
			say(list.Users[i].Name, strings.Join(userStates(&list.Users[i]), ","))
		}
		return err
	case "provider":
		list, err := svc.Operate.Providers(ctx, who)
		for i := range list {
			say(list[i].Name, list[i].Kind)
		}
		return err
	case "batch":
		list, err := c.firstBatches(ctx, svc, mail.BatchFilter{}, maxNames)
		for i := range list {
			say(list[i].ID.String(), list[i].Subject)
		}
		return err
	case "log":
		list, err := c.firstBatches(ctx, svc, mail.BatchFilter{}, maxNames/10)
		if err != nil {
			return err
		}
		for i := range list {
			logs, err := svc.Mail.Logs(ctx, who, list[i].ID.String(), mail.LogFilter{}, service.Page{Limit: maxNames / 10})
			if err != nil {
				return err
			}
			for _, l := range logs.Logs {
				say(l.ID.String(), l.Email+", "+list[i].Subject)
			}
		}
		return nil
	case "key":
		list, err := svc.People.AllKeys(ctx, who, page)
		for i := range list.Keys {
			say(list.Keys[i].ID, list.Keys[i].UserName+" "+list.Keys[i].Name)
		}
		return err
	case "block":
		list, err := svc.Operate.Blocks(ctx, who)
		for _, b := range list {
			say(b.ID, b.Why)
		}
		return err
	case "parked":
		list, err := svc.Operate.Parked(ctx, who, page)
		for _, m := range list.Parked {
			say(m.ID, m.Key)
		}
		return err
	}
	return errors.New("there are no names of this kind")
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
		var out strings.Builder
		other := *c
		other.streams, other.args = streams{out: &out, err: io.Discard}, []string{"names", kind}
		if c.configFile != "" {
			other.args = append(other.args, "-c", c.configFile)
		}
		if other.run(cmd.Context()) != 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return strings.Split(strings.TrimSpace(out.String()), "\n"), cobra.ShellCompDirectiveNoFileComp
	}
}
