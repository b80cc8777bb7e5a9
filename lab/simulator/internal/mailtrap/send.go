package mailtrap

import (
	"cmp"
	"net/http"
	"slices"
	"strings"

	"github.com/safedelivr/safedelivr/lab/simulator/internal/jsontext"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/message"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/provider"
)

const (
	maxCall     = 50 << 20
	maxRequests = 500
	maxTo       = 1000
	maxCategory = 255
	badCategory = provider.OwnFlaw
)

// An email is the body of POST /api/send, and the base and the requests of POST /api/batch.
type email struct {
	From      *provider.Person  `json:"from"`
	To        []provider.Person `json:"to"`
	CC        []provider.Person `json:"cc"`
	BCC       []provider.Person `json:"bcc"`
	ReplyTo   *provider.Person  `json:"reply_to"`
	Subject   string            `json:"subject"`
	Text      string            `json:"text"`
	HTML      string            `json:"html"`
	Category  string            `json:"category"`
	Variables jsontext.Pairs    `json:"custom_variables"`
	Headers   jsontext.Pairs    `json:"headers"`
	Template  string            `json:"template_uuid"`
	Files     []struct {
		Name      string `json:"filename"`
		Content   string `json:"content"`
		Type      string `json:"type"`
		ContentID string `json:"content_id"`
	} `json:"attachments"`
}

// flaws has the error for each flaw.
var flaws = map[provider.FlawKind]string{
	provider.NoFrom:     "'from' is required",
	provider.BadFrom:    "'from' address is invalid",
	provider.BadAddress: "'<field>' address is invalid",
	provider.NoTo:       "'to', 'cc' or 'bcc' address is required",
	provider.ManyTo:     "'to', 'cc' and 'bcc' may have up to 1000 addresses",
	provider.NoSubject:  "'subject' is required",
	provider.NoBody:     "must specify either text or html body",
	provider.BadFile:    "attachment must have a filename and content",
	provider.TooBig:     "message is too large",
	badCategory:         "'category' is too long",
}

// A call is a batch, or a single email.
type call struct {
	Base     email   `json:"base"`
	Requests []email `json:"requests"`
}

// parse reads and checks a call. Of a batch each email has its own result, and the status is 200.
func (g Mailtrap) parse(r *http.Request, body string) (*provider.Call, *provider.Answer) {
	in, batch := call{}, strings.HasSuffix(r.URL.Path, "/batch")
	refuse := func(text string) (*provider.Call, *provider.Answer) {
		a := fail(400, text)
		return &provider.Call{}, &a
	}
	ok := strings.HasPrefix(r.Header.Get("Content-Type"), provider.TypeJSON) && r.Header.Get("User-Agent") != ""
	if batch {
		ok = ok && jsontext.Decode(body, &in)
	} else {
		in.Requests = make([]email, 1)
		ok = ok && jsontext.Decode(body, &in.Requests[0])
	}
	if !ok {
		return refuse("invalid JSON")
	}
	if len(in.Requests) == 0 || len(in.Requests) > maxRequests {
		return refuse("Batch size must be from 1 to 500 messages")
	}
	l := provider.Letters{MaxTo: maxTo, MaxSize: maxCall, Subject: true, Whole: !batch,
		Answer: func(found []provider.Flaw, ids []string) provider.Answer { return in.answer(found, ids, batch) },
		Check: func(i int, _ *provider.Mail) (f provider.Flaw) {
			if len(cmp.Or(in.Requests[i].Category, in.Base.Category)) > maxCategory {
				f.Kind = badCategory
			}
			return f
		}}
	for i := range in.Requests {
		l.List = append(l.List, in.letter(&in.Requests[i]))
	}
	return l.Call(g.Provider)
}

// letter returns an email. What it has replaces what the base has.
func (in *call) letter(e *email) (l provider.Letter) {
	base := &in.Base
	l = provider.Letter{Subject: cmp.Or(e.Subject, base.Subject), Text: cmp.Or(e.Text, base.Text),
		HTML: cmp.Or(e.HTML, base.HTML), Template: e.Template+base.Template != ""}
	files := e.Files
	if files == nil {
		files = base.Files
	}
	for _, f := range files {
		l.Files = append(l.Files, provider.File(f))
	}
	l.Address(cmp.Or(e.From, base.From), cmp.Or(e.ReplyTo, base.ReplyTo), e.To, e.CC, e.BCC)
	either := func(own, base []message.Pair) []message.Pair {
		if own == nil {
			own = base
		}
		return slices.Clone(own)
	}
	l.Metadata, l.Headers = either(e.Variables, base.Variables), either(e.Headers, base.Headers)
	if category := cmp.Or(e.Category, base.Category); category != "" {
		l.Tags = []string{category}
	}
	return l
}

// answer returns the answer to a call. Each recipient of an email has a message of its own.
func (in *call) answer(found []provider.Flaw, ids []string, batch bool) provider.Answer {
	results := make([]map[string]any, len(found))
	for i, f := range found {
		if f.Kind != 0 {
			results[i] = map[string]any{"success": false, "errors": []string{f.Fill(flaws[f.Kind])}}
			continue
		}
		e, list := &in.Requests[i], []string(nil)
		for n := range len(e.To) + len(e.CC) + len(e.BCC) {
			list = append(list, messageID(ids[0], n))
		}
		results[i], ids = map[string]any{"success": true, "message_ids": list}, ids[1:]
	}
	switch {
	case batch:
		return provider.JSON(200, map[string]any{"success": true, "responses": results})
	case found[0].Kind != 0:
		return provider.JSON(400, results[0])
	}
	return provider.JSON(200, results[0])
}
