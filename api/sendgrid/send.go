package sendgrid

import (
	"cmp"
	"encoding/json"
	"net/http"
	"net/mail"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/api/dialect"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/intake"
)

const (
	maxBody = 60 << 20 // 30 MB of a mail as base64, and more
	maxMail = 1000     // personalizations, and addresses, of a request

	groupPrefix = "group-" // of the category of mail to a group of recipients who may unsubscribe
)

// request is a request for mail.
type request struct {
	dialect.Object
	parts  []dialect.Object // personalizations
	groups [][]int          // of personalizations that share a batch
	alone  []bool           // a group is one mail to several
	first  models.ID        // batch of the first group, whose id is the answer
}

var known = dialect.Among("personalizations from reply_to reply_to_list subject content attachments template_id " +
	"headers categories custom_args send_at asm mail_settings tracking_settings")

// send is POST /v3/mail/send.
func send(r *dialect.Request) (dialect.Answer, error) {
	var q request
	if err := dialect.ReadJSON(r, maxBody, &q.Object); err != nil {
		return dialect.Answer{}, err
	}
	r.Ignore(q.Names(), known)
	if err := q.check(); err != nil {
		return dialect.Answer{}, err
	}
	if q.setting("mail_settings", "sandbox_mode") {
		for i := range q.groups {
			if err := q.accept(r, i, nil); err != nil {
				return dialect.Answer{}, err
			}
		}
		return dialect.Answer{Status: http.StatusOK}, nil
	}
	hash := dialect.Digest(q.Object)
	err := r.Each(hash, slices.Repeat([]string{hash}, len(q.groups)), true, func(i int, repeat *service.Repeat) error {
		return q.accept(r, i, repeat)
	})
	header := http.Header{"X-Message-Id": {strings.ReplaceAll(q.first.String(), "-", "")}}
	return dialect.Answer{Status: http.StatusAccepted, Batch: q.first, Header: header}, err
}

// check reads the personalizations and groups them.
func (q *request) check() error {
	if json.Unmarshal(q.Raw("personalizations"), &q.parts) != nil || len(q.parts) == 0 || len(q.parts) > maxMail {
		return invalid("personalizations", "It must be a list of 1 to 1000 objects.")
	}
	if q.Raw("sections") != nil {
		return invalid("sections", "Safedelivr has no sections.")
	}
	if q.Raw("reply_to") != nil && q.Raw("reply_to_list") != nil {
		return invalid("reply_to", "There may be only one of reply_to and reply_to_list.")
	}
	known := map[string]int{}
	for i, p := range q.parts {
		var to []json.RawMessage
		if json.Unmarshal(p.Raw("to"), &to) != nil || len(to) == 0 {
			return invalid("personalizations."+strconv.Itoa(i)+".to", "It must be a list of addresses.")
		}
		several := len(to) > 1 || p.Raw("cc") != nil || p.Raw("bcc") != nil
		alike := dialect.Object{}
		for _, name := range []string{"subject", "from", "reply_to", "headers", "send_at"} {
			if raw := p.Raw(name); raw != nil {
				alike[name] = raw
			}
		}
		key := dialect.Digest(alike)
		if group, ok := known[key]; ok && !several {
			q.groups[group] = append(q.groups[group], i)
			continue
		}
		if !several {
			known[key] = len(q.groups)
		}
		q.groups, q.alone = append(q.groups, []int{i}), append(q.alone, several)
	}
	return nil
}

// setting reports whether a setting of a group is on.
func (q *request) setting(group, name string) bool {
	settings, _ := q.Object.Object(group) // no object: it is off
	one, _ := settings.Object(name)
	return one.Text("enable") == "true"
}

// accept stores the mail of a group. Without a repeat it only checks it.
func (q *request) accept(r *dialect.Request, group int, repeat *service.Repeat) error {
	a, err := r.Accept(repeat, func(in *intake.Intake) error {
		in.PartOf = q.first
		return q.read(in, group)
	})
	if group == 0 {
		q.first = a.ID
	}
	return err
}

