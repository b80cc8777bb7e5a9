// Package smtp imitates a mail server that takes mail for others by SMTP. It has no webhooks: what it refuses, it
// refuses while the mail is handed over, or reports by mail.
package smtp

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"io"
	"mime"
	"mime/multipart"
	"mime/quotedprintable"
	"net/http"
	"net/mail"
	"net/textproto"
	"slices"
	"strings"

	"github.com/safedelivr/safedelivr/lab/simulator/internal/message"
	"github.com/safedelivr/safedelivr/lab/simulator/internal/provider"
)

// Header fields of the requests that represent transactions.
const (
	From     = "Mail-From"
	To       = "Rcpt-To"
	Envelope = "Envelope-Id" // of RFC 3461, 4.4
)

// MaxMail is the size of the largest mail, in bytes.
const MaxMail = 30 << 20

// reply returns an answer. Its body is an enhanced code and a text.
func reply(code int, text string) provider.Answer {
	return provider.Answer{Status: code, Type: provider.TypeText, Body: text}
}

var unavailable = reply(421, "4.3.2 Service not available, try again later")

// statuses are the replies in place of an HTTP status, so that faults have an effect of the same kind.
var statuses = map[int]provider.Answer{
	400: reply(554, "5.6.0 Message content is not acceptable"),
	401: reply(530, "5.7.0 Authentication required"),
	403: reply(550, "5.7.1 Access denied"),
	404: reply(550, "5.7.1 Relaying denied"),
	408: reply(451, "4.4.2 Timeout"),
	413: reply(552, "5.3.4 Message too big for system"),
	429: reply(451, "4.7.0 Too many messages, slow down"),
	500: reply(451, "4.3.0 Internal error"),
	502: unavailable, 503: unavailable, 504: unavailable,
}

var conditions = map[provider.ConditionKind]provider.Answer{
	provider.Garbage:     reply(0, "<html><body>It works!</body></html>\r\n"),
	provider.NoCredits:   reply(550, "5.7.0 No credits left"),
	provider.Full:        reply(452, "4.5.3 Daily limit exceeded"),
	provider.Unverified:  reply(550, "5.7.27 Sender is not verified"),
	provider.Blocked:     reply(550, "5.7.1 Your address is blocked"),
	provider.NotAllowed:  reply(535, "5.7.8 Account suspended"),
	provider.LargeBatch:  reply(452, "4.5.3 Too many recipients"),
	provider.TooLarge:    statuses[413],
	provider.RateLimited: statuses[429],
}

// refusals are the replies to a mail to one recipient, by what happens to it.
var refusals = map[message.Outcome]provider.Answer{
	message.Blocked:          reply(550, "5.7.1 Refused because of the reputation of the sending address"),
	message.MailboxFull:      reply(552, "5.2.2 Mailbox full"),
	message.SuppressedBounce: reply(550, "5.7.1 The address is on our list"),
	message.SuppressedSpam:   reply(550, "5.7.1 The address is on our list"),
	message.Rejected:         reply(554, "5.6.0 Message content is not acceptable"),
	message.OverQuota:        reply(452, "4.5.3 Daily limit exceeded"),
}

// Unknown are the outcomes of addresses that the server refuses before it reads the mail.
var Unknown = []message.Outcome{message.HardBounce, message.Invalid, message.Refused}

// New returns the provider for an account. Its key is the password of any user.
func New(a *provider.Account) (*provider.Provider, error) {
	p := &provider.Provider{
		Account:      a,
		Stages:       new(provider.Wording).Stages(),
		Statuses:     statuses,
		Conditions:   conditions,
		Unauthorized: func(*http.Request) int { return 0 }, // the session asks for the password
	}
	p.Routes = []provider.Route{{Path: "POST transaction", Send: &provider.Send{Limit: MaxMail, Parse: func(
		r *http.Request, body string,
	) (*provider.Call, *provider.Answer) {
		return parse(r, body, a.Options.RecipientKey)
	}}}}
	return p, nil
}

