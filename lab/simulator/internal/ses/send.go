package ses

import (
	"encoding/json"
	"net/http"
	"regexp"
	"strings"

	"github.com/safedelivr/safedelivr/lab/simulator/internal/jsontext"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/message"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/provider"
)

const (
	maxBody     = 40 << 20
	maxEntries  = 50
	maxTo       = 50
	maxTemplate = 500 << 10
	maxData     = 262144
)

// Flaws of Amazon SES's own.
const (
	badTag provider.FlawKind = provider.OwnFlaw + iota
	badHeader
	badFileName
	badData
)

// flaws has the text of the error for each flaw.
var flaws = map[provider.FlawKind]string{
	provider.NoFrom:     "FromEmailAddress is required.",
	provider.BadFrom:    "Invalid FromEmailAddress.",
	provider.BadAddress: "Illegal address",
	provider.NoTo:       "Destination is required.",
	provider.ManyTo:     "Recipient count exceeds 50.",
	provider.NoSubject:  "Subject is required.",
	provider.NoBody:     "The body is required.",
	provider.BadFile:    "Attachment must have a name and content.",
	provider.TooBig:     "Message length is more than 41943040 bytes long.",
	badTag:              "Tag names and values must only contain alphanumeric ASCII characters, '_', or '-'.",
	badHeader:           "A header field is invalid.",
	badFileName:         "Illegal filename.",
	badData:             "The template data is invalid",
}

type pair struct {
	Name  string `json:"Name"`
	Value string `json:"Value"`
}

type text struct {
	Data string `json:"Data"`
}

type destination struct {
	To  []string `json:"ToAddresses"`
	CC  []string `json:"CcAddresses"`
	BCC []string `json:"BccAddresses"`
}

type file struct {
	Name      string `json:"FileName"`
	Content   string `json:"RawContent"`
	Type      string `json:"ContentType"`
	ContentID string `json:"ContentId"`
}

// A body is the body of either call.
type body struct {
	From        string       `json:"FromEmailAddress"`
	ReplyTo     []string     `json:"ReplyToAddresses"`
	Destination *destination `json:"Destination"`
	Tags        []pair       `json:"EmailTags"`
	Content     *struct {
		Simple *struct {
			Subject text `json:"Subject"`
			Body    struct {
				Text text `json:"Text"`
				HTML text `json:"Html"`
			} `json:"Body"`
			Headers []pair `json:"Headers"`
			Files   []file `json:"Attachments"`
		} `json:"Simple"`
	} `json:"Content"`
	Default *struct {
		Template *struct {
			Content struct {
				Subject string `json:"Subject"`
				Text    string `json:"Text"`
				HTML    string `json:"Html"`
			} `json:"TemplateContent"`
			Data  string `json:"TemplateData"`
			Files []file `json:"Attachments"`
		} `json:"Template"`
	} `json:"DefaultContent"`
	Entries []struct {
		Destination destination `json:"Destination"`
		Tags        []pair      `json:"ReplacementTags"`
		Headers     []pair      `json:"ReplacementHeaders"`
		Content     struct {
			Template struct {
				Data string `json:"ReplacementTemplateData"`
			} `json:"ReplacementTemplate"`
		} `json:"ReplacementEmailContent"`
	} `json:"BulkEmailEntries"`
}

// parse reads and checks a call. Mails of a bulk call have results of their own.
func (g SES) parse(r *http.Request, text string) (*provider.Call, *provider.Answer) {
	bulk := strings.HasSuffix(r.URL.Path, "-bulk-emails")
	var in body
	refuse := func(a provider.Answer) (*provider.Call, *provider.Answer) { return &provider.Call{}, &a }
	known := jsontext.Decode(text, &in)
	switch {
	case !signed(g.Account.Key, r, text):
		return refuse(fail(403, "SignatureDoesNotMatch", "The request signature we calculated does not match."))
	case !known, bulk && (in.Default == nil || in.Default.Template == nil),
		bulk && (len(in.Entries) == 0 || len(in.Entries) > maxEntries),
		!bulk && (in.Content == nil || in.Content.Simple == nil || in.Destination == nil):
		return refuse(statuses[400])
	}
	l := provider.Letters{MaxTo: maxTo, MaxSize: maxBody, Subject: true, Answer: answer(bulk)}
	l.Check = func(i int, m *provider.Mail) provider.Flaw { return check(&l.List[i], m) }
	if !bulk {
		m := in.Content.Simple
		l.List = []provider.Letter{in.letter(*in.Destination, in.Tags, m.Headers, m.Files)}
		one := &l.List[0]
		one.Subject, one.Text, one.HTML = m.Subject.Data, m.Body.Text.Data, m.Body.HTML.Data
		return l.Call(g.Provider)
	}
	t := in.Default.Template
	if unsupported(t.Content.Subject) || unsupported(t.Content.Text) || unsupported(t.Content.HTML) {
		return refuse(fail(400, "BadRequestException", "Template contains unsupported operations."))
	}
	if len(t.Content.Subject)+len(t.Content.Text)+len(t.Content.HTML) > maxTemplate {
		return refuse(fail(400, "BadRequestException", "The template is too large."))
	}
	for _, e := range in.Entries {
		one := in.letter(e.Destination, e.Tags, e.Headers, t.Files)
		values := map[string]string{}
		bad := len(e.Content.Template.Data) > maxData
		for _, data := range []string{t.Data, e.Content.Template.Data} {
			bad = bad || data != "" && json.Unmarshal([]byte(data), &values) != nil
		}
		one.Subject, one.Text = fill(t.Content.Subject, values), fill(t.Content.Text, values)
		one.HTML = fill(t.Content.HTML, values)
		one.Template = bad // no flaw of its own is looked for, but this
		l.List = append(l.List, one)
	}
	return l.Call(g.Provider)
}

