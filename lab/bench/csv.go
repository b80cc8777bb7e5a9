package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/safedelivr/safedelivr/client"
)

// inList is the part of the recipients of a file that is on the suppression list: one in so many.
const inList = 100

// csv measures a batch from a CSV file of recipients and a template in Liquid. Its user has a long suppression list
// with some of them. It measures the same with plain placeholders.
func (b *bench) csv(be *backend) error {
	title := fmt.Sprintf("template in Liquid, CSV of %s rows, suppression list of %s",
		thousands(int64(b.rows)), thousands(suppressedList))
	fmt.Fprintln(os.Stderr, be.title+":", title)
	plain, err := b.csvRun(be, b.rows, "<p>Dear <b>{{first}}</b>, order {{order}} is on its way.</p>")
	if err != nil {
		return err
	}
	const liquid = `<p>Dear <b>{{ first | default: "customer" | capitalize }}</b>, order {{order}} ` +
		`{% if express == "yes" %}comes <i>tomorrow</i>{% else %}is on its way{% endif %}.</p>`
	logic, err := b.csvRun(be, b.rows, liquid)
	if err != nil {
		return err
	}
	tenth, err := b.csvRun(be, b.rows/10, liquid)
	if err != nil {
		return err
	}
	const name = "plain placeholders"
	b.report.add(be, title+": accept", logic.accept, "recipients/s", "one post, one run", base{name, plain.accept})
	b.report.add(be, title+": accepted to provider", logic.dispatch, "recipients/s",
		fmt.Sprintf("%s suppressed recipients get nothing", thousands(int64(b.rows/inList))), base{name, plain.dispatch})
	b.report.add(be, title+": peak memory", logic.peak, "MB", "without events; one run",
		base{name, plain.peak}, base{"a tenth of the rows", tenth.peak})
	return nil
}

// csvResult is what a run with a file measured.
type csvResult struct{ accept, dispatch, peak float64 }

func (b *bench) csvRun(be *backend, rows int, html string) (res csvResult, err error) {
	r, err := b.newRig(be, &rigOptions{concurrency: atOnce, seed: b.putSuppressions("bench")})
	if err != nil {
		return res, err
	}
	defer r.close()
	in := client.NewTemplate{Name: "order"}
	in.Sender, in.Subject, in.HTML, in.Publish = "Shop <shop@bench.test>", "Your order {{order}}", html, true
	if _, err := r.client.CreateTemplate(b.ctx, in); err != nil {
		return res, err
	}
	begin := time.Now()
	a, err := r.client.CreateBatchFromFile(
		b.ctx, client.NewBatch{Template: "order"}, client.File{Name: "to.csv", Content: csvStream(rows)},
	)
	if err != nil {
		return res, fmt.Errorf("%w\n%s", err, r.output())
	}
	accepted := time.Now()
	suppressed := rows / inList
	if a.Recipients != rows || a.Suppressed != suppressed {
		return res, fmt.Errorf("%d recipients were accepted, %d of them suppressed", a.Recipients, a.Suppressed)
	}
	sent := int64(rows - suppressed)
	last, err := r.taken(sent)
	if err != nil {
		return res, err
	}
	if st, err := r.sim.Stats(b.ctx, ""); err != nil || st.Doubled != 0 || st.Distinct != sent {
		return res, fmt.Errorf("lost, doubled or sent although suppressed: %+v %w", st, errors.Join(err))
	}
	peak, err := r.serve.peak()
	return csvResult{
		accept:   float64(rows) / accepted.Sub(begin).Seconds(),
		dispatch: float64(sent) / last.Sub(accepted).Seconds(),
		peak:     float64(peak) / 1e6,
	}, err
}

// csvStream streams a file of n recipients without holding it in memory. One in inList is on the
// list of putSuppressions.
func csvStream(n int) io.Reader {
	r, w := io.Pipe()
	go func() {
		b := bufio.NewWriter(w)
		fmt.Fprint(b, "email,name,first,order,express\n")
		for i := range n {
			who := "user"
			if i%inList == inList-1 {
				who = "other"
			}
			fmt.Fprintf(b, "%s%d@bench.test,Person %d,P%d,%08d,%s\n", who, i, i, i, i, []string{"yes", "no"}[i%2])
		}
		_ = w.CloseWithError(b.Flush()) // the reader of the pipe gets the error
	}()
	return r
}
