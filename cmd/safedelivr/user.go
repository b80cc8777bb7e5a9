package main

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/safedelivr/safedelivr/client"
)

var userNames = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,63}$`)

func badUserName(name string) error {
	return wrongUsage("%q is not a user name: a-z, 0-9, dot, dash and underscore, at most 64", name)
}

func (c *cli) userCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "user",
		Short: "Add, list, pause, disable users, set their senders and limits, and end their sessions",
	}
	cmd.AddCommand(
		doing(c, call{op: "addUser", use: "add NAME", fields: []string{"name"}},
			func(_ context.Context, _ *operator, _ []string, u *client.User) error {
				fmt.Fprintf(c.out, "user %s added; give it a key: safedelivr key add %s\n", u.Name, u.Name)
				return nil
			}),
		c.sendersCommand(),
		c.limitsCommand(),
		c.defaultsCommand(),
		listOf(c, listing{
			call: call{op: "listUsers", use: "list"},
			head: "NAME\tID\tCREATED\tSTATE\tWHY",
		}, func(_ context.Context, _ *operator, u *client.User) []any {
			return []any{u.Name, u.ID, u.Created, listed(userStates(u), ""), u.DisabledWhy}
		}))
	for op, use := range map[string]string{
		"pauseUser": "pause USER", "resumeUser": "resume USER", "disableUser": "disable USER", "enableUser": "enable USER",
		"endSessions": "end-sessions USER",
	} {
		cmd.AddCommand(controlling(c, call{op: op, use: use, what: "user"}))
	}
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
			if none && len(args) > 1 {
				return wrongUsage("--none takes no addresses")
			}
			return c.withAPI(cmd.Context(), func(ctx context.Context, o *operator) (err error) {
				var raw []byte
				var v client.Senders
				if len(args) > 1 || none {
					in := client.SetSenders{Senders: args[1:], Why: why}
					v, err = o.SetSenders(ctx, args[0], in, client.Raw(&raw))
				} else {
					v, err = o.GetSenders(ctx, args[0], client.Raw(&raw))
				}
				if err != nil {
					return orMissing(err, "user", args[0])
				}
				return c.show(raw, func() error {
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
			return c.withAPI(cmd.Context(), func(ctx context.Context, o *operator) error {
				path := client.Path("users", args[0], "limits")
				if key != "" {
					path = client.Path("users", args[0], "keys", key, "limits")
				}
				var v client.Limits
				err := o.Call(ctx, http.MethodGet, path, nil, nil, &v)
				if err != nil && key == "" {
					return orMissing(err, "user", args[0])
				}
				if err == nil && (len(args) > 1 || defaults) {
					var to map[string]any
					if to, err = changedLimits(&v, args[1:], defaults); err == nil {
						to["why"] = why
						err = o.Call(ctx, http.MethodPut, path, nil, to, &v)
					}
				}
				if err != nil {
					return err
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

// changedLimits returns the limits that are set, with changes like requests_per_second=10.
func changedLimits(v *client.Limits, changes []string, defaults bool) (map[string]any, error) {
	limits, names := map[string]any{}, map[string]bool{}
	var all []string
	for _, l := range v.Limits {
		names[l.Limit], all = true, append(all, l.Limit)
		if l.Set && !defaults {
			limits[l.Limit] = l.Value
		}
	}
	for _, change := range changes {
		name, value, _ := strings.Cut(change, "=")
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil {
			return nil, wrongUsage("%q does not have the form LIMIT=VALUE with a whole number", change)
		}
		if !names[name] {
			return nil, wrongUsage("there is no limit %q; the limits are %s", name, strings.Join(all, ", "))
		}
		limits[name] = n
	}
	return limits, nil
}

func (c *cli) defaultsCommand() *cobra.Command {
	var s scheduleFlags
	var why string
	cmd := &cobra.Command{
		Use:   "defaults NAME",
		Short: "Show or set the time zone and the hours of a user's batches that name none",
		Args:  takes(1, 1),
		Long: `Show the time zone and the hours in which mail of a user is sent whose batch names none, or set what is given.
