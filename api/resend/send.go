package resend

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/api/dialect"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/intake"
	"github.com/safedelivr/safedelivr/service/problem"
)

const (
	maxBody   = 60 << 20 // 40 MB of a mail as base64, and more
	maxEmails = 100      // of a request
)

// send is POST /emails.
func send(r *dialect.Request) (dialect.Answer, error) {
	var email dialect.Object
	if err := dialect.ReadJSON(r, maxBody, &email); err != nil {
		return dialect.Answer{}, err
	}
	r.Ignore(email.Names(), known)
	var id models.ID
	err := r.Once(dialect.Digest(email), func(repeat service.Repeat) (err error) {
		id, err = accept(r, email, &repeat)
		return err
	})
	return dialect.Answer{Body: created{id.String()}, Batch: id}, err
}

// created is the answer to an email.
type created struct {
	ID string `json:"id"`
}

// mistake is an email of a request that was not accepted.
type mistake struct {
	Index   int    `json:"index"`
	Message string `json:"message"`
}

// sendBatch is POST /emails/batch. By default nothing is sent if one email has a mistake.
func sendBatch(r *dialect.Request) (dialect.Answer, error) {
	var emails []dialect.Object
	if err := dialect.ReadJSON(r, maxBody, &emails); err != nil {
		return dialect.Answer{}, err
	}
	if len(emails) == 0 || len(emails) > maxEmails {
		return dialect.Answer{}, invalid("emails", "A request has 1 to %d emails.", maxEmails)
	}
	permissive := r.Header.Get("X-Batch-Validation") == "permissive"
	ids, refused := make([]models.ID, len(emails)), make([]*problem.Error, len(emails))
	hashes := make([]string, len(emails))
	for i, email := range emails {
		r.Ignore(email.Names(), known)
		hashes[i] = dialect.Digest(email)
	}
	err := r.Each(dialect.Digest(emails), hashes, !permissive, func(i int, repeat *service.Repeat) (err error) {
		ids[i], err = accept(r, emails[i], repeat)
		if permissive && errors.As(err, &refused[i]) && dialect.Refused(refused[i]) {
			return nil
		}
		return at(i, err)
	})
	data, mistakes := []created{}, []mistake{}
	for i, e := range refused {
		if e == nil {
			data = append(data, created{ids[i].String()})
			continue
		}
		_, body := fail(e)
		mistakes = append(mistakes, mistake{i, body.(failure).Message}) //nolint:forcetypeassert // it is one
	}
	body := map[string]any{"data": data}
	if permissive {
		body["errors"] = mistakes
	}
	return dialect.Answer{Body: body}, err
}

// at adds the index of an email to the text of its error.
func at(i int, err error) error {
	var e *problem.Error
	if errors.As(err, &e) && len(e.Fields) > 0 {
		e.Fields[0].Detail += fmt.Sprintf(" (email %d)", i)
	}
	return err
}

var known = dialect.Among("from to cc bcc reply_to replyTo subject text html headers tags attachments template " +
	"topic_id scheduled_at scheduledAt")

// accept stores an email. Without a repeat it only checks it.
func accept(r *dialect.Request, email dialect.Object, repeat *service.Repeat) (models.ID, error) {
	a, err := r.Accept(repeat, func(in *intake.Intake) error { return read(in, email) })
	return a.ID, err
}

// read turns an email into a batch.
func read(in *intake.Intake, email dialect.Object) error {
	b := &in.Batch
	b.From, b.Subject = email.Text("from"), intake.Literal(email.Text("subject"))
	b.Text, b.HTML = intake.Literal(email.Text("text")), intake.Literal(email.Text("html"))
	var to []string
	for name, into := range map[string]*[]string{"to": &to, "cc": &b.CC, "bcc": &b.BCC, "reply_to": &b.ReplyTo} {
		list, ok := email.Texts(name, map[string]string{"reply_to": "replyTo"}[name])
		if !ok {
			return invalid(name, "It must be a text or a list of texts.")
		}
		*into = list
	}
	b.Together = true
	for _, step := range []func(*intake.Intake, dialect.Object) error{readHeaders, readTags, readTime, readFiles} {
		if err := step(in, email); err != nil {
			return err
		}
	}
	if raw := email.Raw("topic_id"); raw != nil {
		b.Category = email.Text("topic_id")
	}
	list := make([]intake.Recipient, len(to))
	for i := range to {
		list[i].Email = to[i]
	}
	if err := readTemplate(b, email, list); err != nil {
		return err
	}
	if err := in.AddContent(len(b.Subject) + len(b.Text) + len(b.HTML)); err != nil {
		return err
	}
	return in.Read(intake.Of(list...))
}

