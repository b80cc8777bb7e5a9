package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"net/textproto"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
)

// sendFlags are the flags of send that are no fields of a batch, and what was made from the others.
type sendFlags struct {
	user, file         string
	to, columns        []string
	attach, inline     []string
	permissive, dryRun bool
	watch              bool
	wait               time.Duration

	form map[string]string // fields of the batch
	vars map[string]string // of the recipients
}

// The kinds of flags that are fields of a batch.
const (
	aText = iota
	aList
	aMark
	aMap // NAME=VALUE
)

// sendFields are the fields of a batch that send has a flag for.
var sendFields = []struct {
	field string
	kind  int
	usage string
}{
	{"from", aText, "sender: ADDRESS or 'Name <ADDRESS>'"},
	{"together", aMark, "send one mail that names all recipients, instead of one to each"},
	{"cc", aList, "address in Cc of one mail to all; may be given several times"},
	{"bcc", aList, "address that gets the same mail and is not shown to others; may be given several times"},
	{"subject", aText, "subject"},
	{"text", aText, "body as text (default: a sentence, if there is no --html)"},
	{"html", aText, "body as HTML"},
	{"template", aText, "what the message is made from instead: NAME, or NAME@VERSION"},
	{"language", aText, "language of the template, like de-AT"},
	{"reply_to", aList, "address for replies; may be given several times"},
	{"headers", aMap, "header field: NAME=VALUE; may be given several times"},
	{"tags", aList, "tag for statistics; may be given several times"},
	{"category", aText, "kind of mail that a recipient may unsubscribe from"},
	{"metadata", aMap, "value for your application: NAME=VALUE; may be given several times"},
	{"track_opens", aMark, "let the provider see who opens the mail"},
	{"track_clicks", aMark, "let the provider see who clicks its links"},
	{"unsubscribe", aMark, "whether recipients can unsubscribe by a link (default: if the mail is bulk and has a category)"},
	{"providers", aList, "providers that may be used, in this order (default: all)"},
	{"lane", aText, "urgent or bulk (default: by the number of recipients)"},
	{"deliver_at", aText, "when it is sent, like 2026-12-24T18:00 (default: at once)"},
	{"time_zone", aText, "time zone of --deliver-at, like Europe/Vienna"},
	{"expires_at", aText, "when it expires, like 2026-12-25T18:00 (default: seven days later)"},
}

// maxSendTo is how many recipients send takes: it prints the story of each.
const maxSendTo = 20

