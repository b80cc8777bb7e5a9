package dashboard

import (
	"context"
	"errors"
	"fmt"
	"regexp"
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

// attention is something that needs attention, with a link to its page.
type attention struct {
	Grave bool
	Title string
	Text  string    // times in RFC 3339
	Next  time.Time // the next attempt; zero: there is none
	To    string
	Do    string
}

// attentions are what needs the attention of a visitor.
type attentions struct {
	operate   *operate.Installation
	mail      *mail.Reader
	who       service.Caller
	providers []providers.Provider
	totals    *client.Counts // the visitor's, of the last days
	list      []attention
}

func (a *attentions) add(grave bool, title, text, to, do string) {
	a.list = append(a.list, attention{Grave: grave, Title: title, Text: text, To: to, Do: do})
}

// attend lists what needs attention, the gravest first: what is wrong with the installation, providers that do not accept
// mail or do not report on it, and batches with unknown outcomes or many failures.
func (d *Dashboard) attend(
	ctx context.Context, who service.Caller, providers []providers.Provider, batches []mail.BatchView, totals *client.Counts,
) ([]attention, error) {
	a := attentions{operate: d.service.Operate, mail: d.service.Mail, who: who, providers: providers, totals: totals}
	conditions, err := d.service.Operate.Conditions(ctx)
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
	slices.SortStableFunc(a.list, func(a, b attention) int {
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

// troubles lists what is wrong with the installation, for operators.
func (d *Dashboard) troubles(ctx context.Context, who service.Caller) ([]attention, error) {
	conditions, err := d.service.Operate.Conditions(ctx)
	if err != nil {
		return nil, err
	}
	a := attentions{operate: d.service.Operate, mail: d.service.Mail, who: who, totals: &client.Counts{}}
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
	case condition.DiskReserve:
		text := "Since " + since + "."
		if a.who.Operator {
			text += " " + c.Text() + " " + c.Do()
		}
		a.add(true, c.Title(), text, "/operations", "View operations")
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
	var e *service.Error
	if err != nil && (!errors.As(err, &e) || e.Kind != service.NotFound) {
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
	reached, err := a.operate.NoticesReachOperators(ctx)
	if err == nil && !reached {
		a.add(false, "Outages are not reported to operators", "Add Slack, mail or an address of yours for notices.",
			"/installation/endpoints", "Add an endpoint")
	}
	return err
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

// noticeRow is a notice as pages show it.
type noticeRow struct {
	At   time.Time
	Text string
	Good bool // something is over
}

// good are the notices that something is over.
var good = map[models.NoticeKind]bool{
	models.ProviderRecovered: true, models.FailoverEnded: true, models.WebhooksAccepted: true,
	models.AcceptanceResumed: true, models.SendingResumed: true,
}

// noticesOf returns the newest notices for an operator's Overview.
func (d *Dashboard) noticesOf(ctx context.Context, who service.Caller) ([]noticeRow, error) {
	if !who.Operator {
		return nil, nil
	}
	list, err := d.service.Operate.LatestNotices(ctx, who, overviewNotices)
	out := make([]noticeRow, 0, len(list))
	for i := range list {
		n := list[i].Notice
		out = append(out, noticeRow{At: list[i].At, Text: withTimes(n.Text(), list[i].At), Good: good[n.Kind]})
	}
	return out, err
}

func attendBatch(b *mail.BatchView) []attention {
	var out []attention
	to := "/batches/" + b.ID.String() + "?state=failed"
	if n := b.Counts.FailedReasons[string(models.OutcomeUnknown)]; n > 0 {
		out = append(out, attention{
			Title: fmt.Sprintf("%s of “%s” with unknown outcome", web.Messages(n), b.Subject),
			Text:  "The provider may or may not have accepted them, so they were not sent again.",
			To:    "/batches/" + b.ID.String() + "?reason=" + string(models.OutcomeUnknown) + "#logs",
			Do:    "Review",
		})
	}
	done := b.Counts.Delivered + b.Counts.Failed
	if b.Counts.Failed >= 10 && b.Counts.Failed*5 >= done {
		reason, n := mostOf(b.Counts.FailedReasons)
		out = append(out, attention{
			Grave: true,
			Title: fmt.Sprintf("%s of “%s” failed", web.LocalShare(b.Counts.Failed, done), b.Subject),
			Text:  fmt.Sprintf("Most common reason (%s): %s.", web.Num(n), reason.Words()),
			To:    to,
			Do:    "View failures",
		})
	}
	return out
}

// waitWords says what mail waits for, as the heading of a row.
func waitWords(code models.WaitCode) string {
	switch code {
	case models.WaitRestore:
		return "Hold after a restore"
	case models.WaitUserPaused:
		return "User is paused"
	case models.WaitBatchStopped:
		return "Batch is stopped"
	case models.WaitBatchCancelled, models.WaitExpiry, models.WaitEnding:
		return "A worker records its end"
	case models.WaitSchedule:
		return "Scheduled"
	case models.WaitBlockRule:
		return "Block rule"
	case models.WaitProviderOffline:
		return "Provider is offline"
	case models.WaitProviderSuspend:
		return "Provider is suspended"
	case models.WaitNoWorker:
		return "No worker"
	case models.WaitRateLimit:
		return "Rate limit"
	case models.WaitConcurrencyLimit:
		return "Calls at once"
	case models.WaitTurn:
		return "Its turn"
	case models.WaitRetry:
		return "Retry"
	case models.WaitEvidence:
		return "Outcome unknown: evidence"
	case models.WaitFinalEvent:
		return "Report of the provider"
	}
	return string(code)
}

// clockTime matches a time in the text of a notice.
var clockTime = regexp.MustCompile(`\d\d:\d\d:\d\d UTC on \d+ [A-Z][a-z]+`)

// withTimes returns the text of a notice of a time with its times in RFC 3339, for timedShort.
func withTimes(text string, at time.Time) string {
	return clockTime.ReplaceAllStringFunc(text, func(s string) string {
		t, err := time.Parse("15:04:05 UTC on 2 January", s)
		if err != nil {
			return s
		}
		t = t.AddDate(at.UTC().Year(), 0, 0)
		if t.Sub(at) > 180*24*time.Hour { // in the year before
			t = t.AddDate(-1, 0, 0)
		}
		return t.Format(time.RFC3339)
	})
}
