package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/smtp"
	"os"
	"slices"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// leastOfSMTP is how much of the speed of the native API SMTP should reach.
const leastOfSMTP = 0.7

// way is a way by which an application hands over a single mail.
type way struct {
	title string
	post  func(r *rig, i int) error
}

// jsonWay is a way by HTTP and JSON. The text has the number of the recipient, and its words.
func jsonWay(title, path, text string) way {
	return way{title, func(r *rig, i int) error {
		return r.hand(path, "application/json", fmt.Sprintf(text, i, mailText))
	}}
}

const mailText = "Dear customer, your order is on its way."

var ways = []way{
	jsonWay("native API", "/v1/batches",
		`{"from":"shop@bench.test","to":["user%d@bench.test"],"subject":"Your order","text":%q}`),
	{"SMTP, kept connections", (*rig).handSMTP}, // what follows it is not compared with the aim
	{"native API, each with an Idempotency-Key", func(r *rig, i int) error {
		return r.hand("/v1/batches", "application/json", fmt.Sprintf(
			`{"from":"shop@bench.test","to":["user%d@bench.test"],"subject":"Your order","text":%q}`, i, mailText),
			"Idempotency-Key", models.NewUserID())
	}},
	{"API of Mailgun", func(r *rig, i int) error {
		return r.hand("/v3/bench.test/messages", "application/x-www-form-urlencoded",
			fmt.Sprintf("from=shop@bench.test&to=user%d@bench.test&subject=Your+order&text=%s", i, mailText))
	}},
	jsonWay("API of Resend", "/emails",
		`{"from":"shop@bench.test","to":"user%d@bench.test","subject":"Your order","text":%q}`),
	jsonWay("API of Postmark", "/email",
		`{"From":"shop@bench.test","To":"user%d@bench.test","Subject":"Your order","TextBody":%q}`),
	jsonWay("API of SendGrid", "/v3/mail/send", `{"from":{"email":"shop@bench.test"},"subject":"Your order",`+
		`"personalizations":[{"to":[{"email":"user%d@bench.test"}]}],"content":[{"type":"text/plain","value":%q}]}`),
}

// ways measures how fast single mails are accepted by each way. The ways take turns, on one process.
func (b *bench) ways(be *backend) error {
	const title = "accept, 1 recipient per mail"
	fmt.Fprintln(os.Stderr, be.title+":", title)
	smtpAddr, err := freeAddr()
	if err != nil {
		return err
	}
	r, err := b.newRig(be, &rigOptions{latency: time.Hour, concurrency: 1, env: []string{
		"SAFEDELIVR_DIALECTS=mailgun,resend,postmark,sendgrid", "SAFEDELIVR_SMTP_LISTEN=" + smtpAddr}})
	if err != nil {
		return err
	}
	defer r.kill()
	r.smtp = make(chan *smtp.Client, b.conns)
	for range b.conns {
		c, err := r.dialSMTP(smtpAddr)
		if err != nil {
			return err
		}
		defer c.Close()
		r.smtp <- c
	}
	posts := b.conns * b.singles / 2
	loads, cpu := make([][]load, len(ways)), make([]time.Duration, len(ways))
	for round := range 1 + b.runs { // the first one opens connections and fills caches
		for w := range ways {
			before := r.serve.cpu()
			l, err := each(posts, b.conns, func(i int) error { return ways[w].post(r, i) })
			if err != nil {
				return fmt.Errorf("%s: %w\n%s", ways[w].title, err, r.output())
			}
			if round > 0 {
				loads[w] = append(loads[w], l)
				cpu[w] += r.serve.cpu() - before
			}
		}
	}
	var failed error
	rates := make([]float64, len(ways))
	for w := range ways {
		slices.SortFunc(loads[w], func(a, b load) int { return cmp.Compare(a.took, b.took) })
		l := loads[w][len(loads[w])/2]
		rates[w] = l.rate(posts)
		spent := float64(cpu[w].Microseconds()) / float64(posts*b.runs)
		detail := fmt.Sprintf("p50 %s, p99 %s, %d connections; %.0f µs of processor time per mail",
			short(l.quantile(0.5)), short(l.quantile(0.99)), b.conns, spent)
		line := b.report.add(be, title+": "+ways[w].title, rates[w], "mails/s", detail, base{ways[0].title, rates[0]})
		if w == 1 {
			failed = line.atLeast(leastOfSMTP)
		}
	}
	return failed
}

// hand posts a request with the key of the user as a password.
func (r *rig) hand(path, kind, body string, header ...string) error {
	q, err := http.NewRequestWithContext(r.b.ctx, http.MethodPost, "http://"+r.addr+path, bytes.NewReader([]byte(body)))
	if err != nil {
		return err
	}
	q.Header.Set("Content-Type", kind)
	q.Header.Set("Authorization", "Bearer "+r.secret)
	for i := 0; i+1 < len(header); i += 2 {
		q.Header.Set(header[i], header[i+1])
	}
	resp, err := r.http.Do(q)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if resp.StatusCode >= http.StatusMultipleChoices {
		return fmt.Errorf("%s: %s", resp.Status, answer)
	}
	return err
}

// dialSMTP returns a connection on which the user has logged in.
func (r *rig) dialSMTP(addr string) (*smtp.Client, error) {
	c, err := smtp.Dial(addr)
	if err != nil {
		return nil, err
	}
	host, _, _ := net.SplitHostPort(addr)
	return c, c.Auth(smtp.PlainAuth("", "bench", r.secret, host))
}

// handSMTP sends a message on a connection that is free.
func (r *rig) handSMTP(i int) error {
	c := <-r.smtp
	defer func() { r.smtp <- c }()
	to := fmt.Sprintf("user%d@bench.test", i)
	if err := cmp.Or(c.Mail("shop@bench.test"), c.Rcpt(to)); err != nil {
		return err
	}
	w, err := c.Data()
	if err != nil {
		return err
	}
	// Equal bytes would be the same mail.
	const message = "From: shop@bench.test\r\nTo: %s\r\nSubject: Your order\r\nMessage-ID: <%d.%d@bench.test>\r\n\r\n%s\r\n"
	_, err = fmt.Fprintf(w, message, to, i, time.Now().UnixNano(), mailText)
	return errors.Join(err, w.Close())
}
