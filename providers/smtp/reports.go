package smtp

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"errors"
	"net/mail"
	"net/textproto"
	"strconv"
	"strings"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers/internal/kind"
	"github.com/safedelivr/safedelivr/providers/internal/mailbox"
	"github.com/safedelivr/safedelivr/providers/internal/parse"
	"github.com/safedelivr/safedelivr/providers/internal/report"
)

// A token names a mail where reports bring it back: its log, its attempt, and a code of both that only holders of the key
// can make. It is written in lower case, because servers change the case of addresses.
const (
	logSize     = len(models.ID{})
	attemptSize = 3
	codeSize    = 8
	tokenSize   = logSize + attemptSize + codeSize
)

var alphabet = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// maxBounceName is how long the local part of the bounce address may be: it gets "+" and a token, and has 64 octets then
// at most (RFC 5321, 4.5.3.1.1).
const maxBounceName = 64 - 1 - (tokenSize*8+4)/5

// idHeader is the header field with the token of a mail: complaints and some reports of delivery have its header.
const idHeader = "X-Safedelivr-Id"

// code returns the code of a log and an attempt.
func (p *Adapter) code(key string, named []byte) []byte {
	h := hmac.New(sha256.New, []byte(key))
	_, _ = h.Write([]byte("report " + p.name + " "))
	_, _ = h.Write(named)
	return h.Sum(nil)[:codeSize]
}

// token returns the token of a mail, or "" if no reports of it are wanted.
func (p *Adapter) token(log models.ID, attempt int) string {
	key := p.account.Load().keys[0]
	if p.bounces.BounceAddress == "" || attempt < 1 || attempt > parse.MaxAttempt {
		return ""
	}
	named := binary.BigEndian.AppendUint64(log[:], uint64(attempt)<<(64-8*attemptSize))[:logSize+attemptSize]
	return alphabet.EncodeToString(append(named, p.code(key, named)...))
}

// returnPath returns the address to which reports about a mail with a token are sent.
func (p *Adapter) returnPath(sender, token string) string {
	if token == "" {
		return sender
	}
	name, domain, _ := strings.Cut(p.bounces.BounceAddress, "@")
	return name + "+" + token + "@" + domain
}

// named returns the log and the attempt that a token names, if it is genuine.
func (p *Adapter) named(token string) (log models.ID, attempt int, ok bool) {
	raw, err := alphabet.DecodeString(token)
	if err != nil || len(raw) != tokenSize {
		return log, 0, false
	}
	named, code := raw[:logSize+attemptSize], raw[logSize+attemptSize:]
	for _, key := range p.account.Load().keys {
		ok = ok || key != "" && hmac.Equal(code, p.code(key, named))
	}
	copy(log[:], named)
	return log, int(binary.BigEndian.Uint32(raw[logSize:]) >> (32 - 8*attemptSize)), ok
}

// carriers are the fields that bring a token back: those of the recipient of a report, and of the mail that it is about.
var carriers = []string{"X-Original-To", "Delivered-To", "Envelope-To", "X-Envelope-To", "To", "Original-Mail-From",
	"Return-Path", idHeader}

// find returns the log and the attempt of the first genuine token in a report. The address to which the report was sent
// comes first.
func (p *Adapter) find(r *report.Report) (log models.ID, attempt int, ok bool) {
	for _, fields := range []textproto.MIMEHeader{r.Header, r.About, r.Original} {
		for _, name := range carriers {
			for _, value := range fields[name] {
				for _, word := range strings.FieldsFunc(strings.ToLower(value), noToken) {
					if log, attempt, ok = p.named(word); ok {
						return log, attempt, true
					}
				}
			}
		}
	}
	return log, attempt, false
}

// noToken reports whether no token has a character.
func noToken(r rune) bool { return !(r >= 'a' && r <= 'z' || r >= '2' && r <= '7') }

// actions are what happened to a mail, in the words of reports of delivery (RFC 3464, 2.3.3).
var actions = map[string]models.EventKind{
	"failed":    models.Bounced,
	"delayed":   models.Deferred,
	"delivered": models.Delivered,
	"relayed":   models.Processed,
	"expanded":  models.Processed,
}

