package compose

import (
	"cmp"
	"net/http"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/dashboard/web"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service"
)

// summaryRow is a row of the card that says what a message is, and when and how it leaves.
type summaryRow struct {
	Label, Text string
	At          time.Time // the moment that Text means, or zero
}

// summaryOf returns the card of the form. plan is what would happen if it were sent now; nil: it is not known.
func (p *Pages) summaryOf(
	r *http.Request, v *web.Visitor, c *composeView, plan *service.DryRun,
) ([]summaryRow, error) {
	content, category, sender := models.Content{Subject: c.Subject, HTML: c.HTML, Text: c.Text}, c.Category, c.From
	if c.Template != "" {
		// An error of the template is shown beside its field.
		if t, err := p.service.Templates.Use(r.Context(), v.User, c.Template, c.Language); err == nil {
			t.Content(&content)
			category, sender = cmp.Or(category, t.Category), cmp.Or(sender, t.Sender)
		}
	}
	leaves := summaryRow{Label: "Leaves", Text: "now"}
	if c.DeliverAt != "" {
		times := c.Times
		s, wrong, err := p.scheduleOf(r, v, c, &times)
		switch {
		case err != nil:
			return nil, err
		case len(wrong) > 0:
			leaves.Text = web.Sentence(wrong[0].Detail)
		default:
			leaves.Text, leaves.At = c.day(), s.DeliverAt
		}
	}
	return []summaryRow{
		{Label: "From", Text: cmp.Or(sender, "no sender yet")},
		{Label: "Subject", Text: cmp.Or(content.Subject, "none yet")},
		{Label: "Recipients", Text: c.counted(plan)},
		leaves,
		{Label: "Lane", Text: laneWords(models.Lane(c.Lane), plan)},
		{Label: "Category", Text: categoryWords(category, wantsUnsubscribe(&content))},
		{Label: "Tags", Text: cmp.Or(strings.Join(c.Tags, ", "), "none")},
		{Label: "Tracking", Text: trackingWords(c.TrackOpens, c.TrackClicks)},
	}, nil
}

// counted says how many recipients the form has, and how many rows are skipped.
func (c *composeView) counted(plan *service.DryRun) string {
	var count, bad int64
	skip := c.Skip
	switch {
	case plan != nil:
		count = int64(plan.Recipients)
		if plan.Rejected != nil {
			bad, skip = int64(plan.Rejected.Count), true
		}
	case c.List != nil:
		count, bad = int64(c.List.Count), int64(c.List.Bad)
		if skip {
			count -= bad
		}
	}
	text := web.Num(count)
	switch {
	case bad > 0 && skip:
		text += ", and " + web.Num(bad) + " " + web.Plural(bad, "row is", "rows are") + " skipped"
	case bad > 0:
		text += ", " + web.Num(bad) + " with mistakes"
	}
	return text
}

// laneWords names a lane and who chose it.
func laneWords(chosen models.Lane, plan *service.DryRun) string {
	words := map[models.Lane]string{models.Urgent: "urgent: sent ahead of bulk mail",
		models.Bulk: "bulk: sent after urgent mail"}
	switch {
	case plan != nil && plan.LaneLimit != "":
		return words[plan.Lane] + "; it would be urgent, but the limit of urgent recipients per hour was reached"
	case plan != nil && chosen == "":
		return words[plan.Lane] + "; chosen by the number of recipients"
	case plan != nil:
		return words[plan.Lane]
	}
	return cmp.Or(words[chosen], "chosen by the number of recipients")
}

// categoryWords names a category, and says whether the message has a link to unsubscribe from it.
func categoryWords(category string, link bool) string {
	switch {
	case category == "":
		return "none, so there is no link to unsubscribe"
	case link:
		return category + ", with a link to unsubscribe"
	}
	return category
}

// trackingWords says what is tracked.
func trackingWords(opens, clicks bool) string {
	switch {
	case opens && clicks:
		return "opens and clicks"
	case opens:
		return "opens"
	case clicks:
		return "clicks"
	}
	return "off"
}

// showSummary is POST /compose/summary: the card of the form, as a part of its page.
func (p *Pages) showSummary(w http.ResponseWriter, r *http.Request, v *web.Visitor) error {
	c, err := readCompose(w, r, nil)
	if err != nil {
		return err
	}
	in := p.service.NewIntake(r.Context(), v.Caller())
	defer in.Close()
	if c.List, err = c.look(in); err != nil {
		return err
	}
	rows, err := p.summaryOf(r, v, c, nil)
	if err != nil {
		return err
	}
	return p.web.WritePart(w, "compose", "summary", rows)
}
