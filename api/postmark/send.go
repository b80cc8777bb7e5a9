package postmark

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net/http"
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
	maxBody     = 70 << 20 // 50 MB of a request, and more
	maxMessages = 500      // of a request
	maxKey      = 255      // bytes of an idempotency key
)

// send is POST /email and POST /email/withTemplate.
func send(r *dialect.Request) (dialect.Answer, error) {
	var message dialect.Object
	if err := dialect.ReadJSON(r, maxBody, &message); err != nil {
		return dialect.Answer{}, err
	}
	var out result
	err := r.Once(digest(message), func(repeat service.Repeat) (err error) {
		out, err = accept(r, message, repeat)
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
		return dialect.Answer{}, mistake("messages", "too_many", "A request has 1 to "+strconv.Itoa(maxMessages)+" messages.")
	}
	results := make([]result, len(in.Messages))
	err := r.Once(digest(raw), func(repeat service.Repeat) error {
		for i, message := range in.Messages {
			one := repeat
			if one.Key += "/" + strconv.Itoa(i); len(one.Key) > maxKey {
				one.Key = digest(one.Key)
			}
			one.Hash = digest(message)
			var e *problem.Error
			var err error
			results[i], err = accept(r, message, one)
			switch {
			case err == nil:
			case errors.As(err, &e) && e.Kind.Status() < 500 && e.Kind != problem.TooMany:
				_, results[i] = fail(e)
			default:
				return err // a repeat sends the rest
			}
		}
		return nil
	})
	return dialect.Answer{Body: results}, err
}

func digest(v any) string {
	sum := sha256.Sum256(dialect.Canonical(v))
	return hex.EncodeToString(sum[:])
}

// accept stores a message.
func accept(r *dialect.Request, message dialect.Object, repeat service.Repeat) (result, error) {
	in := r.Service.NewIntake(r.Context(), r.Who)
	defer in.Close()
	if err := read(in, message); err != nil {
		return result{}, err
	}
	a, _, err := r.Service.Accept(r.Context(), r.Who, in, repeat)
	if err != nil {
		return result{}, err
	}
	if a.Suppressed == a.Recipients {
		list := strings.Join([]string{message.Text("To"), message.Text("Cc"), message.Text("Bcc")}, ", ")
		return result{}, problem.New(problem.Invalid, "inactive_recipients",
			"You tried to send to recipients that have been marked as inactive. Found inactive addresses: %s. Inactive recipients "+
				"are ones that have generated a hard bounce, a spam complaint, or a manual suppression.", strings.Trim(list, ", "))
	}
	return result{
		To: message.Text("To"), Cc: message.Text("Cc"), Bcc: message.Text("Bcc"), MessageID: a.ID.String(), Message: "OK",
		SubmittedAt: a.CreatedAt.UTC().Format(time.RFC3339Nano),
	}, nil
}

// read turns a message into a batch.
func read(in *intake.Intake, message dialect.Object) error {
	b := &in.Batch
	b.From, b.Together = message.Text("From"), true
	b.Subject = intake.Literal(message.Text("Subject"))
	b.Text, b.HTML = intake.Literal(message.Text("TextBody")), intake.Literal(message.Text("HtmlBody"))
	b.CC, b.BCC = intake.SplitAddresses(message.Text("Cc")), intake.SplitAddresses(message.Text("Bcc"))
	b.ReplyTo = intake.SplitAddresses(message.Text("ReplyTo"))
	if tag := message.Text("Tag"); tag != "" {
		b.Tags = []string{tag}
	}
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

// mistake is the error of a field.
func mistake(field, code, detail string) error {
	e := problem.New(problem.Invalid, code, "%s", detail)
	e.Fields = []problem.FieldError{{Pointer: "/" + field, Code: code, Detail: detail}}
	return e
}

// readHeaders reads the header fields. Those that belong to the gateway are left out.
func readHeaders(b *intake.Batch, message dialect.Object) error {
	var headers []dialect.Object
	if raw := message.Raw("Headers"); raw != nil && json.Unmarshal(raw, &headers) != nil {
		return mistake("headers", "wrong_type", "It must be a list of objects with Name and Value.")
	}
	for _, h := range headers {
		name, value := h.Text("Name"), strings.TrimSpace(models.OneLine(h.Text("Value")))
		if value != "" && !intake.IsReserved(name) && !strings.HasPrefix(http.CanonicalHeaderKey(name), "X-Pm-") &&
			models.FindHeader(b.Headers, name) < 0 {
			b.Headers = append(b.Headers, models.Header{Name: name, Value: intake.Literal(value)})
		}
	}
	return nil
}

func readMetadata(b *intake.Batch, message dialect.Object) error {
	var values dialect.Object
	if raw := message.Raw("Metadata"); raw != nil && json.Unmarshal(raw, &values) != nil {
		return mistake("metadata", "wrong_type", "It must be an object.")
	}
	b.Metadata = map[string]string{}
	for name := range values {
		b.Metadata[name] = values.Text(name)
	}
	return nil
}

// readFiles reads the attachments.
func readFiles(in *intake.Intake, message dialect.Object) error {
	var list []dialect.Object
	if raw := message.Raw("Attachments"); raw != nil && json.Unmarshal(raw, &list) != nil {
		return mistake("attachments", "wrong_type", "It must be a list of objects.")
	}
	var files dialect.Files
	for _, a := range list {
		data, ok := a.Bytes("Content")
		if !ok {
			return mistake("attachments", "invalid_base64", "Content must be base64.")
		}
		id := strings.TrimPrefix(a.Text("ContentID", "ContentId"), "cid:")
		if err := files.Attach(in, a.Text("Name"), a.Text("ContentType"), id, bytes.NewReader(data)); err != nil {
			return err
		}
	}
	in.Batch.HTML = files.Rewrite(in.Batch.HTML)
	return nil
}

// readTemplate reads the name of a template. Its values are those of the first recipient, whose mail all others get.
func readTemplate(b *intake.Batch, message dialect.Object, to []intake.Recipient) error {
	if b.Template = message.Text("TemplateAlias", "TemplateId"); b.Template == "" {
		return nil
	}
	b.Subject, b.Text, b.HTML = "", "", ""
	var model dialect.Object
	if raw := message.Raw("TemplateModel"); raw != nil && json.Unmarshal(raw, &model) != nil {
		return mistake("template", "wrong_type", "TemplateModel must be an object.")
	}
	if len(to) == 0 {
		return nil
	}
	to[0].Vars = map[string]string{}
	for name, raw := range model {
		if to[0].Vars[name] = model.Text(name); len(raw) > 0 && raw[0] != '"' {
			to[0].JSON = append(to[0].JSON, name)
		}
	}
	return nil
}