// Parse implements models.Adapter. It parses a mail with a report about a mail of this provider.
func (p *Adapter) Parse(body []byte) (out models.Parsed) {
	r, ok := report.Read(body)
	log, attempt, known := p.find(&r)
	if !ok || !known {
		out.Skipped = append(out.Skipped, "no report about a mail of this provider")
		return out
	}
	at, _ := mail.ParseDate(r.Header.Get("Date"))
	add := func(name, address string, same ...string) *kind.Report {
		return &kind.Report{Name: parse.Str(name), Address: report.Value(address),
			Ours:  kind.Ours{Log: parse.Str(log.String()), Attempt: parse.Str(strconv.Itoa(attempt))},
			Same:  append(same, name, cmp.Or(r.Header.Get("Message-Id"), r.Header.Get("Date"))),
			Event: models.Event{At: at.UTC()}}
	}
	if r.Complaint {
		one := add(strings.ToLower(r.About.Get("Feedback-Type")), r.About.Get("Original-Rcpt-To"))
		if one.Name == "abuse" { // the others are no complaints: not-spam, auth-failure, virus
			one.Kind = models.Complained
		}
		one.AddTo(&out, 1)
		return out
	}
	for i, fields := range r.Recipients {
		action, _, _ := strings.Cut(strings.ToLower(fields.Get("Action")), " ")
		address := cmp.Or(fields.Get("Original-Recipient"), fields.Get("Final-Recipient"))
		one := add(action, address, fields.Get("Final-Recipient"), fields.Get("Status"))
		one.Kind = actions[action]
		explain(&one.Event, fields)
		one.AddTo(&out, i+1)
	}
	return out
}

// explain fills in why a mail was not delivered.
func explain(ev *models.Event, fields textproto.MIMEHeader) {
	status, _, _ := strings.Cut(fields.Get("Status"), " ")
	words := report.Value(fields.Get("Diagnostic-Code"))
	reply := parse.NewReply("", "", words)
	if reply.Enhanced == "" || !strings.HasSuffix(status, ".0.0") { // which says less than a reply with a code
		reply = parse.NewReply("", status, words)
	}
	ev.Status, ev.Enhanced, ev.Text = reply.Code, reply.Enhanced, parse.Text(words)
	switch ev.Reason = reply.Reason(); {
	case ev.Kind == models.Deferred && !reply.Permanent():
	case ev.Kind != models.Bounced:
		ev.Reason = ""
	case ev.Reason == models.PolicyContent, ev.Reason == models.PolicyReputation:
		ev.Kind = models.Blocked
	case ev.Reason == "" && strings.HasPrefix(reply.Enhanced, "4."):
		ev.Reason = models.DeliveryTimeout // it was tried until then
	}
}

// maxReports is how many mails of the mailbox are read in a round.
const maxReports = 1000

// HasMailbox reports whether the provider has a mailbox with reports.
func (p *Adapter) HasMailbox() bool { return p.bounces.BounceAddress != "" }

// ReadReports calls store with the reports in the mailbox, in groups, and removes those that it has stored. Each can be
// parsed by Parse. A report may be stored again if the process is killed meanwhile. Its events then have the same IDs.
// Mail without a report about a mail of this provider is marked as read; others is the number of those mails.
func (p *Adapter) ReadReports(ctx context.Context, store func([]models.Post) error) (others int, err error) {
	err = p.mailbox().Each(ctx, maxReports, report.MaxSize, func(group []mailbox.Mail) error {
		var posts []models.Post
		for i := range group {
			if m := &group[i]; len(p.Parse(m.Raw).Events) > 0 {
				m.Remove, posts = true, append(posts, models.Post{Body: m.Raw})
			}
		}
		if len(posts) > 0 {
			if err := store(posts); err != nil {
				return err
			}
		}
		others += len(group) - len(posts)
		return nil
	})
	if err != nil {
		err = errors.New(p.words(err.Error()))
	}
	return others, err
}
