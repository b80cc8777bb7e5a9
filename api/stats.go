package api

import (
	"net/http"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/safedelivr/safedelivr/models"
)

// counts is how sums are shown.
type counts struct {
	Accepted    int64                   `json:"accepted"`
	Queued      int64                   `json:"queued"`
	Success     int64                   `json:"success"`
	Failed      int64                   `json:"failed"`
	Cancelled   int64                   `json:"cancelled"`
	Unconfirmed int64                   `json:"unconfirmed"`
	Rerouted    int64                   `json:"rerouted"`
	MayDouble   int64                   `json:"possible_duplicates"`
	Doubled     int64                   `json:"doubled"`
	Reasons     map[models.Reason]int64 `json:"failed_reasons"`
	Accounts    map[string]accountView  `json:"accounts"`
}

type accountView struct {
	Tried     int64 `json:"tried"`
	Delivered int64 `json:"delivered"`
	Refused   int64 `json:"refused"`
	Failed    int64 `json:"failed"`
	Waiting   int64 `json:"waiting"`
	Unknown   int64 `json:"unknown"`
}

func countsOf(s *models.Summary) counts {
	out := counts{Accepted: s.Accepted, Queued: s.Queued, Success: s.Success, Failed: s.Failed, Cancelled: s.Cancelled,
		Unconfirmed: s.Unconfirmed, Rerouted: s.Rerouted, MayDouble: s.MayDouble, Doubled: s.Doubled,
		Reasons: map[models.Reason]int64{}, Accounts: map[string]accountView{}}
	for k, v := range s.Reasons {
		out.Reasons[k] = v
	}
	for k, v := range s.Accounts {
		out.Accounts[k] = accountView(v)
	}
	return out
}

// maxDays bounds a question for stats.
const maxDays = 400

// stats is GET /v1/stats?from=2026-01-01&to=2026-01-31: a line per UTC day, both
// days included, and the totals.
func (s *Server) stats(c *gin.Context) {
	today := time.Now().UTC().Truncate(24 * time.Hour)
	q := query{Context: c}
	to := q.day("to", today)
	from := q.day("from", to.AddDate(0, 0, -29))
	if q.total == 0 && (to.Before(from) || to.Sub(from) >= maxDays*24*time.Hour) {
		q.bad("from", "from is not after to, and both and what lies between are at most %d days.", maxDays)
	}
	if p := q.problem(); p != nil {
		p.write(c)
		return
	}
	nodes, err := s.store.Nodes(c.Request.Context(), user(c), models.Day, from, to.AddDate(0, 0, 1))
	if err != nil {
		s.storeProblem(c, "read stats", err).write(c)
		return
	}
	byDay := map[string]*models.Summary{}
	var total models.Summary
	for i := range nodes {
		byDay[nodes[i].Span.Start.UTC().Format(time.DateOnly)] = &nodes[i].Summary
		total.Add(&nodes[i].Summary)
	}
	type dayView struct {
		Date string `json:"date"`
		counts
	}
	days := []dayView{}
	for d := from; !d.After(to); d = d.AddDate(0, 0, 1) {
		date := d.Format(time.DateOnly)
		sum := byDay[date]
		if sum == nil {
			sum = &models.Summary{}
		}
		days = append(days, dayView{date, countsOf(sum)})
	}
	c.JSON(http.StatusOK, gin.H{"from": from.Format(time.DateOnly), "to": to.Format(time.DateOnly), "time_zone": "UTC", "days": days, "totals": countsOf(&total)})
}
