package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
)

// table is a list that is being printed. It is printed as lines with cells below each other; an empty cell is a dash.
// With --json it is one JSON object for each row; an empty cell is null.
type table struct {
	out  io.Writer
	text *tabwriter.Writer
	json *bytes.Buffer // nil without --json
	keys []string      // of the objects
}

// newTable begins a list with the names of its columns, separated by tabs. The keys of the objects are made from them.
func (c *cli) newTable(head string) *table {
	t := &table{out: c.out}
	if c.json {
		t.json = new(bytes.Buffer)
		t.keys = strings.Split(keys.Replace(strings.ToLower(head)), "\t")
		return t
	}
	t.text = tabwriter.NewWriter(c.out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(t.text, head)
	return t
}

// keys makes keys of JSON from the names of columns in lower case.
var keys = strings.NewReplacer(" ", "_", "/s", "_per_second")

// row adds a row. A cell may be a time, whose zero value is empty.
func (t *table) row(cells ...any) {
	if t.json != nil {
		t.object(cells)
		return
	}
	for i, cell := range cells {
		if i > 0 {
			fmt.Fprint(t.text, "\t")
		}
		switch v := cell.(type) {
		case time.Time:
			cell = timeOrDash(v)
		case shown:
			cell = v.text
		}
		if cell == "" {
			cell = "-"
		}
		fmt.Fprint(t.text, cell)
	}
	fmt.Fprintln(t.text)
}

// object adds a row as a JSON object with the keys in the order of the columns.
func (t *table) object(cells []any) {
	for i, cell := range cells {
		switch v := cell.(type) {
		case time.Time:
			if cell = v.UTC(); v.IsZero() {
				cell = nil
			}
		case shown:
			cell = v.value
		default:
			if fmt.Sprint(v) == "" {
				cell = nil
			}
		}
		raw, _ := json.Marshal(cell) // never an error: times, numbers and words
		fmt.Fprintf(t.json, "%c%q:%s", "{,"[min(i, 1)], t.keys[i], raw)
	}
	t.json.WriteString("}\n")
}

// flush prints the rows that were added.
func (t *table) flush() error {
	if t.json == nil {
		return t.text.Flush()
	}
	_, err := t.json.WriteTo(t.out)
	return err
}

// shown is a cell whose text is not its value in JSON.
type shown struct {
	text  string
	value any
}

// listed is a cell with several words; none is the text if there are none.
func listed[S ~string](list []S, none string) shown {
	words := make([]string, len(list)) // not nil: an empty list in JSON
	for i, w := range list {
		words[i] = string(w)
	}
	return shown{cmp.Or(strings.Join(words, ","), none), words}
}

// The meaning of --json at a command that prints a list, and at one that shows one thing.
const (
	jsonRows   = "print a JSON object for each row"
	jsonObject = "print one JSON object, as the API has it"
)

// withJSON adds the flag --json to a command.
func (c *cli) withJSON(cmd *cobra.Command, usage string) *cobra.Command {
	cmd.Flags().BoolVar(&c.json, "json", false, usage)
	return cmd
}

func timeOrDash(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format(time.RFC3339)
}

// count returns a number with its noun, like "1 batch" or "2 batches".
func count[N int | int64](n N, noun string) string {
	if n != 1 {
		if strings.HasSuffix(noun, "ch") {
			noun += "e"
		}
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}

// printStory prints the story of a recipient: the result, and each step with its time in UTC.
func printStory(w io.Writer, l *client.Log) {
	state := string(l.State)
	if l.ReasonText != "" {
		state += ": " + l.ReasonText
	}
	to := cmp.Or(l.Email, "(erased)")
	if l.Role != "" {
		to += " (" + l.Role + ")"
	}
	fmt.Fprintf(w, "%s  %s\n", to, state)
	fmt.Fprintf(w, "  log %s, subject %q\n", l.ID, l.Subject)
	for i := range l.Timeline {
		fmt.Fprintln(w, "  "+step(&l.Timeline[i]))
	}
	if l.Waits != nil && !l.Waits.Until.IsZero() {
		fmt.Fprintln(
			w,
			"  until "+l.Waits.Until.UTC().Format(time.RFC3339)+" at the latest; see again: safedelivr log show "+l.ID,
		)
	}
}

// step returns a step of a story as a line.
func step(m *client.Moment) string {
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
		if m.Class != string(models.Accepted) && m.Reason != "" {
			text += ", " + models.Reason(m.Reason).Words()
		}
		if m.TookMS > 0 {
			text += fmt.Sprintf(", after %.0f ms", m.TookMS)
		}
	case "event":
		text = fmt.Sprintf("%s reported: %s", m.Provider, m.Event)
		if m.Reason != "" {
			text += ", " + models.Reason(m.Reason).Words()
		}
	case "end", "cancel", "release", "repeat":
		if m.Because != "" {
			text += ": " + m.Because
		}
	}
	if m.Text != "" {
		text += " (" + m.Text + ")"
	}
	return at + "  " + text
}

// printPlan prints what would happen to a message.
func printPlan(c *cli, p *client.Plan) {
	fmt.Fprintf(c.out, "nothing was sent; accepted would be %s, %d repeated, %d suppressed; lane %s, expires at %s\n",
		count(p.Recipients, "recipient"), p.Duplicates, p.Suppressed, p.Lane, p.ExpiresAt.Format(time.RFC3339))
	for i := range p.Routes {
		fmt.Fprintf(c.out, "  %s: %s\n", count(p.Routes[i].Recipients, "recipient"), p.Routes[i].Text)
	}
	if p.Seconds != nil {
		least := time.Duration(*p.Seconds * float64(time.Second)).Round(time.Second)
		fmt.Fprintf(c.out, "  at the limits of the providers it takes at least %s\n", least)
	}
	if p.Cost != nil {
		fmt.Fprintf(c.out, "  it costs %s %.2f to %.2f\n", p.Cost.Currency, p.Cost.Least, p.Cost.Most)
	}
}
