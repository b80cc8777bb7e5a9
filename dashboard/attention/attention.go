// Package attention finds what needs the attention of a visitor.
package attention

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/dashboard/providers"
	"github.com/safedelivr/safedelivr/dashboard/web"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/condition"
	"github.com/safedelivr/safedelivr/models/telemetry"
	"github.com/safedelivr/safedelivr/service"
	"github.com/safedelivr/safedelivr/service/backlog"
	"github.com/safedelivr/safedelivr/service/mail"
	"github.com/safedelivr/safedelivr/service/operate"
)

// Attention is something that needs attention, with a link to its page.
type Attention struct {
	Grave bool
	Title string
	Text  string    // times in RFC 3339
	Next  time.Time // the next attempt; zero: there is none
	To    string
	Do    string
}

// Reader finds what needs attention.
type Reader struct {
	operate *operate.Installation
	mail    *mail.Reader
}

// New returns a reader.
func New(svc *service.Service) *Reader { return &Reader{operate: svc.Operate, mail: svc.Mail} }

// attentions are what needs the attention of a visitor.
type attentions struct {
	*Reader
	who       service.Caller
	providers []providers.Provider
	totals    *client.Counts // the visitor's, of the last days
	list      []Attention
}

func (a *attentions) add(grave bool, title, text, to, do string) {
	a.list = append(a.list, Attention{Grave: grave, Title: title, Text: text, To: to, Do: do})
}

// Of lists what needs attention, the gravest first: faults of the installation, providers that do not accept mail or
// report on it, and batches with unknown outcomes or many failures.
func (r *Reader) Of(
	ctx context.Context, who service.Caller, providers []providers.Provider, batches []mail.BatchView,
	totals *client.Counts,
) ([]Attention, error) {
	a := attentions{Reader: r, who: who, providers: providers, totals: totals}
	conditions, err := r.operate.Conditions(ctx)
	if err != nil {
		return nil, err
	}
	none := false
	for i := range conditions {
		none = none || conditions[i].Kind == condition.NoProvider || conditions[i].Kind == condition.NoWorker
		if err := a.condition(ctx, &conditions[i]); err != nil {
			return nil, err
		}
	}
	for i := range providers {
		a.provider(&providers[i], none)
	}
	for i := range batches {
		a.list = append(a.list, attendBatch(&batches[i])...)
	}
	if who.Operator {
		if err := a.operator(ctx); err != nil {
			return nil, err
		}
	}
	slices.SortStableFunc(a.list, func(a, b Attention) int {
		switch {
		case a.Grave == b.Grave:
			return 0
		case a.Grave:
			return -1
		}
		return 1
	})
	return a.list, nil
}

// Installation lists what is wrong with the installation, for operators.
func (r *Reader) Installation(ctx context.Context, who service.Caller) ([]Attention, error) {
	conditions, err := r.operate.Conditions(ctx)
	if err != nil {
		return nil, err
	}
	a := attentions{Reader: r, who: who, totals: &client.Counts{}}
	for i := range conditions {
		if err := a.condition(ctx, &conditions[i]); err != nil {
			return nil, err
		}
	}
	return a.list, nil
}

// condition adds what is wrong with the installation.
func (a *attentions) condition(ctx context.Context, c *condition.Condition) error {
	since := c.Since.UTC().Format(time.RFC3339)
	switch c.Kind {
	case condition.NoWorker:
		a.add(true, c.Title(), c.Text()+" "+c.Do(), "/operations#workers", "View workers")
	case condition.NoProvider:
		text := "Since " + since + "."
		if a.who.Operator {
			b, err := a.mail.Backlog(ctx, a.who)
			if err != nil {
				return err
			}
			text += " " + impact(&b)
		}
		a.add(true, c.Title(), text, "/providers", "View providers")
		a.list[len(a.list)-1].Next = c.Until
	case condition.WebhooksRefused:
		text := fmt.Sprintf("%s posts since %s.", web.Num(c.Posts), since)
		if n := a.totals.Providers[c.Provider].Waiting; n > 0 {
			text += " " + web.Messages(n) + " " + web.Plural(n, "waits", "wait") + " for reports."
		}
		if a.who.Operator {
			text += " " + c.Do()
		}
		a.add(true, c.Title(), text, "/settings/webhooks", "Check the key")
	case condition.NoBroker:
		text := "Since " + since + ". " + c.Text()
		if a.who.Operator {
			text += " " + c.Do()
		}
		a.add(true, c.Title(), text, "/operations", "View operations")
	case condition.DiskReserve:
		text := "Since " + since + "."
		if a.who.Operator {
			text += " " + c.Text() + " " + c.Do()
		}
		a.add(true, c.Title(), text, "/operations", "View operations")
	case condition.NoNotices:
		if a.who.Operator {
			a.add(false, c.Title(), c.Do(), "/installation/endpoints", "Add an endpoint")
		}
	}
	return nil
}