// letter returns a mail without its text.
func (in *body) letter(to destination, tags, headers []pair, files []file) provider.Letter {
	l := provider.Letter{From: in.From, To: [3][]string{to.To, to.CC, to.BCC}, ReplyTo: in.ReplyTo}
	for _, t := range tags {
		l.Metadata = append(l.Metadata, message.Pair{Key: t.Name, Value: t.Value})
	}
	for _, h := range headers {
		l.Headers = append(l.Headers, message.Pair{Key: h.Name, Value: h.Value})
	}
	for _, f := range files {
		l.Files = append(l.Files, provider.File{Name: f.Name, Content: f.Content, Type: f.Type, ContentID: f.ContentID})
	}
	return l
}

var (
	tagText    = regexp.MustCompile(`^[A-Za-z0-9_-]{1,256}$`)
	headerName = regexp.MustCompile(`^[!-9;-~]{1,126}$`)
	printable  = regexp.MustCompile(`^[ -~]{0,995}$`)
	refused    = regexp.MustCompile(`(?i)\.(exe|bat|com|cmd|js|vbs|scr|pif|msi|ps1|lnk|jse|vbe|wsf|hta|cpl|reg)$`)
	variable   = regexp.MustCompile(`\{\{\s*([A-Za-z0-9_]+)\s*\}\}`)
)

// check returns the flaw that only Amazon SES finds.
func check(l *provider.Letter, _ *provider.Mail) provider.Flaw {
	for _, t := range l.Metadata {
		if !tagText.MatchString(t.Key) || !tagText.MatchString(t.Value) {
			return provider.Flaw{Kind: badTag}
		}
	}
	for _, h := range l.Headers {
		if !headerName.MatchString(h.Key) || !printable.MatchString(h.Value) || len(h.Key)+len(h.Value) > 996 {
			return provider.Flaw{Kind: badHeader}
		}
	}
	for _, f := range l.Files {
		if refused.MatchString(f.Name) {
			return provider.Flaw{Kind: badFileName}
		}
	}
	if l.Template {
		return provider.Flaw{Kind: badData}
	}
	return provider.Flaw{}
}

// unsupported reports whether a template has more than variables: an inline one may have only these.
func unsupported(template string) bool {
	rest := variable.ReplaceAllString(template, "\x00")
	return strings.Contains(rest, "{{") || strings.Contains(rest, "{\x00") || strings.Contains(rest, "\x00}")
}

// fill replaces variables, and escapes nothing. Amazon SES reports a variable without a value later, as a rendering
// failure; here it stays in the mail, where tests see it.
func fill(template string, values map[string]string) string {
	return variable.ReplaceAllStringFunc(template, func(tag string) string {
		if value, ok := values[variable.FindStringSubmatch(tag)[1]]; ok {
			return value
		}
		return tag
	})
}

// answer returns the function that answers a call. A bulk call has a result for each mail, in order.
func answer(bulk bool) func(found []provider.Flaw, ids []string) provider.Answer {
	return func(found []provider.Flaw, ids []string) provider.Answer {
		results := []any{}
		for _, f := range found {
			switch {
			case !bulk && f.Kind != 0:
				return fail(400, "BadRequestException", flaws[f.Kind])
			case !bulk:
				return provider.JSON(200, map[string]string{"MessageId": ids[0]})
			case f.Kind != 0:
				results = append(results, map[string]any{"Status": "INVALID_PARAMETER", "Error": flaws[f.Kind]})
			default:
				results = append(results, map[string]any{"Status": "SUCCESS", "MessageId": ids[0]})
				ids = ids[1:]
			}
		}
		return provider.JSON(200, map[string]any{"BulkEmailEntryResults": results})
	}
}
