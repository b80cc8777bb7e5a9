package drill

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime/multipart"
	"net"
	"net/http"
	"net/smtp"
	"net/textproto"
	"strconv"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// applicationMails is the number of mails in a request of an application.
const applicationMails = 5

// applicationSubject begins the subject of all mail of applications.
const applicationSubject = "By "

// from is the sender of the drill's mail, and fromDomain its domain.
const (
	fromDomain = "rehearse.test"
	from       = "drill@" + fromDomain
)

// application is a program that sends mail by the API of another service, or by SMTP.
type application struct {
	via  string
	one  bool // each mail of a request is a batch of its own
	post func(ctx context.Context, s *senders, key, subject string, to []string) error
}

// senders send mail as each of the applications in turn, so that each way in has its share of every fault.
type senders struct {
	user       *account
	unanswered *unanswered
	accepted   map[string]int // recipients of the batches that were accepted, by subject
}

var applications = []application{
	{via: "mailgun", post: postMailgun},
	{via: "resend", one: true, post: postResend},
	{via: "postmark", one: true, post: postPostmark},
	{via: "sendgrid", post: postSendGrid},
	{via: "smtp", one: true, post: postSMTP},
}

// dialects are the APIs that the applications speak.
const dialects = "mailgun,resend,postmark,sendgrid"

// errRefused means that a request must not be repeated.
var errRefused = errors.New("refused")

// send has the next application send mail. It repeats the request until it is answered. Subjects say which mail of a
// request it is.
func (s *senders) send(ctx context.Context, n int) error {
	a, to := &applications[n%len(applications)], make([]string, applicationMails)
	for i := range to {
		to[i] = fmt.Sprintf("app%d-%d@applications.test", n, i)
	}
	key, subject := models.NewUserID(), fmt.Sprint(applicationSubject, a.via, " ", n)
	for ctx.Err() == nil {
		within, cancel := context.WithTimeout(ctx, acceptTime)
		err := a.post(within, s, key, subject, to)
		cancel()
		switch {
		case errors.Is(err, errRefused):
			return fmt.Errorf("%s: %w", a.via, err)
		case err != nil:
			s.unanswered.add(a.via, err)
			time.Sleep(100 * time.Millisecond)
			continue
		}
		if !a.one {
			s.accepted[subject] = len(to)
			return nil
		}
		for i := range to {
			s.accepted[fmt.Sprint(subject, ".", i)] = 1
		}
		return nil
	}
	return ctx.Err()
}

// addApplications adds the batches of the applications to those that a drill counts. Each request must have been stored
// once, with all of its recipients.
func (t *traffic) addApplications(ctx context.Context, res *Result, say say) error {
	before := len(t.all())
	if err := t.add(ctx, t.user, applicationSubject); err != nil {
		return err
	}
	left, by := maps.Clone(t.senders.accepted), map[string]int{}
	for _, b := range t.all()[before:] {
		stored, err := t.user.batch(ctx, b.id)
		if err != nil {
			return err
		}
		if n, ok := left[stored.Subject]; !ok || n != b.n {
			res.wrong("batch %s of %d recipients is %q: %d were accepted, or it is stored twice",
				b.id, b.n, stored.Subject, n)
		}
		delete(left, stored.Subject)
		by[stored.Via] += b.n
	}
	for subject, n := range left {
		res.wrong("the mail %q to %d was accepted and is not stored", subject, n)
	}
	if len(t.senders.accepted) > 0 {
		say("applications: %v", by)
	}
	return nil
}

// post has a request of an application answered.
func (s *senders) post(ctx context.Context, path, kind, key string, body io.Reader) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.user.client.URL(path), body)
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", kind)
	r.Header.Set("Idempotency-Key", key)
	r.SetBasicAuth("api", s.user.secret)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(resp.Body)
	switch status := resp.StatusCode; {
	case err != nil:
		return err
	case status < 300:
		return nil
	case status >= 500, status == http.StatusConflict, status == http.StatusUnauthorized,
		status == http.StatusTooManyRequests:
		return errors.New(resp.Status)
	default:
		return fmt.Errorf("%w: %s %s", errRefused, resp.Status, answer)
	}
}

