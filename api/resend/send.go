package resend

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
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
	var id models.ID
	err := r.Once(digest(email), func(repeat service.Repeat) (err error) {
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
	for i, email := range emails {
		if permissive {
			break
		}
		if _, err := accept(r, email, nil); err != nil {
			return dialect.Answer{}, at(i, err)
		}
	}
	data, mistakes := []created{}, []mistake{}
	err := r.Once(digest(emails), func(repeat service.Repeat) error {
		for i, email := range emails {
			one := repeat
			one.Key, one.Hash = repeat.Key+"/"+strconv.Itoa(i), digest(email)
			if len(one.Key) > maxKey {
				sum := sha256.Sum256([]byte(one.Key))
				one.Key = hex.EncodeToString(sum[:])
			}
			id, err := accept(r, email, &one)
			var e *problem.Error
			if ok := asProblem(err, &e); permissive && ok && e.Kind.Status() < 500 && e.Kind != problem.TooMany {
				_, body := fail(e)
				mistakes = append(mistakes, mistake{i, body.(failure).Message}) //nolint:forcetypeassert // it is one
				continue
			}
			if err != nil {
				return at(i, err)
			}
			data = append(data, created{id.String()})
		}
		return nil
	})
	body := map[string]any{"data": data}
	if permissive {
		body["errors"] = mistakes
	}
	return dialect.Answer{Body: body}, err
}

const maxKey = 255

func asProblem(err error, e **problem.Error) bool {
	p, ok := err.(*problem.Error) //nolint:errorlint // service returns it as it is
	*e = p
	return ok
}

// at adds the index of an email to the text of its error.
func at(i int, err error) error {
	var e *problem.Error
	if asProblem(err, &e) && len(e.Fields) > 0 {
		e.Fields[0].Detail += fmt.Sprintf(" (email %d)", i)
	}
	return err
}

func digest(v any) string {
	sum := sha256.Sum256(dialect.Canonical(v))
	return hex.EncodeToString(sum[:])
}

// accept stores an email. Without a repeat it only checks it.
func accept(r *dialect.Request, email dialect.Object, repeat *service.Repeat) (models.ID, error) {
	in := r.Service.NewIntake(r.Context(), r.Who)
	defer in.Close()
	if err := read(in, email); err != nil {
		return models.ID{}, err
	}
	if repeat == nil {
		_, err := r.Service.DryRunAccept(r.Context(), r.Who, in)
		return models.ID{}, err
	}
	a, _, err := r.Service.Accept(r.Context(), r.Who, in, *repeat)
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
	vars, err := readTemplate(in, email)
	if err != nil {
		return err
	}
	if err := in.AddContent(len(b.Subject) + len(b.Text) + len(b.HTML)); err != nil {
		return err
	}
	list := make([]intake.Recipient, len(to))
	for i := range to {
		list[i].Email = to[i]
	}
	if len(list) > 0 {
		list[0].Vars = vars
	}
	return in.Read(intake.Of(list...))
}

// readHeaders reads the header fields. Those that belong to the gateway are left out.
func readHeaders(in *intake.Intake, email dialect.Object) error {
	var headers map[string]json.RawMessage
	if raw := email.Raw("headers"); raw != nil && json.Unmarshal(raw, &headers) != nil {
		return invalid("headers", "It must be an object.")
	}
	for name := range headers {
		value := strings.TrimSpace(models.OneLine(dialect.Object(headers).Text(name)))
		if value != "" && !intake.IsReserved(name) {
			in.Batch.Headers = append(in.Batch.Headers, models.Header{Name: name, Value: intake.Literal(value)})
		}
	}
	slices.SortFunc(in.Batch.Headers, func(a, b models.Header) int { return strings.Compare(a.Name, b.Name) })
	return nil
}

var tagWord = regexp.MustCompile(`^[A-Za-z0-9_-]{1,256}$`)

// readTags reads tags, which have a name and a value. Symfony writes them as {name: value}.
func readTags(in *intake.Intake, email dialect.Object) error {
	var tags []dialect.Object
	if raw := email.Raw("tags"); raw != nil && json.Unmarshal(raw, &tags) != nil {
		return invalid("tags", "It must be a list of objects with a name and a value.")
	}
	in.Batch.Metadata = map[string]string{}
	for _, tag := range tags {
		pairs := map[string]string{}
		if name := tag.Text("name"); name != "" {
			pairs[name] = tag.Text("value")
		} else {
			for name := range tag {
				pairs[name] = tag.Text(name)
			}
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
	var list []dialect.Object
	if raw := email.Raw("attachments"); raw != nil && json.Unmarshal(raw, &list) != nil {
		return invalid("attachments", "It must be a list of objects.")
	}
	var files dialect.Files
	for _, a := range list {
		if a.Raw("path") != nil {
			return invalid("attachments", "Safedelivr does not fetch files from a path. Send their content.")
		}
		data, ok := a.Bytes("content")
		if !ok {
			return invalid("attachments", "content must be base64 or a list of bytes.")
		}
		kind, id := a.Text("content_type", "contentType"), a.Text("content_id", "contentId", "inline_content_id")
		if err := files.Attach(in, a.Text("filename"), kind, strings.Trim(id, "<>"), bytes.NewReader(data)); err != nil {
			return err
		}
	}
	in.Batch.HTML = files.Rewrite(in.Batch.HTML)
	return nil
}

// readTemplate reads the name of a template and its values.
func readTemplate(in *intake.Intake, email dialect.Object) (map[string]string, error) {
	var template struct {
		ID        string
		Variables map[string]json.RawMessage
	}
	raw := email.Raw("template")
	if raw == nil {
		return nil, nil //nolint:nilnil // there is none
	}
	if json.Unmarshal(raw, &template) != nil || template.ID == "" {
		return nil, invalid("template", "It must have an id.")
	}
	in.Batch.Template, in.Batch.Subject, in.Batch.Text, in.Batch.HTML = template.ID, "", "", ""
	vars := map[string]string{}
	for name := range template.Variables {
		vars[name] = dialect.Object(template.Variables).Text(name)
	}
	return vars, nil
}