// readHeaders reads the header fields.
func readHeaders(in *intake.Intake, email dialect.Object) error {
	headers, ok := email.Object("headers")
	if !ok {
		return invalid("headers", "It must be an object.")
	}
	for _, name := range headers.Names() {
		dialect.AddHeader(&in.Batch, name, headers.Text(name), intake.Literal)
	}
	return nil
}

var tagWord = regexp.MustCompile(`^[A-Za-z0-9_-]{1,256}$`)

// readTags reads tags, which have a name and a value. Symfony writes them as {name: value}.
func readTags(in *intake.Intake, email dialect.Object) error {
	tags, ok := email.Objects("tags")
	if !ok {
		return invalid("tags", "It must be a list of objects with a name and a value.")
	}
	in.Batch.Metadata = map[string]string{}
	for _, tag := range tags {
		pairs := map[string]string{}
		if name := tag.Text("name"); name != "" {
			pairs[name] = tag.Text("value")
		} else {
			pairs = tag.Strings()
		}
		for name, value := range pairs {
			if !tagWord.MatchString(name) || value != "" && !tagWord.MatchString(value) {
				return invalid("tags", "Tags should only contain ASCII letters, numbers, underscores, or dashes.")
			}
			in.Batch.Metadata[name] = value
			if text := name + ":" + value; len(text) <= 255 && len(in.Batch.Tags) < 10 {
				in.Batch.Tags = append(in.Batch.Tags, text)
			}
		}
	}
	return nil
}

var inSome = regexp.MustCompile(`^in (\d{1,4}) ?(minutes?|mins?|m|hours?|h|days?|d)$`)

// timeOf reads a time: of ISO 8601, or "in 5 minutes".
func timeOf(text string) (string, error) {
	if found := inSome.FindStringSubmatch(strings.ToLower(strings.TrimSpace(text))); found != nil {
		n, _ := strconv.Atoi(found[1]) // it has digits only
		unit := map[byte]time.Duration{'m': time.Minute, 'h': time.Hour, 'd': 24 * time.Hour}[found[2][0]]
		return time.Now().Add(time.Duration(n) * unit).UTC().Format(time.RFC3339), nil
	}
	const spaced = "2006-01-02 15:04:05.999999999-07"
	for _, form := range []string{time.RFC3339Nano, spaced + ":00", spaced} {
		if at, err := time.Parse(form, text); err == nil {
			if !at.After(time.Now()) {
				return "", nil
			}
			return at.UTC().Format(time.RFC3339), nil
		}
	}
	return "", invalid("scheduled_at", "It must be a time of ISO 8601 with its zone, or like `in 5 minutes`.")
}

func readTime(in *intake.Intake, email dialect.Object) (err error) {
	if text := email.Text("scheduled_at", "scheduledAt"); text != "" {
		in.Batch.DeliverAt, err = timeOf(text)
	}
	return err
}

// readFiles reads the attachments.
func readFiles(in *intake.Intake, email dialect.Object) error {
	var files dialect.Files
	return files.AttachAll(in, email, "attachments", "content", "filename", func(a dialect.Object) (kind, id string, err error) {
		if a.Raw("path") != nil {
			err = invalid("attachments", "Safedelivr does not fetch files from a path. Send their content.")
		}
		return a.Text("content_type", "contentType"), a.Text("content_id", "contentId", "inline_content_id"), err
	})
}

// readTemplate reads the name of a template and its values, which are those of the first recipient.
func readTemplate(b *intake.Batch, email dialect.Object, to []intake.Recipient) error {
	template, ok := email.Object("template")
	values, objects := template.Object("variables")
	if template == nil && ok {
		return nil
	}
	if b.Template = template.Text("id"); !ok || !objects || b.Template == "" {
		return invalid("template", "It must have an id, and variables must be an object.")
	}
	b.Subject, b.Text, b.HTML = "", "", ""
	if len(to) > 0 {
		values.Fill(&to[0])
	}
	return nil
}
