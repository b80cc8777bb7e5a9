package mail

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/intake"
	"github.com/safedelivr/safedelivr/service/operation"
	"github.com/safedelivr/safedelivr/service/problem"
)

// address returns an address, or a domain with an @ before it, as batches hold it, in lower case.
func address(q *operation.Query, text string) string {
	probe, at := strings.TrimSpace(text), ""
	if strings.HasPrefix(probe, "@") {
		probe, at = "any"+probe, "any"
	}
	a, err := intake.ParseAddress(probe)
	if err != nil {
		q.Bad("email", "%s %s.", problem.Quote(text), err)
	}
	return strings.ToLower(strings.TrimPrefix(a.Email, at))
}

// BatchFilter selects batches. The zero value selects all of the caller, or of everybody if the caller wants that.
type BatchFilter struct {
	State   string // scheduled, queued, sending, done, stopped or cancelled; empty: any
	Subject string // a part of the subject, in any case
	Sender  string // a part of the sender's address, in any case
	User    string // ID of the owner. Only operators may name others
	// Logs selects the time of acceptance, and batches that have a log with each of its properties.
	Logs LogFilter
}

// States of a batch by which lists can be filtered, besides those of models.BatchState.
const (
	BatchStopped   = "stopped"
	BatchCancelled = "cancelled"
)

func (f *BatchFilter) check(q *operation.Query) {
	f.Logs.check(q)
	switch f.State {
	case "",
		string(models.BatchScheduled),
		string(models.BatchQueued),
		string(models.BatchSending),
		string(models.BatchSent),
		string(models.BatchDone),
		BatchStopped,
		BatchCancelled:
	default:
		q.Bad("state", "state must be scheduled, queued, sending, sent, done, stopped or cancelled.")
	}
}

// selects reports whether the filter selects a batch, by its content and its summary.
func (f *BatchFilter) selects(b *models.Batch, v *BatchView) bool {
	has := func(text, part string) bool { return strings.Contains(strings.ToLower(text), strings.ToLower(part)) }
	switch {
	case !has(b.Content.Subject, f.Subject), !has(b.Content.From.Email, f.Sender):
		return false
	case f.State == BatchStopped:
		return v.Stopped && !v.Cancelled
	case f.State == BatchCancelled:
		return v.Cancelled
	case f.State == string(models.BatchScheduled):
		return !v.Stopped && !v.DueAt.IsZero()
	}
	return f.State == "" || !v.Stopped && !v.Cancelled && string(v.State) == f.State
}

// count returns how many of the batches of a sum the filter selects, if the sum says so.
func (f *BatchFilter) count(s *models.Summary) (n int64, known bool) {
	s, known = f.Logs.tagged(s)
	return s.Batches, known && f.State == "" && f.Subject == "" && f.Sender == "" && len(f.Logs.counts()) == 0 &&
		!f.Logs.byAddress()
}

// LogFilter selects logs. The zero value selects all.
type LogFilter struct {
	State     models.State
	Reason    models.Reason  // of the state
	Provider  string         // one that was tried
	Result    ProviderResult // at Provider, or at any one
	Rerouted  bool           // tried at more than one provider
	MayDouble bool           // sent again while an outcome was unknown
	Doubled   bool           // known to be delivered more than once

	// These select logs of all mail, and not of one batch.
	Email    string    // a complete address, or a domain with an @ before it
	Part     string    // of an address, in any case
	Tag      string    // of the batch
	From, To time.Time // of acceptance: [From, To); zero: any
}

// ProviderResult is the result of the newest try of a log at a provider.
type ProviderResult string

// The results. They are the members of ProviderCounts.
const (
	ResultDelivered ProviderResult = "delivered"
	ResultRefused   ProviderResult = "refused"
	ResultFailed    ProviderResult = "failed"
	ResultPending   ProviderResult = "pending"
	ResultWaiting   ProviderResult = "waiting"
	ResultUnknown   ProviderResult = "unknown"
)

// resultOf returns the result of a try of a log in a state.
func resultOf(v models.Verdict, s models.State) ProviderResult {
	switch v {
	case models.VerdictDelivered:
		return ResultDelivered
	case models.VerdictRefused:
		return ResultRefused
	case models.VerdictFailed:
		return ResultFailed
	case models.VerdictAccepted:
		return ResultWaiting
	case models.VerdictPending:
		if s.Open() {
			return ResultPending
		}
	case models.VerdictUnknown:
	}
	return ResultUnknown
}

// results maps the results to their counts.
var results = map[ProviderResult]func(*models.ProviderCounts) int64{
	"":              func(c *models.ProviderCounts) int64 { return c.Tried },
	ResultDelivered: func(c *models.ProviderCounts) int64 { return c.Delivered },
	ResultRefused:   func(c *models.ProviderCounts) int64 { return c.Refused },
	ResultFailed:    func(c *models.ProviderCounts) int64 { return c.Failed },
	ResultPending:   func(c *models.ProviderCounts) int64 { return c.Pending },
	ResultWaiting:   func(c *models.ProviderCounts) int64 { return c.Waiting },
	ResultUnknown:   func(c *models.ProviderCounts) int64 { return c.Unknown },
}