// impact says how much mail waits, how urgent it is, and for how long the oldest has waited.
func impact(b *backlog.Backlog) string {
	urgent := int64(0)
	var oldest time.Time
	for _, l := range b.Lines {
		if l.Lane == models.Urgent {
			urgent += l.Recipients
		}
	}
	for _, lane := range []models.Lane{models.Urgent, models.Bulk} {
		if l, ok := b.Oldest(lane); ok && (oldest.IsZero() || l.Since.Before(oldest)) {
			oldest = l.Since
		}
	}
	text := web.Messages(b.Queued) + " " + web.Plural(b.Queued, "waits", "wait")
	if oldest.IsZero() {
		return text + "."
	}
	return fmt.Sprintf("%s (%s urgent, the oldest for %s).", text, web.Num(urgent), web.Took(b.At.Sub(oldest)))
}

// operator adds what needs an operator's attention.
func (a *attentions) operator(ctx context.Context) error {
	check, err := a.operate.LastCheck(ctx, a.who)
	if e := web.Refused(err); err != nil && (e == nil || e.Kind != service.NotFound) {
		return err
	}
	if n := int64(check.Differences); n > 0 {
		a.add(true, fmt.Sprintf("%s %s wrong", web.Num(n), web.Plural(n, "sum is", "sums are")),
			"The newest consistency check found that. Run safedelivr check --repair.", "/operations", "View check")
	}
	holds, err := a.operate.Holds(ctx, a.who)
	if err != nil {
		return err
	}
	if len(holds) > 0 {
		a.add(false, "Mail is on hold", "It was accepted before a backup that was restored.", "/operations/parked", "Review")
	}
	return nil
}

// provider adds what is wrong with a provider. none reports that no provider accepts mail, which was said.
func (a *attentions) provider(p *providers.Provider, none bool) {
	name, to := p.Info.Title+" ("+p.Name+")", "/providers#"+p.Name
	if p.LacksWebhook && p.Refused == nil {
		a.add(true, "No webhook received from "+name, "It accepted mail but has not reported on it.", "/settings/webhooks",
			"Check the webhook address and key")
	}
	switch {
	case none:
	case p.Health == nil:
		a.add(false, "No report about "+name, "No worker has reported on it lately.", to, "View provider")
	case p.Health.State == telemetry.Offline || p.Health.State == telemetry.Draining:
		text := "Since " + p.Health.Since.UTC().Format(time.RFC3339) + "."
		if p.Health.Why != "" {
			text += " " + web.Sentence(p.Health.Why)
		}
		a.add(false, name+" "+healthWords(p.Health), text, to, "View provider")
	case p.Health.State != telemetry.Healthy:
		text := web.Sentence(p.Health.Why)
		if n := p.Health.Failures; n > 0 {
			text = fmt.Sprintf("%s %s failed since the last one succeeded. Last error: %s",
				web.Num(n), web.Plural(int64(n), "call", "calls"), web.Sentence(p.Health.LastError))
		}
		a.add(true, name+" "+healthWords(p.Health), text, to, "View provider")
	}
}

func attendBatch(b *mail.BatchView) []Attention {
	var out []Attention
	to := "/batches/" + b.ID.String() + "?state=failed"
	if n := b.Counts.FailedReasons[string(models.OutcomeUnknown)]; n > 0 {
		out = append(out, Attention{
			Title: fmt.Sprintf("%s of “%s” with unknown outcome", web.Messages(n), b.Subject),
			Text:  "The provider may or may not have accepted them, so they were not sent again.",
			To:    "/batches/" + b.ID.String() + "?reason=" + string(models.OutcomeUnknown) + "#logs",
			Do:    "Review",
		})
	}
	done := b.Counts.Delivered + b.Counts.Failed
	if b.Counts.Failed >= 10 && b.Counts.Failed*5 >= done {
		reason, n := mostOf(b.Counts.FailedReasons)
		out = append(out, Attention{
			Grave: true,
			Title: fmt.Sprintf("%s of “%s” failed", web.LocalShare(b.Counts.Failed, done), b.Subject),
			Text:  fmt.Sprintf("Most common reason (%s): %s.", web.Num(n), reason.Words()),
			To:    to,
			Do:    "View failures",
		})
	}
	return out
}

// mostOf returns the most frequent reason and its count.
func mostOf(reasons map[string]int64) (most models.Reason, n int64) {
	for name, k := range reasons {
		r := models.Reason(name)
		if k > n || k == n && r < most {
			most, n = r, k
		}
	}
	return most, n
}

// healthWords describes the health of a provider as a predicate, like "is down".
func healthWords(h *telemetry.Health) string {
	switch h.State {
	case telemetry.Healthy:
		return "accepts mail"
	case telemetry.Failing:
		return "is failing"
	case telemetry.Draining:
		return "is being drained"
	case telemetry.Probation:
		return "is recovering: it gets few messages at a time"
	case telemetry.Probing:
		return "is recovering: one message tests it"
	case telemetry.Offline:
		return "was taken offline"
	}
	switch h.Source {
	case telemetry.Rejected:
		return "rejects its key, account or quota"
	case telemetry.RetryAfter:
		return "asked to wait"
	case telemetry.Silence:
		return "accepts mail but sends no delivery events"
	}
	return "is suspended: calls are failing"
}
