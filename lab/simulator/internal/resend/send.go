package resend

import (
	"net/http"
	"regexp"
	"strings"

	"github.com/safedelivr/safedelivr/lab/simulator/internal/jsontext"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/message"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/provider"
)

const (
	maxBody  = 40 << 20
	maxBatch = 100
	maxTo    = 50
	badTag   = provider.OwnFlaw
)

// An email is the body of POST /emails, and an element of that of POST /emails/batch.
type email struct {
	From     string          `json:"from"`
	To       jsontext.Raw    `json:"to"`
	CC       jsontext.Raw    `json:"cc"`
	BCC      jsontext.Raw    `json:"bcc"`
	ReplyTo  jsontext.Raw    `json:"reply_to"`
	Subject  string          `json:"subject"`
	HTML     string          `json:"html"`
	Text     string          `json:"text"`
	Headers  jsontext.Pairs  `json:"headers"`
	Template *struct{}       `json:"template"`
	Files    []provider.File `json:"attachments"`
	Tags     []struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	} `json:"tags"`
}

const badAddress = "Invalid `<field>` field. The email address needs to follow the `email@example.com` or " +
	"`Name <email@example.com>` format."

// flaws has the name and the text of the error for each flaw.
var flaws = map[provider.FlawKind][2]string{
	provider.NoFrom:     {"missing_required_field", "Missing `from` field."},
	provider.BadFrom:    {"invalid_from_address", strings.Replace(badAddress, "<field>", "from", 1)},
	provider.BadAddress: {"validation_error", badAddress},
	provider.NoTo:       {"missing_required_field", "Missing `to` field."},
	provider.ManyTo:     {"validation_error", "An email may have up to 50 recipients."},
	provider.NoSubject:  {"missing_required_field", "Missing `subject` field."},
	provider.NoBody:     {"missing_required_field", "Missing `html` or `text` field."},
	provider.BadFile:    {"invalid_attachment", "Attachment must have a `filename` and `content`."},
	provider.TooBig:     {"validation_error", "The email is larger than 40MB."},
	badTag:              {"validation_error", "Tags should only contain ASCII letters, numbers, underscores, or dashes."},
}

var tagText = regexp.MustCompile(`^[A-Za-z0-9_-]{1,256}$`)

// A call says how a call is answered.
type call struct{ batch, permissive bool }

// parse reads and checks a call. A batch is sent whole or not at all, unless its validation is permissive: then the
// answer names the emails that are not sent. In a batch, Resend drops attachments.
func (g Resend) parse(r *http.Request, body string) (*provider.Call, *provider.Answer) {
	in := call{strings.HasSuffix(r.URL.Path, "/batch"), r.Header.Get("x-batch-validation") == "permissive"}
	refuse := func(status int, text string) (*provider.Call, *provider.Answer) {
		a := fail(status, "validation_error", text)
		return &provider.Call{}, &a
	}
	list, ok := jsontext.List[email](body, !in.batch)
	if !ok {
		return refuse(400, "The request body is not valid JSON of the documented form.")
	}
	if len(list) == 0 || len(list) > maxBatch {
		return refuse(422, "The batch must have between 1 and 100 emails.")
	}
	l := provider.Letters{MaxTo: maxTo, MaxSize: maxBody, Subject: true, Whole: !in.permissive, Answer: in.answer}
	for _, e := range list {
		to, ok1 := e.To.Strings()
		cc, ok2 := e.CC.Strings()
		bcc, ok3 := e.BCC.Strings()
		replies, ok4 := e.ReplyTo.Strings()
		if !ok1 || !ok2 || !ok3 || !ok4 {
			return refuse(422, provider.Flaw{Field: "to"}.Fill(badAddress))
		}
		letter := provider.Letter{From: e.From, To: [...][]string{to, cc, bcc}, ReplyTo: replies, Subject: e.Subject,
			Text: e.Text, HTML: e.HTML, Headers: e.Headers, Template: e.Template != nil}
		for _, t := range e.Tags {
			letter.Metadata = append(letter.Metadata, message.Pair{Key: t.Name, Value: t.Value})
		}
		if !in.batch {
			letter.Files = e.Files
		}
		l.List = append(l.List, letter)
	}
	l.Check = func(_ int, m *provider.Mail) (f provider.Flaw) {
		for _, t := range m.Metadata {
			if !tagText.MatchString(t.Key) || !tagText.MatchString(t.Value) {
				f.Kind = badTag
			}
		}
		return f
	}
	return l.Call(g.Provider)
}

// answer returns the answer to a call. Without ids, it is refused.
func (in call) answer(found []provider.Flaw, ids []string) provider.Answer {
	data, wrong := []any{}, []any{}
	for i, f := range found {
		text := f.Fill(flaws[f.Kind][1])
		if f.Kind != 0 && ids == nil {
			return fail(422, flaws[f.Kind][0], text)
		}
		if f.Kind != 0 {
			wrong = append(wrong, map[string]any{"index": i, "message": text})
		}
	}
	for _, id := range ids {
		data = append(data, map[string]any{"id": id})
	}
	out := map[string]any{"data": data}
	switch {
	case !in.batch:
		return provider.JSON(200, data[0])
	case in.permissive:
		out["errors"] = wrong
	}
	return provider.JSON(200, out)
}
