package mailjet

import (
	"net/http"
	"net/mail"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/safedelivr/safedelivr/lab/simulator/internal/jsontext"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/message"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/provider"
)

const (
	maxCall     = 40 << 20
	maxFiles    = 15 << 20
	maxMessages = 50
	maxTo       = 50
	maxSubject  = 255
)

// An address is a sender or a recipient.
type address struct {
	Email string `json:"Email"`
	Name  string `json:"Name"`
}

func (a address) String() string { return (&mail.Address{Name: a.Name, Address: a.Email}).String() }

// A file is an attachment.
type file struct {
	Type      string `json:"ContentType"`
	Name      string `json:"Filename"`
	ContentID string `json:"ContentID"`
	Content   string `json:"Base64Content"`
}

// A letter is a message of a call.
type letter struct {
	From     address        `json:"From"`
	To       []address      `json:"To"`
	Cc       []address      `json:"Cc"`
	Bcc      []address      `json:"Bcc"`
	ReplyTo  *address       `json:"ReplyTo"`
	Subject  string         `json:"Subject"`
	Text     string         `json:"TextPart"`
	HTML     string         `json:"HTMLPart"`
	Opens    string         `json:"TrackOpens"`
	Clicks   string         `json:"TrackClicks"`
	Headers  jsontext.Pairs `json:"Headers"`
	CustomID string         `json:"CustomID"`
	Files    []file         `json:"Attachments"`
	Inline   []file         `json:"InlinedAttachments"`
}

// The flaws that only Mailjet finds.
const (
	longSubject = provider.OwnFlaw + iota
	badHeader
	badValue
	emptyText
)

// flaws has code, text and property of the error for each flaw.
var flaws = map[provider.FlawKind][3]string{
	provider.NoFrom:     {"mj-0003", `"From" is mandatory but missing from the input.`, "From"},
	provider.BadFrom:    {"mj-0013", `"<value>" is an invalid email address.`, "From.Email"},
	provider.BadAddress: {"mj-0013", `"<value>" is an invalid email address.`, "<field>[0].Email"},
	provider.NoTo:       {"mj-0003", `"To" is mandatory but missing from the input.`, "To"},
	provider.ManyTo:     {"send-0015", "The total number of recipients is over the limit.", "To"},
	provider.NoBody:     {"send-0003", `At least "HTMLPart", "TextPart" or "TemplateID" must be provided.`, "HTMLPart"},
	provider.BadFile:    {"mj-0012", "Empty string value, or no base64.", "Base64Content"},
	provider.TooBig:     {"mj-0011", "The payload size is over the limit.", ""},
	longSubject:         {"mj-0006", `"Subject" has more than 255 characters.`, "Subject"},
	badHeader:           {"send-0011", "This header has to be left out.", `Headers["<value>"]`},
	badValue:            {"mj-0005", "The value is not allowed.", "TrackOpens"},
	emptyText:           {"mj-0012", "An empty string is not allowed.", "ContentType"},
}

// parse reads and checks a call. Each message has its own result.
func (g Mailjet) parse(_ *http.Request, body string) (*provider.Call, *provider.Answer) {
	var in struct {
		Messages []letter `json:"Messages"`
	}
	refuse := func(a provider.Answer) (*provider.Call, *provider.Answer) { return &provider.Call{}, &a }
	switch {
	case !jsontext.Decode(body, &in):
		return refuse(g.Say(400))
	case len(in.Messages) == 0:
		return refuse(fail(400, "mj-0007", `"Messages" must not be empty.`))
	case len(in.Messages) > maxMessages:
		return refuse(fail(400, "mj-0008", `"Messages" has more than 50 elements.`))
	}
	l := provider.Letters{MaxTo: maxTo, MaxSize: maxFiles,
		Answer: func(found []provider.Flaw, ids []string) provider.Answer { return g.answer(in.Messages, found, ids) },
		Check:  func(i int, _ *provider.Mail) provider.Flaw { return in.Messages[i].check() },
	}
	for i := range in.Messages {
		l.List = append(l.List, in.Messages[i].letter(g.Options.RecipientKey))
	}
	return l.Call(g.Provider)
}