// Metadata returns the metadata of a mail: the local part of the id of its envelope (RFC 3461, 4.4).
func Metadata(envelope, key string) []message.Pair {
	id, _, _ := strings.Cut(envelope, "@")
	return []message.Pair{{Key: key, Value: id}}
}

// parse reads a mail and its envelope.
func parse(r *http.Request, body, key string) (*provider.Call, *provider.Answer) {
	head := &message.Batch{From: r.Header.Get(From)}
	m := provider.Mail{Head: head}
	c := &provider.Call{}
	in, err := mail.ReadMessage(strings.NewReader(body))
	if err != nil {
		a := statuses[http.StatusBadRequest]
		return c, &a
	}
	names, roles := map[string]string{}, map[string]uint8{}
	for field, flags := range map[string]uint8{"To": 0, "Cc": message.CC} {
		list, _ := in.Header.AddressList(field)
		for _, a := range list {
			names[a.Address], roles[a.Address] = a.Name, flags
		}
	}
	for _, address := range r.Header[To] {
		flags, named := roles[address]
		if !named {
			flags = message.BCC
		}
		m.To = append(m.To, provider.Recipient{Address: address, Name: names[address], Flags: flags})
	}
	m.Metadata = Metadata(r.Header.Get(Envelope), key)
	content := message.Content{Headers: map[string]string{}}
	words := mime.WordDecoder{}
	content.Subject, _ = words.DecodeHeader(in.Header.Get("Subject"))
	head.Subject = content.Subject
	for name, values := range in.Header {
		if !slices.Contains(own, name) || name == "Message-Id" && values[0] != "<"+r.Header.Get(Envelope)+">" {
			content.Headers[name] = values[0]
		}
	}
	read(textproto.MIMEHeader(in.Header), in.Body, head, &content)
	c.Mails = []provider.Mail{m}
	c.Content = func(int, int) message.Content { return content }
	c.Invalid = func([]provider.Place) *provider.Answer {
		a := reply(550, "5.1.1 No such user")
		return &a
	}
	c.Accept = func(stored []*message.Batch) provider.Answer {
		if copies := stored[0].Copies; len(copies) == 1 {
			if a, ok := refusals[copies[0].Outcome]; ok {
				return a
			}
		}
		return reply(250, "2.0.0 Ok: queued")
	}
	return c, nil
}

// own are the header fields that every mail has. A Message-ID that is the id of the envelope is none of the sender's.
var own = []string{"From", "To", "Cc", "Subject", "Date", "Message-Id", "Mime-Version", "Content-Type",
	"Content-Transfer-Encoding", "User-Agent", "X-Mailer"}

// read adds a part of a mail to its content.
func read(h textproto.MIMEHeader, body io.Reader, head *message.Batch, content *message.Content) {
	kind, params, _ := mime.ParseMediaType(cmp.Or(h.Get("Content-Type"), "text/plain"))
	if strings.HasPrefix(kind, "multipart/") {
		for parts := multipart.NewReader(body, params["boundary"]); ; {
			p, err := parts.NextRawPart()
			if err != nil {
				return
			}
			read(p.Header, p, head, content)
		}
	}
	switch strings.ToLower(h.Get("Content-Transfer-Encoding")) {
	case "base64":
		body = base64.NewDecoder(base64.StdEncoding, body)
	case "quoted-printable":
		body = quotedprintable.NewReader(body)
	}
	data, _ := io.ReadAll(body) // it is in memory
	disposition, names, _ := mime.ParseMediaType(h.Get("Content-Disposition"))
	switch {
	case disposition == "" && kind == "text/plain":
		content.Text = string(bytes.ReplaceAll(data, []byte("\r\n"), []byte("\n")))
	case disposition == "" && kind == "text/html":
		content.HTML = string(bytes.ReplaceAll(data, []byte("\r\n"), []byte("\n")))
	default:
		delete(params, "name") // that of the disposition counts
		head.Attachments = append(head.Attachments, message.NewAttachment(names["filename"],
			mime.FormatMediaType(kind, params), strings.Trim(h.Get("Content-Id"), "<>"), data))
	}
}