func (f *LogFilter) check(q *operation.Query) {
	if f.State != "" && !f.State.Valid() {
		q.Bad("state", "state must be queued, delivered, failed or cancelled.")
	}
	if results[f.Result] == nil {
		q.Bad("result", "result must be delivered, refused, failed, pending, waiting or unknown.")
	}
	if !f.From.IsZero() && !f.To.IsZero() && !f.From.Before(f.To) {
		q.Bad("from", "from must be before to.")
	}
	if f.Email != "" {
		f.Email = address(q, f.Email)
	}
}

// key identifies the filter in a cursor.
func (f *LogFilter) key() string { return fmt.Sprintf("%q", fmt.Sprint(*f)) }

// byAddress reports whether the filter looks at addresses.
func (f *LogFilter) byAddress() bool { return f.Email != "" || f.Part != "" }

// empty reports whether the filter selects every log of a batch.
func (f *LogFilter) empty() bool { return len(f.counts()) == 0 && !f.byAddress() && f.Tag == "" }

// tagged returns the part of a sum that has the tag of the filter. If the sum does not count the tag apart, known is
// false, and the returned sum is more than the part.
func (f *LogFilter) tagged(s *models.Summary) (part *models.Summary, known bool) {
	g := models.Group{Kind: models.ByTag, Name: f.Tag}
	switch {
	case f.Tag == "", slices.Contains(s.In, g):
		return s, true
	case s.Groups[g] != nil:
		return s.Groups[g], true
	case s.MoreGroups:
		return s, false
	}
	return &models.Summary{}, true
}

// counts returns, for each property that the filter asks for, how many logs of a sum have it. A negative count says
// that the sum does not tell.
func (f *LogFilter) counts() (out []func(*models.Summary) int64) {
	add := func(asked bool, count func(*models.Summary) int64) {
		if asked {
			out = append(out, count)
		}
	}
	add(f.State != "", func(s *models.Summary) int64 { return s.Of(f.State) })
	add(f.Reason != "", func(s *models.Summary) int64 {
		switch f.Reason { // all others are of failed logs
		case models.Unconfirmed:
			return s.Unconfirmed
		case models.CancelledByRq:
			return s.Cancelled
		case models.Implied:
			return -s.Success
		}
		return s.Reasons[f.Reason]
	})
	add(f.Provider != "", func(s *models.Summary) int64 {
		c := s.Providers[f.Provider]
		return results[f.Result](&c)
	})
	add(f.Provider == "" && f.Result != "", func(s *models.Summary) (n int64) {
		for _, c := range s.Providers {
			n -= results[f.Result](&c) // a log counts at each provider
		}
		return n
	})
	add(f.Rerouted, func(s *models.Summary) int64 { return s.Rerouted })
	add(f.MayDouble, func(s *models.Summary) int64 { return s.MayDouble })
	add(f.Doubled, func(s *models.Summary) int64 { return s.Doubled })
	return out
}

// mayMatch reports whether a chunk or a span with this sum may have a log that the filter selects.
func (f *LogFilter) mayMatch(s *models.Summary) bool {
	s, _ = f.tagged(s)
	for _, count := range f.counts() {
		if count(s) == 0 {
			return false
		}
	}
	return s.Accepted > 0
}

// count returns how many logs with this sum the filter selects, if the sum says so.
func (f *LogFilter) count(s *models.Summary) (n int64, known bool) {
	counts := f.counts()
	s, known = f.tagged(s)
	switch {
	case !known || f.byAddress() || len(counts) > 1 || f.Provider == "" && f.Result != "":
		return 0, false
	case len(counts) == 0:
		return s.Accepted, true
	}
	n = counts[0](s)
	return n, n >= 0
}

// matches reports whether the filter selects recipient r of a chunk, ignoring its address.
func (f *LogFilter) matches(v *models.View, r int) bool {
	st := v.Status(r)
	if f.State != "" && st.State != f.State || f.Reason != "" && st.Reason != f.Reason ||
		f.MayDouble && !st.MayDouble || f.Doubled && st.Copies < 2 {
		return false
	}
	if f.Provider == "" && f.Result == "" && !f.Rerouted {
		return true
	}
	newest := map[string]models.Verdict{}
	v.EachTry(r, func(t *models.Try) { newest[t.Provider] = t.Verdict })
	if f.Rerouted && len(newest) < 2 {
		return false
	}
	for provider, verdict := range newest {
		if (f.Provider == "" || f.Provider == provider) && (f.Result == "" || resultOf(verdict, st.State) == f.Result) {
			return true
		}
	}
	return f.Provider == "" && f.Result == ""
}

// matchesAddress reports whether the filter selects logs of a recipient, by its address.
func (f *LogFilter) matchesAddress(r models.Recipient) bool {
	domain, isDomain := strings.CutPrefix(f.Email, "@")
	return (f.Email == "" || !isDomain && strings.EqualFold(r.Email, f.Email) ||
		isDomain && strings.EqualFold(models.DomainOf(r.Email), domain)) &&
		(f.Part == "" || strings.Contains(strings.ToLower(r.Email), strings.ToLower(f.Part)))
}
