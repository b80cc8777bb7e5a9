package smtp2go

import (
	"net/http"
	"slices"
	"strings"

	"github.com/safedelivr/safedelivr/lab/simulator/internal/jsontext"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/message"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/provider"
)

const (
	maxCall = 50_000_000
	maxTo   = 300 // 100 in each field
)

// A file is an attachment, or an inline one, which HTML finds by its name.
type file struct {
	Name    string `json:"filename"`
	Content string `json:"fileblob"`
	Type    string `json:"mimetype"`
}

// A mail is a message of a call.
type mail struct {
	Sender  string   `json:"sender"`
	To      []string `json:"to"`
	CC      []string `json:"cc"`
	BCC     []string `json:"bcc"`
	Subject string   `json:"subject"`
	Text    string   `json:"text_body"`
	HTML    string   `json:"html_body"`
	Headers []struct {
		Key   string `json:"header"`
		Value string `json:"value"`
	} `json:"custom_headers"`
	Files   []file `json:"attachments"`
	Inlines []file `json:"inlines"`
	Fast    bool   `json:"fastaccept"`
}

// flaws has field and expectation of the error for each flaw.
var flaws = map[provider.FlawKind][2]string{
	provider.NoFrom:     {"sender", "a value"},
	provider.BadFrom:    {"sender", "a valid RFC-822 formatted email field but found '<value>'"},
	provider.BadAddress: {"<field>", "a valid RFC-822 formatted email field but found '<value>'"},
	provider.NoTo:       {"to", "a value"},
	provider.ManyTo:     {"to", "100 addresses at most"},
	provider.NoSubject:  {"subject", "a value"},
	provider.NoBody:     {"text_body", "a value"},
	provider.BadFile:    {"attachments", "names and base64"},
	provider.TooBig:     {"attachments", "a smaller email"},
}

// parse reads and checks a call. A flaw of one mail refuses all.
func (g SMTP2GO) parse(r *http.Request, body string) (*provider.Call, *provider.Answer) {
	var in struct {
		Emails []mail `json:"emails"`
	}
	batch := strings.HasSuffix(r.URL.Path, "/batch")
	ok := batch && jsontext.Decode(body, &in)
	if !batch {
		in.Emails, ok = jsontext.List[mail](body, true)
	}
	if !ok || len(in.Emails) == 0 || !strings.HasPrefix(r.Header.Get("Content-Type"), provider.TypeJSON) {
		a := g.Say(400)
		return &provider.Call{}, &a
	}
	l := provider.Letters{MaxTo: maxTo, MaxSize: maxCall, Subject: true, Whole: true,
		Answer: func(found []provider.Flaw, ids []string) provider.Answer { return answer(found, ids, in.Emails, batch) }}
	for i := range in.Emails {
		l.List = append(l.List, in.Emails[i].letter())
	}
	return l.Call(g.Provider)
}

// letter returns the mail as a letter. Header fields that begin with X-SD- are the metadata, which events bring back.
func (in *mail) letter() provider.Letter {
	l := provider.Letter{From: in.Sender, To: [3][]string{0: in.To, message.CC: in.CC, message.BCC: in.BCC},
		Subject: in.Subject, Text: in.Text, HTML: in.HTML}
	for _, h := range in.Headers {
		if name, ok := strings.CutPrefix(strings.ToLower(h.Key), "x-sd-"); ok {
			l.Metadata = append(l.Metadata, message.Pair{Key: "sd_" + name, Value: h.Value})
		} else {
			l.Headers = append(l.Headers, message.Pair(h))
		}
	}
	for _, f := range in.Inlines {
		l.Files = append(l.Files, provider.File{Name: f.Name, Content: f.Content, Type: f.Type, ContentID: f.Name})
	}
	for _, f := range in.Files {
		l.Files = append(l.Files, provider.File{Name: f.Name, Content: f.Content, Type: f.Type})
	}
	return l
}

// answer returns the answer to a call: the id of its mail, or a list of those of a batch.
func answer(found []provider.Flaw, ids []string, mails []mail, batch bool) provider.Answer {
	if at := slices.IndexFunc(found, func(f provider.Flaw) bool { return f.Kind != 0 }); at >= 0 {
		f := found[at]
		return invalid(f.Fill(flaws[f.Kind][0]), f.Fill(flaws[f.Kind][1]))
	}
	var list []map[string]any
	for _, id := range ids {
		list = append(list, map[string]any{"email_id": id})
	}
	out := map[string]any{"request_id": "aa253464-0bd0-467a-b24b-6159dcd7be60", "data": list}
	if !batch {
		if out["data"] = list[0]; !mails[0].Fast {
			list[0]["succeeded"], list[0]["failed"], list[0]["failures"] = 1, 0, []string{}
		}
	}
	return provider.JSON(200, out)
}
