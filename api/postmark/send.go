package postmark

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/api/dialect"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/intake"
	"github.com/safedelivr/safedelivr/service/mail"
	"github.com/safedelivr/safedelivr/service/operation"
	"github.com/safedelivr/safedelivr/service/problem"
)

const (
	maxBody     = 70 << 20 // 50 MB of a request, and more
	maxMessages = 500      // of a request

	maxAddresses = 50 // of a message
)

// send is POST /email and POST /email/withTemplate.
func send(r *dialect.Request) (dialect.Answer, error) {
	var message dialect.Object
	if err := dialect.ReadJSON(r, maxBody, &message); err != nil {
		return dialect.Answer{}, err
	}
	r.Ignore(message.Names(), known)
	var out result
	err := r.Once(dialect.Digest(message), func(repeat service.Repeat) (err error) {
		out, err = accept(r, message, &repeat)
		return err
	})
	id, _ := models.ParseBatchID(out.MessageID) // it is one, or there is none
	return dialect.Answer{Body: out, Batch: id}, err
}

// sendBatch is POST /email/batch, whose body is a list, and POST /email/batchWithTemplates. A mistake in a message is in
// its result, and the others are sent.
func sendBatch(r *dialect.Request) (dialect.Answer, error) {
	var raw json.RawMessage
	if err := dialect.ReadJSON(r, maxBody, &raw); err != nil {
		return dialect.Answer{}, err
	}
	var in struct{ Messages []dialect.Object }
	if json.Unmarshal(raw, &in) != nil && json.Unmarshal(raw, &in.Messages) != nil {
		return dialect.Answer{}, problem.New(problem.Malformed, "bad_json", "The body is not a list of messages.")
	}
	if len(in.Messages) == 0 || len(in.Messages) > maxMessages {
		return dialect.Answer{}, dialect.Invalid("messages", "too_many", "A request has 1 to %d messages.", maxMessages)
	}
	results, hashes := make([]result, len(in.Messages)), make([]string, len(in.Messages))
	for i, message := range in.Messages {
		r.Ignore(message.Names(), known)
		hashes[i] = dialect.Digest(message)
	}
	err := r.Each(dialect.Digest(raw), hashes, false, func(i int, repeat *service.Repeat) (err error) {
		results[i], err = accept(r, in.Messages[i], repeat)
		var e *problem.Error
		if errors.As(err, &e) && dialect.Refused(e) {
			_, results[i] = fail(e)
			return nil
		}
		return err
	})
	return dialect.Answer{Body: results}, err
}

var known = dialect.Among("From To Cc Bcc ReplyTo Subject TextBody HtmlBody Tag Headers TrackOpens TrackLinks " +
	"Metadata Attachments MessageStream TemplateId TemplateAlias TemplateModel")

// accept stores a message.
func accept(r *dialect.Request, message dialect.Object, repeat *service.Repeat) (result, error) {
	a, err := r.Accept(repeat, func(in *intake.Intake) error { return read(in, message) })
	if err != nil {
		return result{}, err
	}
	out := result{
		To: message.Text("To"), Cc: message.Text("Cc"), Bcc: message.Text("Bcc"), MessageID: a.ID.String(), Message: "OK",
		SubmittedAt: a.CreatedAt.UTC().Format(time.RFC3339Nano),
	}
	if a.Suppressed == 0 {
		return out, nil
	}
	list, err := inactives(r, a.ID)
	switch {
	case err != nil:
		return result{}, err
	case a.Suppressed == a.Recipients:
		return result{}, problem.New(problem.Invalid, "inactive_recipients",
			"You tried to send to recipient(s) that have been marked as inactive. Found inactive addresses: %s", list)
	}
	out.Message = "Message OK, but will not deliver to these inactive addresses: " + list
	return out, nil
}