func sendCommand(c *cli) *cobra.Command {
	var o sendFlags
	cmd := &cobra.Command{
		Use:   "send --from ADDRESS --to ADDRESS --subject TEXT",
		Short: "Send a message, wait for its result, and show its story",
		Long: `Send a message to up to 20 recipients as a user, wait until the provider has accepted and reported on it, and
show the story of each recipient. With --watch each step is shown when it happens. The exit code is 1 if a
recipient failed. With --file the recipients are the rows of a CSV file, whose columns are variables like
{{city}}; send does not wait for them then. A row with a mistake refuses the message, or with --permissive is
left out and printed. The message is sent by the running server: without one it is stored, and sent when the
server starts.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.read(cmd.Flags()); err != nil {
				return err
			}
			return c.withAPI(cmd.Context(), func(ctx context.Context, api *operator) error { return send(ctx, c, api, &o) })
		},
	}
	o.add(cmd.Flags())
	return cmd
}

// add defines the flags.
func (o *sendFlags) add(f *pflag.FlagSet) {
	for _, s := range sendFields {
		switch name := flagName(s.field); s.kind {
		case aText:
			f.String(name, "", s.usage)
		case aMark:
			f.Bool(name, false, s.usage)
		default:
			f.StringArray(name, nil, s.usage)
		}
	}
	f.StringArrayVar(&o.to, "to", nil, "recipient; may be given several times")
	f.StringArray("var", nil, "value of a placeholder: NAME=VALUE; may be given several times")
	f.StringVar(&o.file, "file", "", "CSV file of recipients; the first row has the names of the columns")
	f.StringArrayVar(&o.columns, "column", nil,
		"what a column of the file is: 'HEADING=email', =name, =VARIABLE, or = to leave it out; may be given several times")
	f.BoolVar(&o.permissive, "permissive", false, "leave out recipients with mistakes")
	f.StringArrayVar(&o.attach, "attach", nil, "file to attach; may be given several times")
	f.StringArrayVar(&o.inline, "inline", nil, "image that the HTML shows as cid: and its file name; may be given "+
		"several times")
	f.StringVar(&o.user, "user", "", "user who sends, by name (default: the only one, or the one that init has added)")
	f.BoolVar(&o.dryRun, "dry-run", false, "send nothing, and say what would happen")
	f.BoolVar(&o.watch, "watch", false, "show each step when it happens, and wait until the end")
	f.DurationVar(&o.wait, "wait", time.Minute, "how long to wait for the end, without --watch")
}

// read makes the fields of a batch from the flags that were given.
func (o *sendFlags) read(f *pflag.FlagSet) (err error) {
	o.form = map[string]string{}
	recipients := len(o.to)
	for _, s := range sendFields {
		name := flagName(s.field)
		if !f.Changed(name) {
			continue
		}
		if s.kind == aText || s.kind == aMark {
			o.form[s.field] = f.Lookup(name).Value.String()
			continue
		}
		list, _ := f.GetStringArray(name) // add has defined it as one
		if s.field == "cc" || s.field == "bcc" {
			recipients += len(list)
		}
		o.form[s.field] = strings.Join(list, ", ")
		if s.kind == aMap {
			if o.form[s.field], err = asObject(name, list); err != nil {
				return err
			}
		}
	}
	if len(o.columns) > 0 {
		if o.form["columns"], err = asObject("column", o.columns); err != nil {
			return err
		}
	}
	vars, _ := f.GetStringArray("var")
	if o.vars, err = named("--var", vars, "=", "give NAME=VALUE"); err != nil {
		return err
	}
	if o.form["text"] == "" && o.form["html"] == "" && o.form["template"] == "" {
		o.form["text"] = "This message was sent by safedelivr send."
	}
	return o.check(recipients)
}

// asObject returns values that are given as NAME=VALUE as a JSON object.
func asObject(flag string, list []string) (string, error) {
	values, err := named("--"+flag, list, "=", "give NAME=VALUE")
	raw, _ := json.Marshal(values) // never an error: words
	return string(raw), err
}

// check reports what is missing or does not go together.
func (o *sendFlags) check(recipients int) error {
	written := o.form["from"] != "" && o.form["subject"] != ""
	switch {
	case !written && o.form["template"] == "" || len(o.to) == 0 && o.file == "":
		return wrongUsage("--from, --to and --subject are needed; for example: safedelivr send --from shop@example.com " +
			"--to ann@example.com --subject 'It works'")
	case recipients > maxSendTo:
		return wrongUsage("--to, --cc, --bcc: at most %d recipients; send more with --file or POST /v1/batches", maxSendTo)
	case len(o.to) > 0 && o.file != "":
		return wrongUsage("--file: give either a file or --to")
	case len(o.columns) > 0 && o.file == "":
		return wrongUsage("--column needs a --file")
	case len(o.vars) > 0 && o.file != "":
		return wrongUsage("--var: with a --file the columns are the variables")
	}
	return nil
}

// printTime prints when the mail of a scheduled batch is sent.
func printTime(c *cli, a *client.Accepted) {
	what, at := "It", a.DeliverAt
	if a.OwnTimes != nil {
		what, at = "The first mail", a.OwnTimes.First
	}
	fmt.Fprintf(c.out, "%s is sent at %s. safedelivr batch cancel %s withdraws it.\n", what, at.Format(time.RFC3339), a.ID)
}

func send(ctx context.Context, c *cli, api *operator, o *sendFlags) error {
	u, err := api.sender(ctx, o.user)
	if err != nil {
		return err
	}
	api = api.as(u.ID)
	query := url.Values{}
	if o.permissive {
		query.Set("mode", "permissive")
	}
	if o.dryRun {
		var plan client.Plan
		query.Set("dry_run", "true")
		if err := o.post(ctx, api, query, &plan); err != nil {
			return err
		}
		printPlan(c, &plan)
		return nil
	}
	var a client.Accepted
	if err := o.post(ctx, api, query, &a); err != nil {
		return err
	}
	fmt.Fprintf(c.out, "batch %s of %s: accepted for %s\n", a.ID, u.Name, count(a.Recipients, "recipient"))
	printRejected(c, &a)
	switch {
	case !a.DeliverAt.IsZero() || a.State == client.BatchScheduled:
		printTime(c, &a)
	case !api.serves:
		fmt.Fprintln(c.out, "No server is running: the message is stored, and sent when safedelivr serve runs.")
	case o.file == "":
		return follow(ctx, c, api, a.ID, o)
	}
	return nil
}

// post posts the batch as a form, whose files are read while they are sent, and decodes the answer into out.
func (o *sendFlags) post(ctx context.Context, api *operator, query url.Values, out any) error {
	r, w := io.Pipe()
	parts, written := multipart.NewWriter(w), make(chan error, 1)
	go func() {
		err := o.write(parts)
		_ = w.CloseWithError(err) // the reader of the pipe gets the error
		written <- err
	}()
	err := api.Call(ctx, http.MethodPost, client.Path("batches"), query, r, out,
		client.ContentType(parts.FormDataContentType()))
	_ = r.Close() // the writer stops if the answer came early
	if wrong := <-written; wrong != nil && !errors.Is(wrong, io.ErrClosedPipe) {
		return wrong
	}
	return inFile(err, o)
}

// write writes the form: its fields, the attachments, and then the recipients.
func (o *sendFlags) write(w *multipart.Writer) error {
	for name, value := range o.form {
		if err := w.WriteField(name, value); err != nil {
			return err
		}
	}
	for i, path := range slices.Concat(o.attach, o.inline) {
		name := filepath.Base(path)
		about := mime.FormatMediaType("form-data", map[string]string{"name": "attachments", "filename": name})
		header := textproto.MIMEHeader{"Content-Disposition": {about}}
		if kind, _, err := mime.ParseMediaType(mime.TypeByExtension(filepath.Ext(path))); err == nil {
			header.Set("Content-Type", kind)
		}
		if i >= len(o.attach) { // the HTML may show it
			header.Set("Content-ID", "<"+name+">")
		}
		part, err := w.CreatePart(header)
		if err == nil {
			err = copyFile(part, path)
		}
		if err != nil {
			return fmt.Errorf("the file cannot be sent: %w", err)
		}
	}
	if o.file != "" {
		part, err := w.CreatePart(textproto.MIMEHeader{
			"Content-Disposition": {`form-data; name="to"; filename="recipients.csv"`}, "Content-Type": {"text/csv"},
		})
		if err == nil {
			err = copyFile(part, o.file)
		}
		return errors.Join(err, w.Close())
	}
	part, err := w.CreateFormFile("to", "recipients.ndjson")
	if err != nil {
		return err
	}
	lines := json.NewEncoder(part)
	for _, to := range o.to {
		if err := lines.Encode(map[string]any{"email": to, "vars": o.vars}); err != nil {
			return err
		}
	}
	return w.Close()
}

// copyFile copies a file to w.
func copyFile(w io.Writer, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(w, f)
	return err
}

// inFile names the recipients of a file in the mistakes of a request.
func inFile(err error, o *sendFlags) error {
	var e *client.Error
	if o.file == "" || !errors.As(err, &e) {
		return err
	}
	for i := range e.Fields {
		f := &e.Fields[i]
		rest, _ := strings.CutPrefix(f.Pointer, "/to/")
		number, _, _ := strings.Cut(rest, "/")
		if index, err := strconv.Atoi(number); err == nil {
			f.Pointer, f.Detail = "/file", fmt.Sprintf("recipient %d: %s", index+1, f.Detail)
		} else if f.Pointer == "/to" {
			f.Pointer = "/file"
		}
	}
	return e
}

// printedRejected is how many rejected recipients send prints.
const printedRejected = 10

// printRejected prints the first recipients that were left out.
func printRejected(c *cli, a *client.Accepted) {
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

// follow waits until all recipients of a small batch have an end, and prints their stories.
func follow(ctx context.Context, c *cli, api *operator, batch string, o *sendFlags) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	end := time.Now().Add(o.wait)
	printed := map[string]bool{}
	for range models.Every(ctx, 200*time.Millisecond) {
		logs, err := first(api.Logs(ctx, batch, client.LogOptions{}), maxSendTo)
		if err != nil {
			return err
		}
		waiting, failed := 0, false
		for i := range logs {
			l := &logs[i]
			if l.State == client.Queued || l.State == client.Sent {
				waiting++
			}
			failed = failed || l.State == client.Failed
			if o.watch {
				if err := printNew(ctx, c, api, l, printed); err != nil {
					return err
				}
			}
		}
		if waiting > 0 && (o.watch || time.Now().Before(end)) {
			continue
		}
		if err := printStories(ctx, c, api, logs); err != nil {
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
func printNew(ctx context.Context, c *cli, api *operator, l *client.Log, printed map[string]bool) error {
	story, err := api.Log(ctx, l.ID)
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
func printStories(ctx context.Context, c *cli, api *operator, logs []client.Log) error {
	for i := range logs {
		story, err := api.Log(ctx, logs[i].ID)
		if err != nil {
			return err
		}
		fmt.Fprintln(c.out)
		printStory(c.out, &story)
	}
	return nil
}
