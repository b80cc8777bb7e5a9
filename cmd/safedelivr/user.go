package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/intake"
)

var userNames = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,63}$`)

func (c *cli) sendersCommand() *cobra.Command {
	var none bool
	var why string
	cmd := &cobra.Command{
		Use:   "senders NAME [ADDRESS|@DOMAIN …]",
		Short: "Show or set the senders that a user may use",
		Args:  takes(1, -1),
		Long: `Show or set the senders that a user may use: addresses, or @domain for all of a domain. By default, users
that were added here may use any sender, and users that logged in through GitHub none.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.withService(cmd.Context(), func(ctx context.Context, svc *service.Service) error {
				var v service.AllowedSenders
				var err error
				if none && len(args) > 1 {
					return wrongUsage("--none takes no addresses")
				}
				if len(args) > 1 || none {
					v, _, err = svc.SetSenders(ctx, c.operator(), args[0], args[1:], why, service.Repeat{})
				} else {
					v, err = svc.AllowedSendersOf(ctx, c.operator(), args[0])
				}
				if err != nil {
					return orMissing(err, "user", args[0])
				}
				return c.show(v, func() error {
					switch {
					case v.Anyone:
						fmt.Fprintln(c.out, args[0], "may use any sender")
					case len(v.Senders) == 0:
						fmt.Fprintln(c.out, args[0], "may not send")
					default:
						fmt.Fprintln(c.out, args[0], "may send as", strings.Join(v.Senders, ", "))
					}
					return nil
				})
			})
		},
	}
	cmd.Flags().BoolVar(&none, "none", false, "the user may not send; takes no addresses")
	whyFlag(cmd, &why)
	return c.withJSON(cmd, jsonObject)
}

