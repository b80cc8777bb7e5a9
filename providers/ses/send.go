package ses

import (
	"cmp"
	"context"
	"net/http"
	"net/mail"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sesv2"
	"github.com/aws/aws-sdk-go-v2/service/sesv2/types"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers/internal/kind"
	"github.com/safedelivr/safedelivr/providers/internal/message"
	"github.com/safedelivr/safedelivr/providers/internal/transport"
)

// A request is the input of one call of the SDK.
type request struct {
	one  *sesv2.SendEmailInput     // one mail, to one or several
	many *sesv2.SendBulkEmailInput // a mail for each
}

// Send implements models.Adapter.
func (p *Adapter) Send(ctx context.Context, c *models.Call) []models.Part {
	do := func(ctx context.Context, r request) error { return p.do(ctx, r, p.Client.HTTP, *p.access.Load()) }
	return kind.Send(ctx, &p.Base, c, p.compose, do, p.classify)
}

// Compose implements models.Composer. The SDK writes the request into a transport that keeps it.
func (p *Adapter) Compose(c *models.Call) (models.Request, []models.Part) {
	r, refused := p.compose(c)
	if refused != nil {
		return models.Request{}, refused
	}
	var kept transport.Kept
	none := aws.Credentials{AccessKeyID: "none", SecretAccessKey: "none"}
	_ = p.do(context.Background(), r, &http.Client{Transport: &kept}, none) // always an error: nothing is sent
	return kept.Request, nil
}

// do makes a request through an HTTP client.
func (p *Adapter) do(ctx context.Context, r request, client *http.Client, key aws.Credentials) (err error) {
	own := func(o *sesv2.Options) {
		o.HTTPClient = client
		o.Credentials = aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) { return key, nil })
	}
	if r.one != nil {
		_, err = p.api.SendEmail(ctx, r.one, own)
	} else {
		_, err = p.api.SendBulkEmail(ctx, r.many, own)
	}
	return err
}

// compose returns the request of a call, or the parts of one that cannot be made.
func (p *Adapter) compose(c *models.Call) (r request, refused []models.Part) {
	refused = message.Check(c, Spec.Recipients)
	switch {
	case refused != nil:
		return r, refused
	case c.Content.Subject == "": // it is not documented what happens to it
		return r, message.Refuse(c.Numbers(), "", "a message without a subject is not sent through Amazon SES")
	case c.Content.Size()+c.Content.AttachmentSize()/3 > maxMail:
		return r, message.Refuse(c.Numbers(), models.TooLarge, "the message is larger than the 40 MB that Amazon SES takes")
	case c.Together() || len(c.Recipients) == 1:
		r.one, refused = p.single(c)
	default:
		r.many, refused = p.bulk(c)
	}
	return r, refused
}

// single returns the request for one mail.
func (p *Adapter) single(c *models.Call) (*sesv2.SendEmailInput, []models.Part) {
	var flaws message.Flaws
	to := &c.Recipients[0]
	m, missing := message.Render(c.Content, &to.Recipient)
	if missing != "" {
		flaws.Lack(to, missing)
	}
	headers, fit := fields(m.Headers)
	if !fit || len(m.Text)+len(m.HTML)+int(c.Content.AttachmentSize())/3*4 > maxMail {
		flaws.TooLong(to)
	}
	list := map[models.Role][]string{}
	for _, role := range [3]models.Role{models.To, models.CC, models.BCC} {
		for _, r := range message.In(role, c, to) {
			list[role] = append(list[role], address(r.Name, r.Email))
		}
	}
	in := &sesv2.SendEmailInput{
		FromEmailAddress:     aws.String(address(c.Content.From.Name, c.Content.From.Email)),
		ReplyToAddresses:     replies(c),
		ConfigurationSetName: optional(p.set),
		EmailTags:            tags(c, to),
		Destination: &types.Destination{
			ToAddresses:  list[models.To],
			CcAddresses:  list[models.CC],
			BccAddresses: list[models.BCC],
		},
		Content: &types.EmailContent{Simple: &types.Message{
			Subject:     text(m.Subject),
			Body:        &types.Body{Text: text(m.Text), Html: text(m.HTML)},
			Headers:     headers,
			Attachments: attachments(c),
		}},
	}
	return in, flaws.Parts(c, tooLong)
}

const tooLong = "the recipient's header fields or values are longer than Amazon SES takes"

// bulk returns the request for a mail to each. Its template has a variable for each placeholder in each of its forms,
// because the values are put in as they are. What a template cannot carry is sent to one recipient a call.
func (p *Adapter) bulk(c *models.Call) (*sesv2.SendBulkEmailInput, []models.Part) {
	l := newLayout(c.Content)
	lone := ""
	if len(l.Subject)+len(l.Text)+len(l.HTML) > maxTemplate {
		lone = "Amazon SES takes a message of more than 500 kB only for one recipient a call"
	}
	var flaws message.Flaws
	entries := make([]types.BulkEmailEntry, len(c.Recipients))
	for i := range c.Recipients {
		var why string
		entries[i], why = l.entry(c, &c.Recipients[i], &flaws)
		lone = cmp.Or(lone, why)
	}
	if lone != "" {
		parts := message.Refuse(c.Numbers(), models.TooLarge, lone)
		parts[0].Fewer = 1
		return nil, parts
	}
	in := &sesv2.SendBulkEmailInput{
		FromEmailAddress:     aws.String(address(c.Content.From.Name, c.Content.From.Email)),
		ReplyToAddresses:     replies(c),
		ConfigurationSetName: optional(p.set),
		BulkEmailEntries:     entries,
		DefaultContent: &types.BulkEmailContent{Template: &types.Template{
			Attachments:  attachments(c),
			TemplateData: aws.String("{}"),
			TemplateContent: &types.EmailTemplateContent{
				Subject: &l.Subject, Text: optional(l.Text), Html: optional(l.HTML),
			},
		}},
	}
	return in, flaws.Parts(c, "")
}

