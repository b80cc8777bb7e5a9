package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/safedelivr/safedelivr/dashboard"
	"github.com/safedelivr/safedelivr/internal/app"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/intake"
)

// sendFlags are the flags of send.
type sendFlags struct {
	texts  map[string]*string   // by field of a batch
	lists  map[string]*[]string // by field of a batch
	marks  map[string]*bool     // by field of a batch
	named  map[string]*[]string // headers, metadata and vars: NAME=VALUE
	to     []string
	attach []string
	inline []string

	user, file         string
	columns            []string
	permissive, dryRun bool
	watch              bool
	wait               time.Duration
}

// maxSendTo is how many recipients send takes: it prints the story of each.
const maxSendTo = 20

func (c *cli) sendCommand() *cobra.Command {
	var o sendFlags
	cmd := &cobra.Command{
		Use:   "send --from ADDRESS --to ADDRESS --subject TEXT",
		Short: "Send a message, wait for its result, and show its story",
		Args:  takes(0, 0),
		Long: `Send a message to up to 20 recipients as a user, wait until the provider has accepted and reported on it, and
show the story of each recipient. With --watch each step is shown when it happens. The exit code is 1 if a
recipient failed. With --file the recipients are the rows of a CSV file, whose columns are variables like
{{city}}; send does not wait for them then. A row with a mistake refuses the message, or with --permissive is
left out and printed. The message is sent by the running server: without one it is stored, and sent when the
server starts.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return err
			}
			return c.withService(cmd.Context(), func(ctx context.Context, svc *service.Service) error {
				return c.send(ctx, svc, cmd, &o)
			})
		},
	}
	o.add(cmd.Flags())
	return cmd
}

// check reports what is missing or does not go together.
func (o *sendFlags) check() error {
	written := *o.texts["from"] != "" && *o.texts["subject"] != ""
	if !written && *o.texts["template"] == "" || len(o.to) == 0 && o.file == "" {
		return wrongUsage("--from, --to and --subject are needed; for example: safedelivr send --from shop@example.com " +
			"--to ann@example.com --subject 'It works'")
	}
	switch n := len(o.to) + len(*o.lists["cc"]) + len(*o.lists["bcc"]); {
	case n > maxSendTo:
		return wrongUsage("--to, --cc, --bcc: at most %d recipients; send more with --file or POST /v1/batches", maxSendTo)
	case len(o.to) > 0 && o.file != "":
		return wrongUsage("--file: give either a file or --to")
	case len(o.columns) > 0 && o.file == "":
		return wrongUsage("--column needs a --file")
	case len(*o.named["vars"]) > 0 && o.file != "":
		return wrongUsage("--var: with a --file the columns are the variables")
	}
	return nil
}

// add defines the flags.
func (o *sendFlags) add(f *pflag.FlagSet) {
	o.texts, o.lists = map[string]*string{}, map[string]*[]string{}
	o.marks, o.named = map[string]*bool{}, map[string]*[]string{}
	text := func(flag, usage string) { o.texts[strings.ReplaceAll(flag, "-", "_")] = f.String(flag, "", usage) }
	text("from", "sender: ADDRESS or 'Name <ADDRESS>'")
	f.StringArrayVar(&o.to, "to", nil, "recipient; may be given several times")
	o.lists["cc"] = f.StringArray("cc", nil, "address in Cc of one mail to all; may be given several times")
	o.lists["bcc"] = f.StringArray("bcc", nil,
		"address that gets the same mail and is not shown to others; may be given several times")
	f.StringVar(&o.file, "file", "", "CSV file of recipients; the first row has the names of the columns")
	f.StringArrayVar(&o.columns, "column", nil,
		"what a column of the file is: 'HEADING=email', =name, =VARIABLE, or = to leave it out; may be given several times")
	f.BoolVar(&o.permissive, "permissive", false, "leave out recipients with mistakes")
	text("subject", "subject")
	text("text", "body as text (default: a sentence, if there is no --html)")
	text("html", "body as HTML")
	text("template", "what the message is made from instead: NAME, or NAME@VERSION")
	text("language", "language of the template, like de-AT")
	o.named["vars"] = f.StringArray("var", nil, "value of a placeholder: NAME=VALUE; may be given several times")
	o.lists["reply_to"] = f.StringArray("reply-to", nil, "address for replies; may be given several times")
	o.named["headers"] = f.StringArray("header", nil, "header field: NAME=VALUE; may be given several times")
	f.StringArrayVar(&o.attach, "attach", nil, "file to attach; may be given several times")
	f.StringArrayVar(&o.inline, "inline", nil,
		"image that the HTML shows as cid: and its file name; may be given several times")
	o.lists["tags"] = f.StringArray("tag", nil, "tag for statistics; may be given several times")
	text("category", "kind of mail that a recipient may unsubscribe from")
	o.named["metadata"] = f.StringArray("metadata", nil, "value for your application: NAME=VALUE; may be given several times")
	o.marks["track_opens"] = f.Bool("track-opens", false, "let the provider see who opens the mail")
	o.marks["track_clicks"] = f.Bool("track-clicks", false, "let the provider see who clicks its links")
	o.marks["unsubscribe"] = f.Bool("unsubscribe", false,
		"whether recipients can unsubscribe by a link (default: if the mail is bulk and has a category)")
	o.lists["providers"] = f.StringSlice("provider", nil, "providers that may be used, in this order (default: all)")
	text("lane", "urgent or bulk (default: by the number of recipients)")
	text("deliver-at", "when it is sent, like 2026-12-24T18:00 (default: at once)")
	text("time-zone", "time zone of --deliver-at, like Europe/Vienna")
	text("expires-at", "when it expires, like 2026-12-25T18:00 (default: seven days later)")
	f.StringVar(&o.user, "user", "", "user who sends, by name (default: the only one, or the one that init has added)")
	f.BoolVar(&o.dryRun, "dry-run", false, "send nothing, and say what would happen")
	f.BoolVar(&o.watch, "watch", false, "show each step when it happens, and wait until the end")
	f.DurationVar(&o.wait, "wait", time.Minute, "how long to wait for the end, without --watch")
}

// fill fills a request with the flags that were given, except for recipients and files.
func (o *sendFlags) fill(cmd *cobra.Command, in *intake.Intake) error {
	if *o.texts["text"] == "" && *o.texts["html"] == "" && *o.texts["template"] == "" {
		*o.texts["text"] = "This message was sent by safedelivr send."
	}
	for name, text := range o.texts {
		set(in, name, *text, *text != "")
	}
	for name, list := range o.lists {
		set(in, name, *list, len(*list) > 0)
	}
	for name, on := range o.marks {
		given := cmd.Flags().Changed(strings.ReplaceAll(name, "_", "-"))
		set(in, name, *on, given)
		set(in, name, on, given)
	}
	headers, err := o.values("headers", "header")
	if err != nil {
		return err
	}
	for name, value := range headers {
		in.Batch.Headers = append(in.Batch.Headers, models.Header{Name: name, Value: value})
	}
	in.Batch.Metadata, err = o.values("metadata", "metadata")
	if o.permissive {
		in.Permit()
	}
	return err
}

// set sets a field of the batch that has the type of a value.
func set[T any](in *intake.Intake, name string, value T, given bool) {
	if field, _ := in.Batch.Field(name); given {
		if into, ok := field.(*T); ok {
			*into = value
		}
	}
}

// values returns the values of a flag that is given as NAME=VALUE; nil if it is not given.
func (o *sendFlags) values(field, flag string) (map[string]string, error) {
	var out map[string]string
	for _, given := range *o.named[field] {
		name, value, ok := strings.Cut(given, "=")
		if !ok || name == "" {
			return nil, wrongUsage("--%s %q: give NAME=VALUE", flag, given)
		}
		if _, again := out[name]; again {
			return nil, wrongUsage("--%s: %s is given twice", flag, name)
		}
		if out == nil {
			out = map[string]string{}
		}
		out[name] = value
	}
	return out, nil
}

// printTime prints when the mail of a scheduled batch is sent.
func (c *cli) printTime(a *service.Accepted) {
	what, at := "It", a.DeliverAt
	if a.OwnTimes != nil {
		what, at = "The first mail", a.OwnTimes.First
	}
	fmt.Fprintf(c.out, "%s is sent at %s. safedelivr batch cancel %s withdraws it.\n", what, at.Format(time.RFC3339), a.ID)
}

func (c *cli) send(ctx context.Context, svc *service.Service, cmd *cobra.Command, o *sendFlags) error {
	u, err := c.sendingUser(ctx, svc, o.user)
	if err != nil {
		return err
	}
	who := c.operator()
	who.User = u.ID
	in := svc.NewIntake(ctx, who)
	defer in.Close()
	if err := o.fill(cmd, in); err != nil {
		return err
	}
	if err := c.addRecipients(in, o); err != nil {
		return err
	}
	for i, path := range slices.Concat(o.attach, o.inline) {
		if err := attach(in, i, c.path(path), i >= len(o.attach)); err != nil {
			return err
		}
	}
	if o.dryRun {
		plan, err := svc.DryRunAccept(ctx, who, in)
		if err != nil {
			return inFile(err, o)
		}
		c.printPlan(&plan)
		return nil
	}
	a, _, err := svc.Accept(ctx, who, in, service.Repeat{})
	if err != nil {
		return inFile(err, o)
	}
	fmt.Fprintf(c.out, "batch %s of %s: accepted for %s\n", a.ID, u.Name, count(a.Recipients, "recipient"))
	c.printRejected(&a)
	if !a.DeliverAt.IsZero() || a.State == models.BatchScheduled {
		c.printTime(&a)
		return nil
	}
	if c.server == nil {
		if cfg, err := c.load(); err == nil && app.StoreName(&cfg) == "sqlite" {
			fmt.Fprintln(c.out, "No server is running: the message is stored, and sent when safedelivr serve runs.")
			return nil
		}
	}
	if o.file != "" {
		return nil
	}
	return c.follow(ctx, svc, a.ID, o)
}

// addRecipients adds the recipients of --to or --file.
func (c *cli) addRecipients(in *intake.Intake, o *sendFlags) error {
	vars, err := o.values("vars", "var")
	if err != nil {
		return err
	}
	var to []service.Recipient
	for _, email := range o.to {
		to = append(to, service.Recipient{Email: email, Vars: vars})
	}
	if err := in.Read(intake.Of(to...)); err != nil || o.file == "" {
		return err
	}
	var columns intake.Columns
	for _, column := range o.columns {
		heading, name, ok := strings.Cut(column, "=")
		if !ok {
			return wrongUsage("--column %q: give HEADING=NAME", column)
		}
		columns.Add(heading, name, in)
	}
	f, err := os.Open(c.path(o.file))
	if err != nil {
		return fmt.Errorf("--file: %w", err)
	}
	defer f.Close()
	if err := in.Read(in.Table(f, &columns)); err != nil {
		return fmt.Errorf("--file %s: %w", o.file, err)
	}
	return nil
}

// inFile names the recipients of a file in the mistakes of a request.
func inFile(err error, o *sendFlags) error {
	var e *service.Error
	if o.file == "" || !errors.As(err, &e) {
		return err
	}
	for i := range e.Fields {
		f := &e.Fields[i]
		rest, _ := strings.CutPrefix(f.Pointer, "/to/")
		number, _, _ := strings.Cut(rest, "/")
		if index, err := strconv.Atoi(number); err == nil {
			f.Pointer, f.Detail = "/file", fmt.Sprintf("recipient %d: %s", index+1, f.Detail)
		}
	}
	return e
}

// printedRejected is how many rejected recipients send prints.
const printedRejected = 10

// printRejected prints the first recipients that were left out.
func (c *cli) printRejected(a *service.Accepted) {
	if a.Rejected == nil || a.Rejected.Count == 0 {
		return
	}
	fmt.Fprintf(c.out, "%s left out:\n", count(a.Rejected.Count, "recipient"))
	for _, r := range a.Rejected.First[:min(len(a.Rejected.First), printedRejected)] {
		place := fmt.Sprintf("recipient %d", r.Index+1)
		if r.Row > 0 {
			place = fmt.Sprintf("row %d, %s", r.Row, cmp.Or(r.Column, r.Pointer))
		}
		fmt.Fprintf(c.out, "  %s: %s (%s)\n", place, r.Detail, r.Code)
	}
	if a.Rejected.Count > printedRejected {
		fmt.Fprintf(c.out, "All of them: safedelivr batch rejected %s\n", a.ID)
	}
}

// attach adds a file to a message. The HTML may show an inline one.
func attach(in *intake.Intake, number int, path string, inline bool) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("the file cannot be sent: %w", err)
	}
	defer f.Close()
	a := &service.Attachment{Filename: filepath.Base(path), File: in.NewFile()}
	if inline {
		a.ContentID = a.Filename
	}
	a.Type, _, _ = mime.ParseMediaType(mime.TypeByExtension(filepath.Ext(path)))
	if _, err := io.Copy(a.File, f); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	in.Attach(fmt.Sprintf("/attachments/%d", number), a)
	return nil
}

// sendingUser returns the user of a name; without a name the one that init has added, or the only one.
func (c *cli) sendingUser(ctx context.Context, svc *service.Service, name string) (models.User, error) {
	if name != "" {
		u, err := svc.User(ctx, c.operator(), name)
		return u, orMissing(err, "user", name)
	}
	page, err := svc.ListUsers(ctx, c.operator(), service.Page{Limit: pageRows})
	if err != nil {
		return models.User{}, err
	}
	var names []string
	for _, u := range page.Users {
		if u.ID == dashboard.LocalUser().ID {
			return svc.User(ctx, c.operator(), u.ID)
		}
		names = append(names, u.Name)
	}
	switch len(names) {
	case 0:
		return models.User{}, exitWith(exitMissing, errors.New("there is no user: see safedelivr user add"))
	case 1:
		return svc.User(ctx, c.operator(), names[0])
	}
	return models.User{}, wrongUsage("--user: name one of %s", strings.Join(names[:min(len(names), 10)], ", "))
}

// follow waits until all recipients of a small batch have an end, and prints their stories.
func (c *cli) follow(ctx context.Context, svc *service.Service, batch models.ID, o *sendFlags) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	end := time.Now().Add(o.wait)
	printed := map[string]bool{}
	for range models.Every(ctx, 200*time.Millisecond) {
		logs, err := svc.Logs(ctx, c.operator(), batch.String(), service.LogFilter{}, service.Page{Limit: maxSendTo})
		if err != nil {
			return err
		}
		waiting, failed := 0, false
		for i := range logs.Logs {
			l := &logs.Logs[i]
			if l.State.Open() {
				waiting++
			}
			failed = failed || l.State == models.Failed
			if o.watch {
				if err := c.printNew(ctx, svc, l, printed); err != nil {
					return err
				}
			}
		}
		if waiting > 0 && (o.watch || time.Now().Before(end)) {
			continue
		}
		if err := c.printStories(ctx, svc, logs.Logs); err != nil {
			return err
		}
		if failed {
			return exitFailed
		}
		return nil
	}
	return ctx.Err()
}

// printNew prints the steps of a recipient's story that were not printed before.
func (c *cli) printNew(ctx context.Context, svc *service.Service, l *service.LogView, printed map[string]bool) error {
	story, err := svc.Log(ctx, c.operator(), l.ID.String())
	if err != nil {
		return err
	}
	for i := range story.Timeline {
		line := l.Email + "  " + step(&story.Timeline[i])
		if !printed[line] {
			printed[line] = true
			fmt.Fprintln(c.out, line)
		}
	}
	return nil
}