// read turns the personalizations of a group into a batch.
func (q *request) read(in *intake.Intake, group int) error {
	b, p := &in.Batch, q.parts[q.groups[group][0]]
	s := newSubstitutes(q, q.groups[group])
	var err error
	if b.From, err = addressOf(cmp.Or(string(p.Raw("from")), string(q.Raw("from"))), "from"); err != nil {
		return err
	}
	replies := cmp.Or(string(p.Raw("reply_to")), string(q.Raw("reply_to")), string(q.Raw("reply_to_list")))
	if b.ReplyTo, err = addressesOf(json.RawMessage("["+strings.Trim(replies, "[] \n")+"]"), "reply_to"); err != nil {
		return err
	}
	b.Subject = s.text(cmp.Or(p.Text("subject"), q.Text("subject")))
	b.AllowDuplicates, b.Together = !q.alone[group], q.alone[group]
	if q.alone[group] {
		if b.CC, err = addressesOf(p.Raw("cc"), "cc"); err != nil {
			return err
		}
		if b.BCC, err = addressesOf(p.Raw("bcc"), "bcc"); err != nil {
			return err
		}
	}
	for _, step := range []func() error{
		func() error { return q.readContent(in, s) },
		func() error { return readHeaders(b, p, s) },
		func() error { return readHeaders(b, q.Object, s) },
		func() error { return q.readOptions(b, p) },
		func() error { return in.AddContent(len(b.Subject) + len(b.Text) + len(b.HTML)) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return q.readRecipients(in, group, s)
}

// readRecipients reads the recipients of a group.
func (q *request) readRecipients(in *intake.Intake, group int, s *substitutes) error {
	var list []intake.Recipient
	for _, i := range q.groups[group] {
		p := q.parts[i]
		to, err := addressesOf(p.Raw("to"), "personalizations."+strconv.Itoa(i)+".to")
		if err != nil {
			return err
		}
		for k, address := range to {
			r := intake.Recipient{Email: address}
			if k == 0 {
				args, _ := p.Object("custom_args") // no object: there are none
				r.Raw, r.Metadata = s.values(p), args.Strings()
				if data, _ := p.Object("dynamic_template_data"); q.Text("template_id") != "" {
					data.Fill(&r)
				}
			}
			list = append(list, r)
		}
	}
	if len(list) > maxMail {
		return invalid("personalizations", "A request may have 1000 recipients.")
	}
	return in.Read(intake.Of(list...))
}

// readContent reads the bodies and the attachments, or the name of a template.
func (q *request) readContent(in *intake.Intake, s *substitutes) error {
	b := &in.Batch
	content, ok := q.Objects("content")
	if !ok {
		return invalid("content", "It must be a list of objects with type and value.")
	}
	var files dialect.Files
	for _, c := range content {
		kind, value := c.Text("type"), c.Text("value")
		switch base, _, _ := strings.Cut(kind, ";"); {
		case base == "text/plain" && b.Text == "":
			b.Text = s.text(value)
		case base == "text/html" && b.HTML == "":
			b.HTML = s.text(value)
		case value != "" && base != "text/x-amp-html":
			if err := files.Attach(in, "", kind, "", strings.NewReader(value)); err != nil {
				return err
			}
		}
	}
	err := files.AttachAll(in, q.Object, "attachments", "content", "filename", func(a dialect.Object) (kind, id string, err error) {
		if a.Text("disposition") == "inline" {
			id = a.Text("content_id")
		}
		return a.Text("type"), id, nil
	})
	if err != nil {
		return err
	}
	if q.Text("template_id") != "" {
		b.Template, b.Subject, b.Text, b.HTML = q.Text("template_id"), "", "", ""
	}
	return nil
}

// readHeaders adds the header fields of an object. Those that are there count before them.
func readHeaders(b *intake.Batch, of dialect.Object, s *substitutes) error {
	headers, ok := of.Object("headers")
	if !ok {
		return invalid("headers", "It must be an object.")
	}
	for _, name := range headers.Names() {
		dialect.AddHeader(b, name, headers.Text(name), s.text)
	}
	return nil
}

// readOptions reads what else a mail may have.
func (q *request) readOptions(b *intake.Batch, p dialect.Object) error {
	categories, ok := q.Texts("categories")
	if !ok {
		return invalid("categories", "It must be a list of texts.")
	}
	for _, category := range categories {
		dialect.AddTag(b, category)
	}
	args, _ := q.Object.Object("custom_args") // no object: there are none
	b.Metadata = args.Strings()
	if text := cmp.Or(p.Text("send_at"), q.Text("send_at")); text != "" {
		seconds, err := strconv.ParseInt(text, 10, 64)
		if err != nil || seconds < 0 || seconds > 1<<37 {
			return invalid("send_at", "It must be a Unix time in seconds.")
		}
		if at := time.Unix(seconds, 0); at.After(time.Now()) {
			b.DeliverAt = at.UTC().Format(time.RFC3339)
		}
	}
	const tracking = "tracking_settings"
	b.TrackOpens, b.TrackClicks = q.setting(tracking, "open_tracking"), q.setting(tracking, "click_tracking")
	if on := q.setting(tracking, "subscription_tracking"); on {
		b.Unsubscribe = &on
	}
	if asm, _ := q.Object.Object("asm"); asm.Text("group_id") != "" {
		b.Category = groupPrefix + asm.Text("group_id")
	}
	return nil
}

// addressOf returns an address {email, name} as the intake reads it.
func addressOf(raw, field string) (string, error) {
	var a struct{ Email, Name string }
	if raw == "" {
		return "", nil
	}
	if json.Unmarshal([]byte(raw), &a) != nil {
		return "", invalid(field, "It must be an object with email and name.")
	}
	if a.Name == "" {
		return a.Email, nil
	}
	if _, err := intake.ParseAddress(a.Email); err != nil {
		return a.Email, nil //nolint:nilerr // the intake reports it
	}
	return (&mail.Address{Name: models.OneLine(a.Name), Address: a.Email}).String(), nil
}

func addressesOf(raw json.RawMessage, field string) (out []string, err error) {
	var list []json.RawMessage
	if len(raw) > 0 && json.Unmarshal(raw, &list) != nil {
		return nil, invalid(field, "It must be a list of addresses.")
	}
	for _, one := range list {
		address, err := addressOf(string(one), field)
		if err != nil {
			return nil, err
		}
		out = append(out, address)
	}
	return out, nil
}
