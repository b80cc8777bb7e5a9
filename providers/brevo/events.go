package brevo

import (
	"cmp"
	"encoding/json"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers/internal/kind"
	"github.com/safedelivr/safedelivr/providers/internal/parse"
)

// events are Brevo's, by their names without '_' and a last 's': webhooks say hard_bounce, and the log hardBounces.
var events = kind.Events{
	kind.On("request", "request", "Sent", models.Processed),
	kind.On("delivered", "delivered", "Delivered", models.Delivered),
	kind.On("deferred", "deferred", "Deferred", models.Deferred),
	kind.On("softbounce", "softBounce", "Soft bounced", models.Bounced, models.Blocked),
	kind.On("hardbounce", "hardBounce", "Hard bounced", models.Bounced, models.Blocked),
	kind.On("bounce", "", "", models.Bounced),
	kind.On("invalidemail", "invalid", "Invalid email", models.Bounced),
	kind.On("invalid", "", "", models.Bounced),
	kind.On("blocked", "blocked", "Blocked", models.Dropped),
	kind.On("error", "", "Error", models.Rejected),
	kind.On("spam", "spam", "Complaint", models.Complained),
	kind.On("complaint", "", "", models.Complained),
	kind.On("unsubscribed", "unsubscribed", "Unsubscribed", models.Unsubscribed),
	kind.On("unsubscribe", "", "", models.Unsubscribed),
	kind.On("opened", "opened", "Opened", models.Opened),
	kind.On("uniqueopened", "uniqueOpened", "First opening", models.Opened),
	kind.On("proxyopen", "", "", models.Opened),
	kind.On("uniqueproxyopen", "", "", models.Opened),
	kind.On("loadedbyproxy", "", "", models.Opened),
	kind.On("click", "click", "Clicked", models.Clicked),
}

// A post is an event. A webhook has one or a list of them.
type post struct {
	Event     parse.Str       `json:"event"`
	Email     parse.Str       `json:"email"`
	MessageID parse.Str       `json:"message-id"`
	Epoch     parse.Str       `json:"ts_epoch"` // the only time that has no zone of its own
	Reason    parse.Str       `json:"reason"`
	Link      parse.Str       `json:"link"`
	Custom    parse.Str       `json:"X-Mailin-custom"`
	Tag       parse.Str       `json:"tag"` // all tags, as JSON
	Tags      json.RawMessage `json:"tags"`
}

// Parse implements models.Adapter.
func (p *Adapter) Parse(body []byte) (out models.Parsed) {
	list := []json.RawMessage{body}
	if trimmed := strings.TrimSpace(string(body)); strings.HasPrefix(trimmed, "[") && json.Unmarshal(body, &list) != nil {
		list = []json.RawMessage{body}
	}
	for i, raw := range list {
		var in post
		if json.Unmarshal(raw, &in) != nil && in.Event == "" {
			out.Skipped = append(out.Skipped, "event "+strconv.Itoa(i+1)+": not a JSON object that can be read")
			continue
		}
		r := in.report()
		r.AddTo(&out, i+1)
	}
	return out
}

// report returns the event. Its ID is made from what webhooks and the log have in common.
func (in *post) report() kind.Report {
	r := kind.Report{Name: in.Event, MessageID: messageID(in.MessageID), Address: string(in.Email)}
	name := strings.TrimSuffix(strings.ToLower(strings.ReplaceAll(string(in.Event), "_", "")), "s")
	r.Kind, r.At = events.Kind(name), epoch(in.Epoch)
	r.ID = parse.Hash(r.MessageID, strings.ToLower(r.Address), string(r.Kind), strconv.FormatInt(r.At.Unix(), 10),
		string(in.Link))
	parse.Into([]byte(in.Custom), &r.Ours)
	r.Tag = ourTag(in.Tag, in.Tags)
	if in.Custom == "" && r.Tag == "" {
		r.Lost = "not a mail of ours (it has neither our header field nor our tag)"
	}
	switch r.Kind {
	case models.Bounced, models.Deferred:
		in.bounce(name, &r.Event)
	case models.Dropped, models.Rejected:
		r.Text, r.Reason = parse.Text(string(in.Reason)), models.ProviderDropped
		if strings.Contains(strings.ToLower(string(in.Reason)), "blacklist") {
			r.Reason = models.SuppressedBounce // or the recipient complained or unsubscribed, as the list then says
		}
	}
	return r
}

var prefix = regexp.MustCompile(`^(\d{3} )?\w*Error: `)

// bounce sets kind and reason of an event that says that a mail was not delivered, or not yet. A soft bounce never says
// that the mailbox is invalid, even if the server did.
func (in *post) bounce(name string, ev *models.Event) {
	text := prefix.ReplaceAllString(strings.TrimSpace(string(in.Reason)), "")
	reply := parse.NewReply("", "", text)
	ev.Status, ev.Enhanced, ev.Text, ev.BounceClass = reply.Code, reply.Enhanced, parse.Text(text), name
	soft := ev.Kind == models.Deferred || name == "softbounce" || name == "bounce"
	said := reply.Reason()
	switch {
	case soft && said == models.MailboxInvalid:
		said = ""
	case !soft && (said == "" || strings.HasPrefix(name, "invalid")):
		said = models.MailboxInvalid
	}
	if ev.Reason = said; ev.Kind == models.Deferred {
		return
	}
	ev.Reason = cmp.Or(said, models.BounceUnknown)
	if said == models.PolicyContent || said == models.PolicyReputation {
		ev.Kind = models.Blocked
	}
}

// epoch reads milliseconds, or seconds, which old kinds of event have. It is zero if there are none.
func epoch(s parse.Str) (at time.Time) {
	if n, err := strconv.ParseInt(string(s), 10, 64); err == nil && n > 1e11 && n < 1e14 {
		return time.UnixMilli(n).UTC()
	}
	at, _ = parse.Time(s)
	return at
}

// messageID returns a message id without its domain. With it, it would look like an address.
func messageID(id parse.Str) string {
	local, _, _ := strings.Cut(strings.Trim(string(id), "<> "), "@")
	return parse.Text(local)
}

// ourTag returns the tag that names a chunk, or "". Tags are a list, or the JSON of one, or a single one.
func ourTag(tag parse.Str, list json.RawMessage) string {
	var tags []parse.Str
	parse.Into(list, &tags)
	if strings.HasPrefix(string(tag), "[") {
		var more []parse.Str
		parse.Into([]byte(tag), &more)
		tags = append(tags, more...)
	}
	for _, one := range append(tags, tag) {
		if _, _, why := parse.OurTag(string(one)); why == "" {
			return string(one)
		}
	}
	return ""
}