// inactives lists the suppressed addresses of a message, and says why they are. Clients read them from this text.
func inactives(r *dialect.Request, id models.ID) (string, error) {
	page, err := r.Service.Mail.Logs(r.Context(), r.Who, id.String(), mail.LogFilter{Reason: models.Suppressed},
		operation.Page{Limit: maxAddresses})
	var list []string
	for i := range page.Logs {
		list = append(list, strings.ToLower(page.Logs[i].Email)) // as Postmark writes them
	}
	return strings.Join(list, ", ") + ". Inactive recipients are ones that have generated a hard bounce, a spam complaint, " +
		"or a manual suppression.", err
}

// read turns a message into a batch.
func read(in *intake.Intake, message dialect.Object) error {
	b := &in.Batch
	b.From, b.Together = message.Text("From"), true
	b.Subject = intake.Literal(message.Text("Subject"))
	b.Text, b.HTML = intake.Literal(message.Text("TextBody")), intake.Literal(message.Text("HtmlBody"))
	b.CC, b.BCC = intake.SplitAddresses(message.Text("Cc")), intake.SplitAddresses(message.Text("Bcc"))
	b.ReplyTo = intake.SplitAddresses(message.Text("ReplyTo"))
	dialect.AddTag(b, message.Text("Tag"))
	if b.Lane = string(models.Urgent); strings.HasPrefix(message.Text("MessageStream"), "broadcast") {
		b.Lane = string(models.Bulk)
	}
	b.TrackOpens = message.Text("TrackOpens") == "true"
	b.TrackClicks = !slices.Contains([]string{"", "None"}, message.Text("TrackLinks"))
	to := make([]intake.Recipient, 0, 1)
	for _, address := range intake.SplitAddresses(message.Text("To")) {
		to = append(to, intake.Recipient{Email: address})
	}
	for _, step := range []func() error{
		func() error { return readHeaders(b, message) },
		func() error { return readMetadata(b, message) },
		func() error { return readFiles(in, message) },
		func() error { return readTemplate(b, message, to) },
		func() error { return in.AddContent(len(b.Subject) + len(b.Text) + len(b.HTML)) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return in.Read(intake.Of(to...))
}

// readHeaders reads the header fields. Those for Postmark itself are left out.
func readHeaders(b *intake.Batch, message dialect.Object) error {
	headers, ok := message.Objects("Headers")
	if !ok {
		return dialect.Invalid("headers", "wrong_type", "It must be a list of objects with Name and Value.")
	}
	for _, h := range headers {
		if name := h.Text("Name"); !strings.HasPrefix(strings.ToLower(name), "x-pm-") {
			dialect.AddHeader(b, name, h.Text("Value"), intake.Literal)
		}
	}
	return nil
}

func readMetadata(b *intake.Batch, message dialect.Object) error {
	values, ok := message.Object("Metadata")
	if !ok {
		return dialect.Invalid("metadata", "wrong_type", "It must be an object.")
	}
	b.Metadata = values.Strings()
	return nil
}

// readFiles reads the attachments.
func readFiles(in *intake.Intake, message dialect.Object) error {
	var files dialect.Files
	return files.AttachAll(in, message, "Attachments", "Content", "Name", func(a dialect.Object) (kind, id string, err error) {
		return a.Text("ContentType"), strings.TrimPrefix(a.Text("ContentID", "ContentId"), "cid:"), nil
	})
}

// readTemplate reads the name of a template. Its values are those of the first recipient, whose mail all others get.
func readTemplate(b *intake.Batch, message dialect.Object, to []intake.Recipient) error {
	if b.Template = message.Text("TemplateAlias", "TemplateId"); b.Template == "" {
		return nil
	}
	b.Subject, b.Text, b.HTML = "", "", ""
	model, ok := message.Object("TemplateModel")
	if !ok {
		return dialect.Invalid("template", "wrong_type", "TemplateModel must be an object.")
	}
	if len(to) > 0 {
		model.Fill(&to[0])
	}
	return nil
}
