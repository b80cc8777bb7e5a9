package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
)

func (c *cli) pauseUserCommand() *cobra.Command {
	return c.switchUser(models.PauseUser, about{
		use:   "pause-user USER",
		short: "Start no new call for any batch of a user",
		long: `Start no new call to a provider for any batch of a user, named by name or id. New batches are accepted
and wait. Only an operator can resume the user.`,
		what: "user",
	})
}

func (c *cli) resumeUserCommand() *cobra.Command {
	return c.switchUser(models.ResumeUser, about{
		use:   "resume-user USER",
		short: "Resume the batches of a paused user",
		long:  "Resume the batches of a paused user, named by name or id.",
		what:  "user",
	})
}

func (c *cli) switchUser(kind models.CommandKind, a about) *cobra.Command {
	return c.controlCommand(a,
		func(ctx context.Context, svc *service.Service, name, why string) (service.ControlResult, bool, error) {
			return svc.ControlUser(ctx, c.operator(), kind, name, why, service.Repeat{})
		})
}