func (s *senders) postJSON(ctx context.Context, path, key string, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return s.post(ctx, path, "application/json", key, bytes.NewReader(body))
}

// object is a JSON object.
type object map[string]any

func postMailgun(ctx context.Context, s *senders, key, subject string, to []string) error {
	var body bytes.Buffer
	form, vars := multipart.NewWriter(&body), object{}
	for i, address := range to {
		vars[address] = object{"n": i}
		_ = form.WriteField("to", address) // memory takes all
	}
	raw, err := json.Marshal(vars)
	if err != nil {
		return err
	}
	for _, f := range [][2]string{{"from", from}, {"subject", subject}, {"text", "Nothing to do, %recipient.n%."},
		{"o:tag", drillTag}, {"recipient-variables", string(raw)}} {
		_ = form.WriteField(f[0], f[1])
	}
	_ = form.Close()
	return s.post(ctx, "/v3/"+fromDomain+"/messages", form.FormDataContentType(), key, &body)
}

func postResend(ctx context.Context, s *senders, key, subject string, to []string) error {
	list := make([]object, len(to))
	for i, address := range to {
		list[i] = object{"from": from, "to": []string{address}, "subject": fmt.Sprint(subject, ".", i),
			"text": "Nothing to do.", "tags": []object{{"name": "kind", "value": drillTag}}}
	}
	return s.postJSON(ctx, "/emails/batch", key, list)
}

func postPostmark(ctx context.Context, s *senders, key, subject string, to []string) error {
	list := make([]object, len(to))
	for i, address := range to {
		list[i] = object{"From": from, "To": address, "Subject": fmt.Sprint(subject, ".", i),
			"TextBody": "Nothing to do.", "Tag": drillTag}
	}
	return s.postJSON(ctx, "/email/batch", key, list)
}

func postSendGrid(ctx context.Context, s *senders, key, subject string, to []string) error {
	list := make([]object, len(to))
	for i, address := range to {
		list[i] = object{"to": []object{{"email": address}}, "substitutions": object{"-n-": strconv.Itoa(i)}}
	}
	return s.postJSON(ctx, "/v3/mail/send", key, object{"from": object{"email": from}, "subject": subject,
		"content":          []object{{"type": "text/plain", "value": "Nothing to do, -n-."}},
		"personalizations": list, "categories": []string{drillTag}})
}

// postSMTP sends a message to each address on one connection. A message that is repeated is known by its bytes, because
// it has a Message-ID.
func postSMTP(ctx context.Context, s *senders, key, subject string, to []string) (err error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", s.user.smtp)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if until, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(until)
	}
	host, _, _ := net.SplitHostPort(s.user.smtp)
	c, err := smtp.NewClient(conn, host)
	if err != nil {
		return err
	}
	if err := c.Auth(smtp.PlainAuth("", "api", s.user.secret, host)); err != nil {
		return err // the key cannot be checked now
	}
	for i, address := range to {
		err := cmp.Or(c.Mail(from), c.Rcpt(address))
		if err == nil {
			const text = "From: %s\r\nTo: %s\r\nSubject: %s.%d\r\nMessage-ID: <%s.%d@%s>\r\nX-Mailgun-Tag: %s\r\n\r\n" +
				"Nothing to do.\r\n"
			err = sendData(c, fmt.Sprintf(text, from, address, subject, i, key, i, fromDomain, drillTag))
		}
		var reply *textproto.Error
		if errors.As(err, &reply) && reply.Code >= 500 {
			return fmt.Errorf("%w: %w", errRefused, err)
		}
		if err != nil {
			return err
		}
	}
	return c.Quit()
}

// sendData sends the content of a message.
func sendData(c *smtp.Client, content string) error {
	w, err := c.Data()
	if err != nil {
		return err
	}
	_, err = io.WriteString(w, content)
	return errors.Join(err, w.Close())
}
