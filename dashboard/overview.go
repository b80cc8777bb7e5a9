package dashboard

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
	"github.com/safedelivr/safedelivr/service"
)

// overviewView is what the first page shows.
type overviewView struct {
	Base      string // of the API
	Empty     bool   // nothing was ever sent
	Today     service.Counts
	Totals    service.Counts
	Days      []service.DayCounts
	Chart     chart
	Providers []providerNow
	Attention []attention
	Batches   []*batchRow
}

// attention is something that a person should look at, and where.
type attention struct {
	Grave bool
	Title string
	Text  string
	To    string
	Do    string
}

const (
	overviewDays    = 30
	overviewBatches = 6
	watchedBatches  = 30 // the newest ones are looked through for what needs attention
)

// overview is GET /.
func (d *Dashboard) overview(w http.ResponseWriter, r *http.Request, v *visitor) error {
	view, err := d.readOverview(r.Context(), v.caller())
	if err != nil {
		return err
	}
	d.render(
		w,
		r,
		v,
		http.StatusOK,
		"overview",
		page{Title: "Overview", Active: "overview", Live: "/live/overview", Charts: true, Data: view},
	)
	return nil
}

// overviewEvents is GET /live/overview.
func (d *Dashboard) overviewEvents(w http.ResponseWriter, r *http.Request, v *visitor) error {
	who := v.caller()
	return d.stream(w, r, v, eventsKey("overview ", who.User), func() source {
		return source{
			read: func(ctx context.Context) (any, error) { return d.readOverview(ctx, who) },
			render: func(now any) (parts, error) {
				return d.pages.parts("overview", now, "attention", "today", "days", "providers", "recent")
			},
		}
	})
}

func (d *Dashboard) readOverview(ctx context.Context, who service.Caller) (*overviewView, error) {
	stats, err := d.service.Stats(ctx, who, "", "")
	if err != nil {
		return nil, err
	}
	batches, err := d.service.Batches(ctx, who, service.Page{Limit: watchedBatches})
	if err != nil {
		return nil, err
	}
	providers, err := d.providersNow()
	if err != nil {
		return nil, err
	}
	v := &overviewView{
		Base:      d.public.String(),
		Empty:     len(batches.Batches) == 0,
		Today:     stats.Days[len(stats.Days)-1].Counts,
		Totals:    stats.Totals,
		Days:      stats.Days,
		Chart:     daysChart(stats.Days),
		Providers: providers,
		Attention: attend(providers, batches.Batches),
	}
	for i := range batches.Batches[:min(overviewBatches, len(batches.Batches))] {
		v.Batches = append(v.Batches, d.rowOf(&batches.Batches[i]))
	}
	return v, nil
}

// daysChart shows how every day ended.
func daysChart(days []service.DayCounts) chart {
	c := chart{
		Kind: "bars",
		Series: []series{{Label: "delivered", Color: "--ok-fill"}, {Label: "failed", Color: "--bad-fill"},
			{Label: "queued", Color: "--wait-fill"}, {Label: "cancelled", Color: "--off-fill"}},
	}
	for i := range days {
		at, err := time.Parse(time.DateOnly, days[i].Date)
		if err != nil {
			continue // the service writes them
		}
		c.X = append(c.X, float64(at.Unix()))
		for k, n := range []int64{days[i].Success, days[i].Failed, days[i].Queued, days[i].Cancelled} {
			c.Series[k].Values = append(c.Series[k].Values, float64(n))
		}
	}
	return c
}

// attend finds what needs attention: providers that do not take mail, and batches
// with outcomes that nobody knows or with many failures.
func attend(providers []providerNow, batches []service.BatchView) []attention {
	var out []attention
	for i := range providers {
		a := &providers[i]
		if a.Unheard {
			out = append(
				out,
				attention{
					Grave: true,
					Title: "No webhook of " + a.Info.Title + " (" + a.Name + ") has arrived yet",
					Text:  "It took mail, and nobody tells what became of it.",
					To:    "/settings#webhooks",
					Do:    "Check its address and key",
				},
			)
		}
		switch {
		case a.Health == nil:
			out = append(
				out,
				attention{
					Title: a.Info.Title + " (" + a.Name + ") is not reported on",
					Text:  "No worker has said anything about it for a while.",
					To:    "/providers#" + a.Name,
					Do:    "See the provider",
				},
			)
		case a.Health.State != telemetry.Healthy:
			out = append(
				out,
				attention{
					Grave: true,
					Title: a.Info.Title + " (" + a.Name + ") " + healthWords(a.Health),
					Text:  sentence(a.Health.Why),
					To:    "/providers#" + a.Name,
					Do:    "See the provider",
				},
			)
		}
	}
	for i := range batches {
		b := &batches[i]
		to := "/batches/" + b.ID.String() + "?state=failed"
		if n := b.Counts.Reasons[models.OutcomeUnknown]; n > 0 {
			out = append(
				out,
				attention{Title: fmt.Sprintf("%s %s of “%s” ended unknown", num(n), plural(n, "mail", "mails"), b.Subject),
					Text: "Nobody can say whether the provider took them, so they were not sent again.", To: to, Do: "Decide"},
			)
		}
		done := b.Counts.Success + b.Counts.Failed
		if b.Counts.Failed >= 10 && b.Counts.Failed*5 >= done {
			reason, n := mostOf(b.Counts.Reasons)
			out = append(
				out,
				attention{Grave: true, Title: fmt.Sprintf("%s of “%s” failed", share(b.Counts.Failed, done), b.Subject),
					Text: fmt.Sprintf("Most often (%s): %s.", num(n), reason.Words()), To: to, Do: "See the failures"},
			)
		}
	}
	return out
}

func mostOf(reasons map[models.Reason]int64) (most models.Reason, n int64) {
	for r, k := range reasons {
		if k > n || k == n && r < most {
			most, n = r, k
		}
	}
	return most, n
}
