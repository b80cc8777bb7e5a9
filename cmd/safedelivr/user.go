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

func userCommand(c *cli) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "user",
		Short: "Add, list, pause, disable users, set their senders and limits, and end their sessions",
	}
	cmd.AddCommand(
		doing(c, call{op: "addUser", use: "add NAME", fields: []string{"name"}},
			func(_ context.Context, _ *request, u *client.User) error {
				fmt.Fprintf(c.out, "user %s added; give it a key: safedelivr key add %s\n", u.Name, u.Name)
				return nil
			}),
		sendersCommand(c),
		limitsCommand(c),
		defaultsCommand(c),
		listOf(c, listing{
			call: call{op: "listUsers", use: "list"},
			head: "NAME\tID\tCREATED\tSTATE\tWHY",
		}, func(_ context.Context, _ *operator, u *client.User) []any {
			return []any{u.Name, u.ID, u.Created, listed(userStates(u), ""), u.DisabledWhy}
		}))
	for op, verb := range verbs("users") {
		cmd.AddCommand(controlling(c, call{op: op, use: verb + " USER", what: "user"}))
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

func sendersCommand(c *cli) *cobra.Command {
	var none bool
	var why string
	cmd := doing(c, call{
		op: "getSenders", use: "senders NAME [ADDRESS|@DOMAIN …]", what: "user",
		short: "Show or set the senders that a user may use",
		long: `Show or set the senders that a user may use: addresses, or @domain for all of a domain. By default, users
that were added here may use any sender, and users that logged in through GitHub none.`,
		ready: func(_ context.Context, r *request) error {
			switch senders := r.args[1:]; {
			case none && len(senders) > 0:
				return wrongUsage("--none takes no addresses")
			case none || len(senders) > 0:
				r.put(map[string]any{"senders": senders, "why": why})
			}
			return nil
		},
	}, func(_ context.Context, r *request, v *client.Senders) error {
		switch {
		case v.Anyone:
			fmt.Fprintln(c.out, r.named, "may use any sender")
		case len(v.Senders) == 0:
			fmt.Fprintln(c.out, r.named, "may not send")
		default:
			fmt.Fprintln(c.out, r.named, "may send as", strings.Join(v.Senders, ", "))
		}
		return nil
	})
	cmd.Flags().BoolVar(&none, "none", false, "the user may not send; takes no addresses")
	whyFlag(cmd, &why)
	return cmd
}

func limitsCommand(c *cli) *cobra.Command {
	var key, why string
	var defaults bool
	cmd := listOf(c, listing{call: call{
		op: "getUserLimits", use: "limits NAME [LIMIT=VALUE …]", what: "user",
		short: "Show or set the limits of a user or of one of the user's keys",
		long: `Show the limits of a user or an API key and how much of them is used, or set some of them. 0 means no limit.
Limits that were not set are those of the configuration (SAFEDELIVR_QUOTAS_…) for a user, and none for a key.`,
		ready: func(ctx context.Context, r *request) error {
			if key != "" {
				r.path, r.what = client.Path("users", r.named, "keys", key, "limits"), ""
			}
			if len(r.args) == 1 && !defaults {
				return nil
			}
			var v client.Limits
			if err := r.send(ctx, &v); err != nil {
				return err
			}
			to, err := changedLimits(&v, r.args[1:], defaults)
			if err != nil {
				return err
			}
			to["why"] = why
			return r.Call(ctx, http.MethodPut, r.path, nil, to, nil)
		},
	}, head: "LIMIT\tVALUE\tSET\tUSED\tUNTIL"}, func(_ context.Context, _ *operator, l *client.LimitUse) []any {
		value, set := shown{strconv.FormatInt(l.Value, 10), l.Value}, shown{"default", false}
		if l.Value == 0 {
			value.text = "none"
		}
		if l.Set {
			set = shown{"set", true}
		}
		return []any{l.Limit, value, set, l.Used, l.Resets}
	})
	cmd.Flags().StringVar(&key, "key", "", "ID of a key of the user: show or set its limits")
	cmd.Flags().BoolVar(&defaults, "default", false, "take back all limits that were set before")
	whyFlag(cmd, &why)
	return cmd
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

func defaultsCommand(c *cli) *cobra.Command {
	var w windowFlags
	var zone, why string
	cmd := doing(c, call{
		op: "getDefaults", use: "defaults NAME", what: "user",
		short: "Show or set the time zone and the hours of a user's batches that name none",
		long: `Show the time zone and the hours in which mail of a user is sent whose batch names none, or set what is given.
Batches that were accepted keep theirs.`,
		ready: func(ctx context.Context, r *request) error {
			if zone == "" && w == (windowFlags{}) {
				return nil
			}
			var v client.Defaults
			if err := r.send(ctx, &v); err != nil {
				return err
			}
			to := map[string]any{"why": why}
			if v.SendWindow != nil {
				to["send_window"] = v.SendWindow
			}
			if zone = cmp.Or(zone, v.TimeZone); zone != "" && zone != "none" {
				to["time_zone"] = zone
			}
			r.put(to)
			return w.set(to)
		},
	}, func(_ context.Context, _ *request, v *client.Defaults) error {
		window := "any time"
		if v.SendWindow != nil {
			window = windowText(v.SendWindow)
		}
		fmt.Fprintf(c.out, "time zone: %s; sent from: %s\n", cmp.Or(v.TimeZone, "none"), window)
		return nil
	})
	cmd.Flags().StringVar(
		&zone, "time-zone", "", "time zone of times without an offset, like Europe/Vienna, or none")
	w.add(cmd)
	whyFlag(cmd, &why)
	return cmd
}

// windowFlags are flags about a window.
type windowFlags struct {
	window, weekdays string
	strict           bool
}

// add adds the flags to a command.
func (w *windowFlags) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&w.window, "send-window", "", "hours in which mail is sent, like 09:00-17:00, or none for any time")
	f.StringVar(&w.weekdays, "weekdays", "", "days of --send-window, like monday,tuesday (default: every day)")
	f.BoolVar(&w.strict, "strict", false, "send nothing outside of --send-window, even if it expires")
}

// set sets the window of a request, if there is one.
func (w *windowFlags) set(body map[string]any) error {
	from, to, both := strings.Cut(w.window, "-")
	switch {
	case w.window == "none":
		body["send_window"] = client.AnyTime()
	case w.window != "" && !both:
		return wrongUsage("--send-window %s: like 09:00-17:00, or none", w.window)
	case w.window != "":
		window := &client.SendWindow{From: from, To: to, Strict: w.strict}
		if w.weekdays != "" {
			window.Weekdays = strings.Split(w.weekdays, ",")
		}
		body["send_window"] = window
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