Batches that were accepted keep theirs.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.withAPI(cmd.Context(), func(ctx context.Context, o *operator) error {
				var raw []byte
				v, err := o.GetDefaults(ctx, args[0], client.Raw(&raw))
				if err != nil {
					return orMissing(err, "user", args[0])
				}
				if s != (scheduleFlags{}) {
					in := map[string]any{"time_zone": v.TimeZone, "why": why}
					if v.SendWindow != nil {
						in["send_window"] = v.SendWindow
					}
					if err := s.set(in); err != nil {
						return err
					}
					v = client.Defaults{}
					path := client.Path("users", args[0], "defaults")
					if err := o.Call(ctx, http.MethodPut, path, nil, in, &v, client.Raw(&raw)); err != nil {
						return err
					}
				}
				return c.show(raw, func() error {
					window := "any time"
					if v.SendWindow != nil {
						window = windowText(v.SendWindow)
					}
					fmt.Fprintf(c.out, "time zone: %s; sent from: %s\n", cmp.Or(v.TimeZone, "none"), window)
					return nil
				})
			})
		},
	}
	cmd.Flags().StringVar(
		&s.timeZone, "time-zone", "", "time zone of times without an offset, like Europe/Vienna, or none")
	s.windowFlags(cmd)
	whyFlag(cmd, &why)
	return c.withJSON(cmd, jsonObject)
}

// scheduleFlags are flags about times.
type scheduleFlags struct {
	deliverAt, timeZone, expiresAt, window, weekdays string
	strict                                           bool
}

// windowFlags adds the flags about a window.
func (s *scheduleFlags) windowFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&s.window, "send-window", "", "hours in which mail is sent, like 09:00-17:00, or none for any time")
	f.StringVar(&s.weekdays, "weekdays", "", "days of --send-window, like monday,tuesday (default: every day)")
	f.BoolVar(&s.strict, "strict", false, "send nothing outside of --send-window, even if it expires")
}

// set sets the fields of a request that flags name.
func (s *scheduleFlags) set(in map[string]any) error {
	for name, text := range map[string]string{
		"deliver_at": s.deliverAt, "time_zone": s.timeZone, "expires_at": s.expiresAt,
	} {
		switch {
		case name == "deliver_at" && text == "now":
			in[name] = time.Now().Format(time.RFC3339)
		case name == "time_zone" && text == "none":
			delete(in, name)
		case text != "":
			in[name] = text
		case in[name] == "":
			delete(in, name)
		}
	}
	from, to, both := strings.Cut(s.window, "-")
	switch {
	case s.window == "none":
		in["send_window"] = client.AnyTime()
	case s.window != "" && !both:
		return wrongUsage("--send-window %s: like 09:00-17:00, or none", s.window)
	case s.window != "":
		w := &client.SendWindow{From: from, To: to, Strict: s.strict}
		if s.weekdays != "" {
			w.Weekdays = strings.Split(s.weekdays, ",")
		}
		in["send_window"] = w
	}
	return nil
}

// windowText describes the hours in which mail is sent.
func windowText(w *client.SendWindow) string {
	on := ""
	for i, d := range w.Weekdays {
		on += []string{" on ", ", "}[min(i, 1)] + strings.ToUpper(d[:1]) + d[1:]
	}
	return fmt.Sprintf("%s to %s%s (%s)", w.From, w.To, on, w.TimeZone)
}

// scheduleText describes the times of a batch.
func scheduleText(deliverAt, expiresAt time.Time, w *client.SendWindow) string {
	text := "sent at once"
	if !deliverAt.IsZero() {
		text = "sent at " + deliverAt.Format(time.RFC3339)
	}
	if w != nil {
		text += "; only from " + windowText(w)
	}
	return text + "; expires at " + expiresAt.Format(time.RFC3339)
}
