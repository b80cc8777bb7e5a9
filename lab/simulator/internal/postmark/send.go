package postmark

import (
	"cmp"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/lab/simulator/internal/jsontext"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/message"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/provider"
)

const (
	maxCall     = 50 << 20
	maxMessage  = 10 << 20
	maxText     = 5 << 20
	maxMessages = 500
	maxTo       = 50
	maxTag      = 1000
	maxKey      = 20
	maxValue    = 80
)

// A mail is a message of a call.
type mail struct {
	From     string         `json:"From"`
	To       string         `json:"To"`
	Cc       string         `json:"Cc"`
	Bcc      string         `json:"Bcc"`
	Subject  string         `json:"Subject"`
	HTML     string         `json:"HtmlBody"`
	Text     string         `json:"TextBody"`
	ReplyTo  string         `json:"ReplyTo"`
	Tag      string         `json:"Tag"`
	Stream   string         `json:"MessageStream"`
	Metadata jsontext.Pairs `json:"Metadata"`
	Headers  []struct {
		Key   string `json:"Name"`
		Value string `json:"Value"`
	} `json:"Headers"`
	Attachments []struct {
		Name      string `json:"Name"`
		Content   string `json:"Content"`
		Type      string `json:"ContentType"`
		ContentID string `json:"ContentID"`
	} `json:"Attachments"`
}

// A result is the answer to one message.
type result struct {
	To          string `json:",omitempty"`
	SubmittedAt string `json:",omitempty"`
	MessageID   string `json:",omitempty"`
	ErrorCode   int
	Message     string
}

// The flaws that only Postmark finds.
const (
	badType = provider.OwnFlaw + iota
	tooLong
	inactive
)

const inactives = "You tried to send to recipient(s) that have been marked as inactive. " +
	"Found inactive addresses: <value>. Inactive recipients are ones that have generated a hard bounce, " +
	"a spam complaint, or a manual suppression."

// flaws has the result for each flaw.
var flaws = map[provider.FlawKind]result{
	provider.NoFrom:     {ErrorCode: 300, Message: "Invalid 'From' address: '<value>'."},
	provider.BadFrom:    {ErrorCode: 300, Message: "Invalid 'From' address: '<value>'."},
	provider.BadAddress: {ErrorCode: 300, Message: "Invalid '<field>' address: '<value>'."},
	provider.NoTo:       {ErrorCode: 300, Message: "Zero recipients specified."},
	provider.ManyTo:     {ErrorCode: 300, Message: "A message may have up to 50 recipients."},
	provider.NoBody:     {ErrorCode: 300, Message: "Provide either email TextBody or HtmlBody or both."},
	provider.BadFile:    {ErrorCode: 300, Message: "An attachment needs a name and content that is base64."},
	provider.TooBig:     {ErrorCode: 300, Message: "The message is too large."},
	badType:             {ErrorCode: 411, Message: "Attachments of this type are forbidden."},
	tooLong:             {ErrorCode: 300, Message: "A body, a tag, or a name or value of the metadata is too long."},
	inactive:            {ErrorCode: 406, Message: inactives},
}

// A call is the messages of a call, with the inactive addresses of each.
type call struct {
	list  []mail
	batch bool
	skips []string
}

// parse reads and checks a call. Of a batch each message has its own result, and the status is 200.
func (g Postmark) parse(r *http.Request, body string) (*provider.Call, *provider.Answer) {
	in := call{batch: strings.Contains(r.URL.Path, "/batch")}
	refuse := func(a provider.Answer) (*provider.Call, *provider.Answer) { return &provider.Call{}, &a }
	if !strings.HasPrefix(r.Header.Get("Content-Type"), provider.TypeJSON) {
		return refuse(g.Say(415))
	}
	var ok bool
	if in.list, ok = jsontext.List[mail](body, !in.batch); !ok {
		return refuse(g.Say(422))
	}
	if len(in.list) == 0 || len(in.list) > maxMessages {
		return refuse(fail(422, 410, "A batch may have up to 500 messages."))
	}
	in.skips = make([]string, len(in.list))
	l := provider.Letters{MaxTo: maxTo, MaxSize: maxMessage, Whole: !in.batch, Answer: in.answer}
	for i := range in.list {
		l.List = append(l.List, in.list[i].letter())
	}
	l.Check = func(i int, m *provider.Mail) provider.Flaw {
		f := in.list[i].check()
		if in.skips[i] = g.inactive(m); len(m.To) == 0 && f.Kind == 0 {
			return provider.Flaw{Kind: inactive, Value: in.skips[i]}
		}
		return f
	}
	c, problem := l.Call(g.Provider)
	if r.Header.Get(token) == testToken {
		a := c.Accept(c.Batches(false))
		c.Dry = &a
	}
	return c, problem
}

// answer returns the result of a message, or those of a batch.
func (in *call) answer(found []provider.Flaw, ids []string) provider.Answer {
	results := make([]result, len(found))
	for i, f := range found {
		if f.Kind != 0 {
			results[i] = flaws[f.Kind]
			results[i].Message = f.Fill(results[i].Message)
			continue
		}
		results[i] = result{in.list[i].To, time.Now().UTC().Format("2006-01-02T15:04:05.0000000Z"), ids[0], 0, "OK"}
		if in.skips[i] != "" {
			results[i].Message = "Message OK, but will not deliver to these inactive addresses: " + in.skips[i] + "."
		}
		ids = ids[1:]
	}
	switch {
	case in.batch:
		return provider.JSON(200, results)
	case found[0].Kind != 0:
		return provider.JSON(422, results[0])
	}
	return provider.JSON(200, results[0])
}

// letter returns the message as a letter.
func (in *mail) letter() provider.Letter {
	one := func(text string) []string {
		if text == "" {
			return nil
		}
		return []string{text}
	}
	l := provider.Letter{From: in.From, To: [...][]string{one(in.To), one(in.Cc), one(in.Bcc)}, ReplyTo: one(in.ReplyTo),
		Subject: in.Subject, Text: in.Text, HTML: in.HTML, Tags: one(in.Tag), Stream: cmp.Or(in.Stream, "outbound"),
		Metadata: in.Metadata}
	for _, h := range in.Headers {
		l.Headers = append(l.Headers, message.Pair(h))
	}
	for _, f := range in.Attachments {
		l.Files = append(l.Files, provider.File(f))
	}
	return l
}

// check returns what only Postmark finds wrong with the message.
func (in *mail) check() (f provider.Flaw) {
	for _, file := range in.Attachments {
		if strings.HasSuffix(strings.ToLower(file.Name), ".exe") {
			f.Kind = badType
		}
	}
	long := func(p message.Pair) bool { return len(p.Key) > maxKey || len(p.Value) > maxValue }
	if len(in.Tag) > maxTag || len(in.Text) > maxText || len(in.HTML) > maxText || slices.ContainsFunc(in.Metadata, long) {
		f.Kind = tooLong
	}
	return f
}

// inactive removes the inactive addresses from a message and returns them. They get nothing.
func (g Postmark) inactive(m *provider.Mail) string {
	var list []string
	m.To = slices.DeleteFunc(m.To, func(r provider.Recipient) bool {
		_, drops := g.Lists.Drops(r.Address, time.Now())
		o := message.OutcomeOf(r.Address, g.Name)
		if drops = drops || o >= message.SuppressedBounce && o <= message.SuppressedUnsub; drops {
			list = append(list, strings.ToLower(r.Address))
		}
		return drops
	})
	return strings.Join(list, ", ")
}