func (c *cli) limitsCommand() *cobra.Command {
	var key, why string
	var defaults bool
	cmd := &cobra.Command{
		Use:   "limits NAME [LIMIT=VALUE …]",
		Short: "Show or set the limits of a user or of one of the user's keys",
		Args:  takes(1, -1),
		Long: `Show the limits of a user or an API key and how much of them is used, or set some of them. 0 means no limit.
Limits that were not set are those of the configuration (SAFEDELIVR_QUOTAS_…) for a user, and none for a key.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.withService(cmd.Context(), func(ctx context.Context, svc *service.Service) error {
				v, err := svc.LimitsOf(ctx, c.operator(), args[0], key)
				if err != nil && key == "" {
					return orMissing(err, "user", args[0])
				}
				if err != nil {
					return err
				}
				if len(args) > 1 || defaults {
					limits, err := changedLimits(&v, args[1:], defaults)
					if err != nil {
						return err
					}
					if v, err = svc.SetLimits(ctx, c.operator(), args[0], key, limits, why); err != nil {
						return err
					}
				}
				t := c.newTable("LIMIT\tVALUE\tSET\tUSED\tUNTIL")
				for _, l := range v.Limits {
					value, set := shown{strconv.FormatInt(l.Value, 10), l.Value}, shown{"default", false}
					if l.Value == 0 {
						value.text = "none"
					}
					if l.Set {
						set = shown{"set", true}
					}
					t.row(l.Limit, value, set, l.Used, l.Resets)
				}
				return t.flush()
			})
		},
	}
	cmd.Flags().StringVar(&key, "key", "", "ID of a key of the user: show or set its limits")
	cmd.Flags().BoolVar(&defaults, "default", false, "take back all limits that were set before")
	whyFlag(cmd, &why)
	return c.withJSON(cmd, jsonRows)
}

func (c *cli) defaultsCommand() *cobra.Command {
	var o scheduleFlags
	cmd := c.commandAbout(about{
		use:   "defaults NAME",
		short: "Show or set the time zone and the hours of a user's batches that name none",
		long: `Show the time zone and the hours in which mail of a user is sent whose batch names none, or set what is given.
Batches that were accepted keep theirs.`,
		what: "user",
	}, func(ctx context.Context, svc *service.Service, name, why string) error {
		v, err := svc.Defaults(ctx, c.operator(), name)
		if err == nil && o != (scheduleFlags{}) {
			times := intake.Times{TimeZone: v.Zone, Window: intake.WindowOf(v.Window)}
			if err = o.set(&times); err == nil {
				v, err = svc.SetDefaults(ctx, c.operator(), name, times, why)
			}
		}
		if err != nil {
			return err
		}
		window := "any time"
		if v.Window != nil {
			window = v.Window.String()
		}
		return c.show(v, func() error {
			fmt.Fprintf(c.out, "time zone: %s; sent from: %s\n", cmp.Or(v.Zone, "none"), window)
			return nil
		})
	})
	cmd.Flags().StringVar(
		&o.timeZone, "time-zone", "", "time zone of times without an offset, like Europe/Vienna, or none")
	o.windowFlags(cmd)
	return c.withJSON(cmd, jsonObject)
}

// changedLimits returns the limits that are set, with changes like requests_per_second=10.
func changedLimits(v *client.Limits, changes []string, defaults bool) (models.Limits, error) {
	limits := models.Limits{}
	for _, l := range v.Limits {
		if l.Set && !defaults {
			limits[models.Limit(l.Limit)] = l.Value
		}
	}
	for _, change := range changes {
		name, value, _ := strings.Cut(change, "=")
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil {
			return nil, wrongUsage("%q does not have the form LIMIT=VALUE with a whole number", change)
		}
		if !models.Limit(name).Valid() {
			return nil, wrongUsage("there is no limit %q; the limits are %s", name, strings.Join(limitNames(), ", "))
		}
		limits[models.Limit(name)] = n
	}
	return limits, nil
}

func limitNames() []string {
	var out []string
	for _, l := range models.AllLimits() {
		out = append(out, string(l))
	}
	return out
}

func (c *cli) userCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "user",
		Short: "Add, list, pause, disable users, set their senders and limits, and end their sessions",
	}
	cmd.AddCommand(
		&cobra.Command{
			Use:   "add NAME",
			Short: "Add a user",
			Args:  takes(1, 1),
			RunE: func(cmd *cobra.Command, args []string) error {
				if !userNames.MatchString(args[0]) {
					return badUserName(args[0])
				}
				return c.withStore(cmd.Context(), func(ctx context.Context, s models.Store) error {
					u, err := addUser(ctx, s, args[0])
					if err != nil {
						return err
					}
					fmt.Fprintf(c.out, "user %s added; give it a key: safedelivr key add %s\n", u.Name, u.Name)
					return nil
				})
			},
		},
		c.sendersCommand(),
		c.limitsCommand(),
		c.defaultsCommand(),
		c.switchUser(models.PauseUser, about{
			use:   "pause USER",
			short: "Start no new call for any batch of a user",
			long: `Start no new call to a provider for any batch of a user, named by name or id. New batches are accepted
and wait. Only an operator can resume the user.`,
			what: "user",
		}),
		c.switchUser(models.ResumeUser, about{
			use:   "resume USER",
			short: "Resume the batches of a paused user",
			long:  "Resume the batches of a paused user, named by name or id.",
			what:  "user",
		}),
		c.controlCommand(about{
			use:   "disable USER",
			short: "Refuse all keys and end all sessions of a user",
			long: `Refuse all API keys of a user, named by name or id, end all sessions, and keep the user from logging in.
When the command ends, every process knows it. Mail that was accepted still goes out: see user pause.`,
			what: "user",
		}, func(ctx context.Context, svc *service.Service, name, why string) (client.ControlResult, bool, error) {
			return svc.SwitchUser(ctx, c.operator(), models.DisableUser, name, why, service.Repeat{})
		}),
		c.controlCommand(about{
			use:   "enable USER",
			short: "Accept the keys of a disabled user again",
			long:  "Accept the API keys of a disabled user, named by name or id, again. Ended sessions do not come back.",
			what:  "user",
		}, func(ctx context.Context, svc *service.Service, name, why string) (client.ControlResult, bool, error) {
			return svc.SwitchUser(ctx, c.operator(), models.EnableUser, name, why, service.Repeat{})
		}),
		c.controlCommand(about{
			use:   "end-sessions USER",
			short: "End all sessions of a user",
			long:  "End all sessions of a user, named by name or id. The user can log in again: see user disable.",
			what:  "user",
		}, func(ctx context.Context, svc *service.Service, name, why string) (client.ControlResult, bool, error) {
			return svc.EndSessions(ctx, c.operator(), name, why, service.Repeat{})
		}),
		c.listCommand(listing{
			use:   "list",
			short: "List users, oldest first",
			head:  "NAME\tID\tCREATED\tSTATE\tWHY",
		}, func(ctx context.Context, svc *service.Service, row func(...any)) error {
			for p := (service.Page{Limit: pageRows}); ; {
				page, err := svc.ListUsers(ctx, c.operator(), p)
				if err != nil {
					return err
				}
				for i := range page.Users {
					u := &page.Users[i]
					row(u.Name, u.ID, u.Created, listed(userStates(u), ""), u.DisabledWhy)
				}
				if p.Cursor = page.Next; p.Cursor == "" {
					return nil
				}
			}
		}))
	return cmd
}

// userStates returns the words for what is not usual about a user.
func userStates(u *client.User) (words []string) {
	if u.Disabled {
		words = append(words, "disabled")
	}
	if u.Paused {
		words = append(words, "paused")
	}
	return words
}

func (c *cli) switchUser(kind models.CommandKind, a about) *cobra.Command {
	return c.controlCommand(a,
		func(ctx context.Context, svc *service.Service, name, why string) (client.ControlResult, bool, error) {
			return svc.ControlUser(ctx, c.operator(), kind, name, why, service.Repeat{})
		})
}

func badUserName(name string) error {
	return wrongUsage("%q is not a user name: a-z, 0-9, dot, dash and underscore, at most 64", name)
}

// addUser adds a user with a new name.
func addUser(ctx context.Context, s models.Store, name string) (models.User, error) {
	u := models.User{ID: models.NewUserID(), Name: name, Created: time.Now().UTC()}
	err := s.CreateUser(ctx, u)
	if errors.Is(err, models.ErrExists) {
		err = fmt.Errorf("there is a user %s already", name)
	}
	return u, err
}

// scheduleFlags are flags about times.
type scheduleFlags struct {
	deliverAt, timeZone, expiresAt, window, weekdays string
	strict                                           bool
}

// windowFlags adds the flags about a window.
func (o *scheduleFlags) windowFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.window, "send-window", "", "hours in which mail is sent, like 09:00-17:00, or none for any time")
	f.StringVar(&o.weekdays, "weekdays", "", "days of --send-window, like monday,tuesday (default: every day)")
	f.BoolVar(&o.strict, "strict", false, "send nothing outside of --send-window, even if it expires")
}

// set sets the fields of a request that flags name.
func (o *scheduleFlags) set(t *intake.Times) error {
	if t.DeliverAt, t.ExpiresAt = o.deliverAt, o.expiresAt; o.deliverAt == "now" {
		t.DeliverAt = time.Now().Format(time.RFC3339)
	}
	if o.timeZone == "none" {
		t.TimeZone = ""
	} else if o.timeZone != "" {
		t.TimeZone = o.timeZone
	}
	from, to, both := strings.Cut(o.window, "-")
	switch {
	case o.window == "none":
		t.Window = &intake.Window{None: true}
	case o.window != "" && !both:
		return wrongUsage("--send-window %s: like 09:00-17:00, or none", o.window)
	case o.window != "":
		t.Window = &intake.Window{From: from, To: to, Strict: o.strict}
		if o.weekdays != "" {
			t.Window.Weekdays = strings.Split(o.weekdays, ",")
		}
	}
	return nil
}

// scheduleText describes the times of a batch.
func scheduleText(t models.Schedule) string {
	text := "sent at once"
	if !t.DeliverAt.IsZero() {
		text = "sent at " + t.DeliverAt.Format(time.RFC3339)
	}
	if t.Window != nil {
		text += "; only from " + t.Window.String()
	}
	return text + "; expires at " + t.ExpiresAt.Format(time.RFC3339)
}
