package brevo

import (
	"cmp"
	"net/http"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/safedelivr/safedelivr/lab/simulator/internal/jsontext"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/message"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/provider"
)

const (
	maxCall     = 40 << 20
	maxVersions = 1000
	maxTo       = 99
	maxAll      = 2000 // recipients of a call
)

// A version is a message version. Its header fields are not documented.
type version struct {
	To      []provider.Person `json:"to"`
	CC      []provider.Person `json:"cc"`
	BCC     []provider.Person `json:"bcc"`
	Subject string            `json:"subject"`
	HTML    string            `json:"htmlContent"`
	Text    string            `json:"textContent"`
	ReplyTo *provider.Person  `json:"replyTo"`
	Headers jsontext.Pairs    `json:"headers"`
}

// A call is the body of POST /smtp/email.
type call struct {
	Sender   *provider.Person  `json:"sender"`
	To       []provider.Person `json:"to"`
	CC       []provider.Person `json:"cc"`
	BCC      []provider.Person `json:"bcc"`
	Subject  string            `json:"subject"`
	HTML     string            `json:"htmlContent"`
	Text     string            `json:"textContent"`
	ReplyTo  *provider.Person  `json:"replyTo"`
	Headers  jsontext.Pairs    `json:"headers"`
	Tags     []string          `json:"tags"`
	Template int               `json:"templateId"`
	Versions []version         `json:"messageVersions"`
	Files    []struct {
		Name    string `json:"name"`
		Content string `json:"content"`
	} `json:"attachment"`
}

// flaws has the code and the text of the error for each flaw.
var flaws = map[provider.FlawKind][2]string{
	provider.NoFrom:     {"missing_parameter", "sender is missing"},
	provider.BadFrom:    {"invalid_parameter", "valid sender email required"},
	provider.BadAddress: {"invalid_parameter", "email is not valid in <field>"},
	provider.NoTo:       {"missing_parameter", "to is missing"},
	provider.ManyTo:     {"invalid_parameter", "number of recipients in a version should not exceed 99"},
	provider.NoSubject:  {"missing_parameter", "subject is missing"},
	provider.NoBody:     {"missing_parameter", "either of htmlContent or textContent is missing"},
	provider.BadFile:    {"invalid_parameter", "content of attachment must be a valid base64 string"},
	provider.TooBig:     {"invalid_parameter", "total size of the email is too large"},
}

const extensions = "xlsx xls ods docx docm doc csv pdf txt gif jpg jpeg png tif tiff rtf bmp cgm css shtml html htm " +
	"zip xml ppt pptx tar ez ics mobi msg pub eps odt mp3 m4a m4v wma ogg flac wav aif aifc aiff mp4 mov avi mkv mpeg " +
	"mpg wmv pkpass xlsm"

var (
	uuid   = regexp.MustCompile(`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`)
	badKey = fail(400, "invalid_parameter", "idempotencyKey must be a valid UUID")
)

// problem returns what is wrong with a call as a whole.
func (in *call) problem() *provider.Answer {
	wrong := func(text string) *provider.Answer {
		a := fail(400, "invalid_parameter", text)
		return &a
	}
	all := 0
	for i := range in.Versions {
		v := &in.Versions[i]
		all += len(v.To) + len(v.CC) + len(v.BCC)
		if (v.HTML != "" || v.Text != "") && in.HTML == "" && in.Text == "" {
			return wrong("content of a version needs htmlContent or textContent of the request")
		}
	}
	if len(in.Versions) > maxVersions || all > maxAll {
		return wrong("messageVersions has too many elements, or too many recipients")
	}
	for _, f := range in.Files {
		ext := strings.ToLower(strings.TrimPrefix(path.Ext(f.Name), "."))
		if f.Name == "" || !slices.Contains(strings.Fields(extensions), ext) {
			return wrong("Unsupported file format: " + ext)
		}
	}
	return nil
}

// parse reads and checks a call. It is sent whole or not at all.
func (g Brevo) parse(r *http.Request, body string) (*provider.Call, *provider.Answer) {
	var in call
	if !strings.HasPrefix(r.Header.Get("Content-Type"), provider.TypeJSON) || !jsontext.Decode(body, &in) {
		a := g.Say(400)
		return &provider.Call{}, &a
	}
	versions := in.Versions
	if len(versions) == 0 {
		versions = []version{{To: in.To, CC: in.CC, BCC: in.BCC}}
	}
	l := provider.Letters{MaxTo: maxTo, MaxSize: maxCall, Subject: true, Whole: true,
		Answer: func(found []provider.Flaw, ids []string) provider.Answer { return in.answer(found, ids) }}
	key := ""
	for i := range versions {
		letter, k := in.letter(&versions[i])
		key = cmp.Or(key, k)
		l.List = append(l.List, letter)
	}
	c, problem := l.Call(g.Provider)
	if c.Key = key; problem == nil {
		problem = in.problem()
	}
	if key != "" && !uuid.MatchString(key) {
		problem = &badKey
	}
	return c, problem
}

// letter returns the mail of a version, and the idempotency key, which is among the header fields of the call.
func (in *call) letter(v *version) (l provider.Letter, key string) {
	l = provider.Letter{Subject: cmp.Or(v.Subject, in.Subject), Text: cmp.Or(v.Text, in.Text),
		HTML: cmp.Or(v.HTML, in.HTML), Template: in.Template != 0, Tags: slices.Clone(in.Tags)}
	l.Address(in.Sender, cmp.Or(v.ReplyTo, in.ReplyTo), v.To, v.CC, v.BCC)
	for _, h := range slices.Concat(in.Headers, v.Headers) {
		switch {
		case h.Key == "idempotencyKey":
			key = h.Value
		case strings.EqualFold(h.Key, custom):
			l.Metadata = nil
			jsontext.Raw(h.Value).Members(func(name string, _ jsontext.Raw) {
				value, _ := jsontext.Raw(h.Value).Member(name)
				l.Metadata = append(l.Metadata, message.Pair{Key: name, Value: value})
			})
		default:
			l.Headers = append(l.Headers, h)
		}
	}
	for _, f := range in.Files {
		l.Files = append(l.Files, provider.File{Name: f.Name, Content: f.Content})
	}
	return l, key
}

// answer returns the answer to a call. Without ids, it is refused.
func (in *call) answer(found []provider.Flaw, ids []string) provider.Answer {
	for _, f := range found {
		if f.Kind != 0 {
			return fail(400, flaws[f.Kind][0], f.Fill(flaws[f.Kind][1]))
		}
	}
	if len(in.Versions) == 0 {
		return provider.JSON(201, map[string]any{"messageId": ids[0]})
	}
	return provider.JSON(201, map[string]any{"messageIds": ids})
}
