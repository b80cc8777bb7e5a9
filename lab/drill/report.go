package drill

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// Report is the result of a run.
type Report struct {
	Seed    uint64   `json:"seed"`
	Store   string   `json:"store"`
	Broker  string   `json:"broker"`
	Results []Result `json:"scenarios"`
	Seconds float64  `json:"seconds"`
	Good    bool     `json:"good"`
}

// Result is the result of a scenario. Lost and Doubled are counted from the copies at the providers.
type Result struct {
	Name      string   `json:"name"`
	NA        string   `json:"not_applicable,omitempty"` // why it is not possible here
	Accepted  int      `json:"accepted"`
	Delivered int      `json:"delivered"`
	Failed    int      `json:"failed"`          // for a reason that is known
	Held      int      `json:"held"`            // the outcome is unknown, and nothing is sent again
	Lost      int      `json:"lost"`            // no copy anywhere, and no log that says so
	Doubled   int      `json:"doubled"`         // more than one copy was delivered
	Unwanted  int      `json:"suppressed_sent"` // mails that were sent although their address was suppressed
	FirstMail float64  `json:"first_mail_s,omitempty"`
	Normal    float64  `json:"normal_s,omitempty"`
	Late      float64  `json:"scheduled_late_p99_s,omitempty"` // 99 % of the scheduled mail left within it, after its time
	Seconds   float64  `json:"seconds"`
	Mistakes  []string `json:"mistakes,omitempty"` // sums that do not add up, states that were not reached
}

// Good reports whether nothing was lost, doubled, or sent to a suppressed address, and everything adds up.
func (r *Result) Good() bool {
	return r.Lost == 0 && r.Doubled == 0 && r.Unwanted == 0 && len(r.Mistakes) == 0
}

// String returns the result in one line.
func (r *Result) String() string {
	if !r.Good() {
		return fmt.Sprintf("WRONG: lost %d, doubled %d, sent although suppressed %d %s",
			r.Lost, r.Doubled, r.Unwanted, r.Mistakes)
	}
	return fmt.Sprintf("ok: accepted %d, delivered %d, failed %d, held %d, lost 0, doubled 0",
		r.Accepted, r.Delivered, r.Failed, r.Held)
}

// maxMistakes is how many mistakes a result keeps.
const maxMistakes = 10

func (r *Result) wrong(format string, args ...any) {
	if len(r.Mistakes) < maxMistakes {
		r.Mistakes = append(r.Mistakes, fmt.Sprintf(format, args...))
	}
}

// notes explain the columns of the table.
const notes = `
first mail: from the fault to the first mail through another provider, or to the first mail if no provider failed
normal: from the end of the fault until every provider accepts mail and new mail is delivered
late: 99 % of the scheduled mail left within that after its time
held: the outcome is unknown or was never reported; the log says so, and nothing is sent again automatically
`

// Print prints the results as a table.
func (r *Report) Print(to io.Writer) error {
	fmt.Fprintln(to)
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "scenario\taccepted\tdelivered\tfailed\theld\tlost\tdoubled\tfirst mail\tnormal\tlate\t\t")
	for i := range r.Results {
		x := &r.Results[i]
		if x.NA != "" {
			fmt.Fprintf(w, "%s%s\tn/a\t\n", x.Name, strings.Repeat("\t", 9))
			continue
		}
		verdict := "ok"
		if !x.Good() {
			verdict = "WRONG"
		}
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%d\t%d\t%s\t%s\t%s\t%s\t\n", x.Name, x.Accepted, x.Delivered, x.Failed, x.Held,
			x.Lost, x.Doubled, seconds(x.FirstMail), seconds(x.Normal), seconds(x.Late), verdict)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for i := range r.Results {
		for _, m := range r.Results[i].Mistakes {
			fmt.Fprintf(to, "WRONG  %s: %s\n", r.Results[i].Name, m)
		}
	}
	_, err := fmt.Fprintf(to, "%s%.0f s in all, seed %d\n", notes, r.Seconds, r.Seed)
	return err
}

func seconds(s float64) string {
	if s <= 0 {
		return "–"
	}
	return fmt.Sprintf("%.2f s", s)
}

// round returns a duration in seconds, to hundredths.
func round(d time.Duration) float64 {
	return float64(d.Round(10*time.Millisecond)) / float64(time.Second)
}
