package overview

import (
	"context"
	"regexp"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
)

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
func (p *Pages) noticesOf(ctx context.Context, who service.Caller) ([]noticeRow, error) {
	if !who.Operator {
		return nil, nil
	}
	list, err := p.operate.LatestNotices(ctx, who, overviewNotices)
	out := make([]noticeRow, 0, len(list))
	for i := range list {
		n := list[i].Notice
		out = append(out, noticeRow{At: list[i].At, Text: withTimes(n.Text(), list[i].At), Good: good[n.Kind]})
	}
	return out, err
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
