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

	"github.com/safedelivr/safedelivr/dashboard"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/intake"
)

// sendFlags are the flags of send.
type sendFlags struct {
	from, replyTo, subject, text, html, user string
	deliverAt, timeZone                      string
	to, cc, bcc, providers, attach           []string
	file                                     string
	columns                                  []string
	permissive                               bool
	watch                                    bool
	wait                                     time.Duration
}

// maxSendTo is how many recipients send takes: it prints the story of each.
const maxSendTo = 20

func (c *cli) sendCommand() *cobra.Command {
	var o sendFlags
	cmd := &cobra.Command{
		Use:   "send --from ADDRESS --to ADDRESS --subject TEXT",
		Short: "Send a message, wait for what becomes of it, and show its story",
		Args:  takes(0, 0),
		Long: `Send a message to up to 20 recipients as a user, wait until the provider has accepted and reported on it, and
show the story of each recipient. With --watch each step is shown when it happens. The exit code is 1 if a
recipient failed. With --file the recipients are the rows of a CSV file, whose columns are variables like
{{city}}; send does not wait for them then. A row with a mistake refuses the message, or with --permissive is
left out and printed. The message is sent by the running server: without one it is stored, and sent when the
server starts.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.from == "" || len(o.to) == 0 && o.file == "" || o.subject == "" {
				return errors.New("--from, --to and --subject are needed; for example: safedelivr send --from shop@example.com " +
					"--to ann@example.com --subject 'It works'")
			}
			if len(o.to)+len(o.cc)+len(o.bcc) > maxSendTo {
				return fmt.Errorf("--to, --cc, --bcc: at most %d recipients; send more with --file or POST /v1/batches", maxSendTo)
			}
			if len(o.to) > 0 && o.file != "" {
				return errors.New("--file: give either a file or --to")
			}
			if len(o.columns) > 0 && o.file == "" {
				return errors.New("--column needs a --file")
			}
			return c.withService(cmd.Context(), func(ctx context.Context, svc *service.Service) error {
				return c.send(ctx, svc, &o)
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.from, "from", "", "sender: ADDRESS or 'Name <ADDRESS>'")
	f.StringArrayVar(&o.to, "to", nil, "recipient; may be given several times")
	f.StringArrayVar(&o.cc, "cc", nil, "address in Cc of one mail to all; may be given several times")
	f.StringArrayVar(
		&o.bcc,
		"bcc",
		nil,
		"address that gets the same mail and is not shown to others; may be given several times",
	)
	f.StringVar(&o.file, "file", "", "CSV file of recipients; the first row has the names of the columns")
	f.StringArrayVar(
		&o.columns,
		"column",
		nil,
		"what a column of the file is: 'HEADING=email', =name, =VARIABLE, or = to leave "+
			"it out; may be given several times",
	)
	f.BoolVar(&o.permissive, "permissive", false, "leave out recipients with mistakes")
	f.StringVar(&o.subject, "subject", "", "subject")
	f.StringVar(&o.text, "text", "", "body as text (default: a sentence, if there is no --html)")
	f.StringVar(&o.html, "html", "", "body as HTML")
	f.StringVar(&o.replyTo, "reply-to", "", "address for replies")
	f.StringArrayVar(&o.attach, "attach", nil, "file to attach; may be given several times")
	f.StringSliceVar(&o.providers, "provider", nil, "providers that may be used, in this order (default: all)")
	f.StringVar(&o.deliverAt, "deliver-at", "", "when it is sent, like 2026-12-24T18:00 (default: at once)")
	f.StringVar(&o.timeZone, "time-zone", "", "time zone of --deliver-at, like Europe/Vienna")
	f.StringVar(&o.user, "user", "", "user who sends, by name (default: the only one, or the one that init has added)")
	f.BoolVar(&o.watch, "watch", false, "show each step when it happens, and wait until the end")
	f.DurationVar(&o.wait, "wait", time.Minute, "how long to wait for the end, without --watch")
	return cmd
}

// printTime prints when the mail of a scheduled batch is sent.
func (c *cli) printTime(a *service.Accepted) {
	what, at := "It", a.DeliverAt
	if a.OwnTimes != nil {
		what, at = "The first mail", a.OwnTimes.First
	}
	fmt.Fprintf(c.out, "%s is sent at %s. safedelivr batch cancel %s withdraws it.\n", what, at.Format(time.RFC3339), a.ID)
}

func (c *cli) send(ctx context.Context, svc *service.Service, o *sendFlags) error {
	u, err := c.sendingUser(ctx, svc, o.user)
	if err != nil {
		return err
	}
	who := c.operator()
	who.User = u.ID
	in := svc.NewIntake(ctx, who)
	defer in.Close()
	if o.text == "" && o.html == "" {
		o.text = "This message was sent by safedelivr send."
	}
	for name, text := range map[string]string{
		"from": o.from, "reply_to": o.replyTo, "subject": o.subject, "text": o.text, "html": o.html,
		"deliver_at": o.deliverAt, "time_zone": o.timeZone,
	} {
		if text != "" {
			in.SetText(name, text)
		}
	}
	for name, list := range map[string][]string{"providers": o.providers, "cc": o.cc, "bcc": o.bcc} {
		if len(list) > 0 {
			in.SetList(name, slices.All(list))
		}
	}
	if o.permissive {
		in.Permit()
	}
	if err := c.addRecipients(in, o); err != nil {
		return err
	}
	for i, path := range o.attach {
		if err := attach(in, i, c.path(path)); err != nil {
			return err
		}
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
		if cfg, err := c.load(); err == nil && len(cfg.Cassandra.Hosts) == 0 {
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
func (c *cli) addRecipients(in *intake.Builder, o *sendFlags) error {
	for _, to := range o.to {
		if err := in.Add(&service.Recipient{Email: to}); err != nil {
			return err
		}
	}
	if o.file == "" {
		return nil
	}
	for _, column := range o.columns {
		heading, name, ok := strings.Cut(column, "=")
		if !ok {
			return fmt.Errorf("--column %q: give HEADING=NAME", column)
		}
		in.MapColumn(heading, name)
	}
	f, err := os.Open(c.path(o.file))
	if err != nil {
		return fmt.Errorf("--file: %w", err)
	}
	defer f.Close()
	if err := in.AddTable(f); err != nil {
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

// attach adds a file to a message.
func attach(in *intake.Builder, number int, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("--attach: %w", err)
	}
	defer f.Close()
	a := &service.Attachment{Filename: filepath.Base(path), File: in.NewFile()}
	a.Type, _, _ = mime.ParseMediaType(mime.TypeByExtension(filepath.Ext(path)))
	if _, err := io.Copy(a.File, f); err != nil {
		return fmt.Errorf("--attach %s: %w", path, err)
	}
	in.AddAttachment(fmt.Sprintf("/attachments/%d", number), a)
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
		return models.User{}, errors.New("there is no user: see safedelivr user add")
	case 1:
		return svc.User(ctx, c.operator(), names[0])
	}
	return models.User{}, fmt.Errorf("--user: name one of %s", strings.Join(names[:min(len(names), 10)], ", "))
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
			if l.State == models.Queued {
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
			return exitCode(1)
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

// printStories prints the whole story of each log.
func (c *cli) printStories(ctx context.Context, svc *service.Service, logs []service.LogView) error {
	for i := range logs {
		story, err := svc.Log(ctx, c.operator(), logs[i].ID.String())
		if err != nil {
			return err
		}
		fmt.Fprintln(c.out)
		printStory(c.out, &story)
	}
	return nil
}

// printStory prints the story of a recipient: what became of the mail, and each step with its time in UTC.
func printStory(w io.Writer, l *service.LogStory) {
	state := string(l.State)
	if l.ReasonText != "" {
		state += ": " + l.ReasonText
	}
	to := cmp.Or(l.Email, "(erased)")
	if l.Role != "" {
		to += " (" + string(l.Role) + ")"
	}
	fmt.Fprintf(w, "%s  %s\n", to, state)
	fmt.Fprintf(w, "  log %s, subject %q\n", l.ID, l.Subject)
	for i := range l.Timeline {
		fmt.Fprintln(w, "  "+step(&l.Timeline[i]))
	}
	if l.Waits != nil && !l.Waits.Until.IsZero() {
		fmt.Fprintln(
			w,
			"  until "+l.Waits.Until.UTC().Format(time.RFC3339)+" at the latest; see again: safedelivr log show "+l.ID.String(),
		)
	}
}

// step returns a step of a story as a line.
func step(m *models.Moment) string {
	at := m.At.UTC().Format("2006-01-02T15:04:05.000Z")
	if m.What == "event" && m.At.Nanosecond() == 0 { // in whole seconds, as the provider gave it
		at = m.At.UTC().Format("2006-01-02T15:04:05Z    ")
	}
	text := m.What
	switch m.What {
	case "accepted":
		text = "accepted and stored"
	case "attempt":
		text = fmt.Sprintf("attempt %d, through %s", m.Attempt, m.Provider)
		if m.Because != "" {
			text += " (" + m.Because + ")"
		}
	case "answer":
		text = fmt.Sprintf("%s answered: %s", m.Provider, m.Class)
		if m.Class != models.Accepted && m.Reason != "" {
			text += ", " + m.Reason.Words()
		}
		if m.TookMS > 0 {
			text += fmt.Sprintf(", after %.0f ms", m.TookMS)
		}
	case "event":
		text = fmt.Sprintf("%s reported: %s", m.Provider, m.Event)
		if m.Reason != "" {
			text += ", " + m.Reason.Words()
		}
	case "end", "cancel", "release":
		if m.Because != "" {
			text += ": " + m.Because
		}
	}
	if m.Text != "" {
		text += " (" + m.Text + ")"
	}
	return at + "  " + text
}