// A layout is a content as a template.
type layout struct {
	message.Filled
	braces []string // texts that all recipients have as a value, because they could be read as tags
}

func newLayout(c *models.Content) (l layout) {
	l.Filled = message.Fill(c, func(i int, _ message.Var) string { return "{{v" + strconv.Itoa(i) + "}}" },
		func(_ message.Form, s string) string {
			return theirs.ReplaceAllStringFunc(s, func(text string) string {
				at := slices.Index(l.braces, text)
				if at < 0 {
					at, l.braces = len(l.braces), append(l.braces, text)
				}
				return "{{b" + strconv.Itoa(at) + "}}"
			})
		})
	return l
}

// entry returns the mail to a recipient. lone is why it cannot be one of several; "" if it can.
func (l *layout) entry(
	c *models.Call, r *models.CallRecipient, flaws *message.Flaws,
) (e types.BulkEmailEntry, lone string) {
	data := kind.Writer{'{'}
	for i, v := range l.Vars {
		value, ok := v.Value(&r.Recipient)
		if !ok {
			flaws.Lack(r, v.Name)
		}
		data.Field("v"+strconv.Itoa(i), value)
	}
	for i, text := range l.braces {
		data.Field("b"+strconv.Itoa(i), text)
	}
	var own []models.Header
	for _, h := range c.Content.HeadersOf(&r.Recipient) {
		value, missing := message.Header(&h, &r.Recipient)
		if missing != "" {
			flaws.Lack(r, missing)
		}
		if strings.Contains(value, "{{") {
			lone = "Amazon SES could take {{ in a header field for a variable of its own"
		}
		own = append(own, models.Header{Name: h.Name, Value: value})
	}
	headers, fit := fields(own)
	if len(data) >= maxData || !fit {
		lone = tooLong
	}
	return types.BulkEmailEntry{
		Destination:        &types.Destination{ToAddresses: []string{address(r.Name, r.Email)}},
		ReplacementHeaders: headers,
		ReplacementTags:    tags(c, r),
		ReplacementEmailContent: &types.ReplacementEmailContent{
			ReplacementTemplate: &types.ReplacementTemplate{ReplacementTemplateData: aws.String(string(*data.End('}')))},
		},
	}, lone
}

// theirs matches what a template engine could read as a tag, or as a part of one of ours. A backslash protects a tag
// from Handlebars, and a third brace changes its meaning.
var theirs = regexp.MustCompile(`[\\{]*\{\{[\\{]*|[\\{]+$|^\}+`)

// tags returns what comes back with the events of a mail.
func tags(c *models.Call, to *models.CallRecipient) []types.MessageTag {
	return []types.MessageTag{
		{Name: aws.String(kind.LogKey), Value: aws.String(to.Log.String())},
		{Name: aws.String(kind.AttemptKey), Value: aws.String(strconv.Itoa(c.Attempt))},
	}
}

// fields returns header fields, and whether Amazon SES takes them.
func fields(list []models.Header) (out []types.MessageHeader, fit bool) {
	fit = true
	for _, h := range list {
		fit = fit && len(h.Name) <= maxName && len(h.Name)+len(h.Value) <= maxField
		out = append(out, types.MessageHeader{Name: aws.String(h.Name), Value: aws.String(h.Value)})
	}
	return out, fit
}

func attachments(c *models.Call) (out []types.Attachment) {
	for i, data := range c.Files {
		a := &c.Content.Attachments[i]
		file := types.Attachment{
			FileName:                &a.Filename,
			ContentType:             &a.Type,
			RawContent:              data,
			ContentDisposition:      types.AttachmentContentDispositionAttachment,
			ContentTransferEncoding: types.AttachmentContentTransferEncodingBase64,
		}
		if a.ContentID != "" {
			file.ContentId, file.ContentDisposition = &a.ContentID, types.AttachmentContentDispositionInline
		}
		out = append(out, file)
	}
	return out
}

func replies(c *models.Call) (out []string) {
	for _, a := range c.Content.ReplyTo {
		out = append(out, address(a.Name, a.Email))
	}
	return out
}

// address returns an address with its name, which is quoted, or encoded if it is not ASCII (RFC 2047).
func address(name, email string) string {
	if name = message.Name(name); name == "" {
		return email
	}
	return strings.TrimSuffix((&mail.Address{Name: name, Address: "a@b"}).String(), "<a@b>") + "<" + email + ">"
}

// text returns a part of a mail; nil: it has none.
func text(s string) *types.Content {
	if s == "" {
		return nil
	}
	return &types.Content{Data: &s, Charset: aws.String("UTF-8")}
}

// optional returns a member that is left out if it is empty.
func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}