// roles are the properties of recipients by the names of their roles.
var roles = map[string]string{"to": "To", "cc": "Cc", "bcc": "Bcc"}

// answer returns the results of the messages. Those without a flaw have ids. The status is 400 if one is refused.
func (g Mailjet) answer(list []letter, found []provider.Flaw, ids []string) provider.Answer {
	status, results := 200, []any{}
	for i, f := range found {
		if f.Kind != 0 {
			flaw := flaws[f.Kind]
			status, f.Field = 400, roles[f.Field]
			results = append(results, map[string]any{"Status": "error", "Errors": []any{map[string]any{
				"ErrorIdentifier": "f480a5a2-0334-4e08-b2b7-f372ce5669e0", "ErrorCode": flaw[0], "StatusCode": 400,
				"ErrorMessage": f.Fill(flaw[1]), "ErrorRelatedTo": []string{f.Fill(flaw[2])}}}})
			continue
		}
		result, n := map[string]any{"Status": "success", "CustomID": list[i].CustomID}, uint32(0)
		for k, role := range [3][]address{list[i].To, list[i].Cc, list[i].Bcc} {
			sent := []any{}
			for _, a := range role {
				sent = append(sent, map[string]any{"Email": a.Email, "MessageID": number(ids[0], n),
					"MessageUUID": "u-" + ids[0]})
				n++
			}
			result[[3]string{"To", "Cc", "Bcc"}[k]] = sent
		}
		results, ids = append(results, result), ids[1:]
	}
	return provider.JSON(status, map[string]any{"Messages": results})
}

// code is what Mailjet replaces in bodies although the template language is off. It knows no such value.
var code = regexp.MustCompile(`\[\[(var|data):[^\]]*\]\]`)

// letter returns the message as a letter. The part of its CustomID before a dot is the metadata of the key, too.
func (in *letter) letter(key string) provider.Letter {
	recipient, _, _ := strings.Cut(in.CustomID, ".")
	out := provider.Letter{From: in.From.String(), Subject: in.Subject, Text: code.ReplaceAllString(in.Text, ""),
		HTML: code.ReplaceAllString(in.HTML, ""), Headers: in.Headers,
		Metadata: []message.Pair{{Key: customID, Value: in.CustomID}, {Key: key, Value: recipient}}}
	if in.From.Email == "" {
		out.From = ""
	}
	if in.ReplyTo != nil {
		out.ReplyTo = []string{in.ReplyTo.String()}
	}
	for k, list := range [3][]address{in.To, in.Cc, in.Bcc} {
		for _, a := range list {
			out.To[k] = append(out.To[k], a.String())
		}
	}
	for _, list := range [2][]file{in.Inline, in.Files} {
		for _, f := range list {
			out.Files = append(out.Files, provider.File{Name: f.Name, Content: f.Content, Type: f.Type,
				ContentID: f.ContentID})
		}
	}
	return out
}

// forbidden are header fields that cannot be set.
const forbidden = "|from|sender|subject|to|cc|bcc|reply-to|return-path|delivered-to|dkim-signature|domainkey-status|" +
	"received-spf|authentication-results|received|user-agent|x-mailer|x-feedback-id|list-id|date|x-csa-complaints|" +
	"message-id|"

// check returns what only Mailjet finds wrong with the message.
func (in *letter) check() (f provider.Flaw) {
	for _, h := range in.Headers {
		name := strings.ToLower(h.Key)
		if strings.Contains(forbidden, "|"+name+"|") || strings.HasPrefix(name, "x-mj-") ||
			strings.HasPrefix(name, "x-mailjet-") {
			f = provider.Flaw{Kind: badHeader, Value: h.Key}
		}
	}
	const values = "||account_default|disabled|enabled|"
	if in.HTML == "" && in.Opens+in.Clicks != "" || !strings.Contains(values, "|"+in.Opens+"|") ||
		!strings.Contains(values, "|"+in.Clicks+"|") {
		f.Kind = badValue
	}
	for _, list := range [2][]file{in.Files, in.Inline} {
		for _, file := range list {
			if file.Type == "" {
				f.Kind = emptyText
			}
		}
	}
	if utf8.RuneCountInString(in.Subject) > maxSubject {
		f.Kind = longSubject
	}
	return f
}
