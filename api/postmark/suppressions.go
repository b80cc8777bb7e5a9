package postmark

import (
	"errors"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/api/dialect"
	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/problem"
	"github.com/safedelivr/safedelivr/service/suppressions"
)

const (
	maxChanges = 50      // addresses of a request
	maxDump    = 100_000 // entries of an answer
)

// suppression is an entry of a suppression list as Postmark writes it.
type suppression struct{ EmailAddress, SuppressionReason, Origin, CreatedAt string }

// reasons are Postmark's names of ours.
var reasons = map[models.SuppressionReason]string{
	models.HardBounce: "HardBounce", models.SoftBounce: "HardBounce", models.Complaint: "SpamComplaint",
	models.Manual: "ManualSuppression", models.Unsubscribe: "ManualSuppression",
}

// everything has the entries with all reasons. All streams have the same list.
var everything = dialect.List{
	models.Manual, models.Unsubscribe, models.HardBounce, models.SoftBounce, models.Complaint,
}

func suppressionOf(e *client.Suppression) suppression {
	out := suppression{
		EmailAddress: e.Email, SuppressionReason: reasons[models.SuppressionReason(e.Reason)], Origin: "Recipient",
		CreatedAt: timeOf(e.At),
	}
	switch models.SuppressionOrigin(e.Origin) {
	case models.FromAPI, models.FromPage, models.FromImport:
		out.Origin = "Customer"
	}
	return out
}

// dump is GET /message-streams/{stream}/suppressions/dump: all entries about all mail, in an order that means nothing.
func dump(r *dialect.Request) (dialect.Answer, error) {
	given := map[string]string{} // clients write the names in different cases
	for name, values := range r.URL.Query() {
		given[strings.ToLower(name)] = values[0]
	}
	from, until, err := days(given)
	if err != nil {
		return dialect.Answer{}, err
	}
	other := func(name, value string) bool { return given[name] != "" && !strings.EqualFold(given[name], value) }
	out := []suppression{}
	err = everything.Each(r, func(e *client.Suppression) bool {
		s := suppressionOf(e)
		if e.Category == "" && !other("suppressionreason", s.SuppressionReason) && !other("origin", s.Origin) &&
			!other("emailaddress", s.EmailAddress) && !e.At.Before(from) && e.At.Before(until) {
			out = append(out, s)
		}
		return len(out) <= maxDump
	})
	if len(out) > maxDump {
		err = problem.New(problem.TooLarge, "list_too_long",
			"The list has more than %d addresses. GET /v1/suppressions reads it page by page.", maxDump)
	}
	return dialect.Answer{Body: map[string]any{"Suppressions": out}}, err
}

// days returns the time between fromdate and todate, whose days are whole.
func days(given map[string]string) (from, until time.Time, err error) {
	until = time.Unix(1<<40, 0)
	for name, into := range map[string]*time.Time{"fromdate": &from, "todate": &until} {
		text := given[name]
		if text == "" {
			continue
		}
		if *into, err = time.Parse(time.DateOnly, text); err == nil && name == "todate" {
			*into = into.AddDate(0, 0, 1)
		} else if err != nil {
			*into, err = time.Parse("2006-01-02T15:04:05", strings.TrimSuffix(text, "Z"))
		}
		if err != nil {
			return from, until, dialect.Invalid(name, "invalid_value", "It must be a day like 2026-01-31.")
		}
	}
	return from, until, nil
}

// changed is the result for an address.
type changed struct {
	EmailAddress, Status string
	Message              *string
}

// change returns a handler that changes the entries of the addresses of a request. A mistake in an address is in its
// result, and the others are changed.
func change(status string, do func(r *dialect.Request, address string) error) func(*dialect.Request) (dialect.Answer, error) {
	return func(r *dialect.Request) (dialect.Answer, error) {
		var in struct{ Suppressions []dialect.Object }
		if err := dialect.ReadJSON(r, 1<<20, &in); err != nil {
			return dialect.Answer{}, err
		}
		if len(in.Suppressions) > maxChanges {
			return dialect.Answer{}, dialect.Invalid("suppressions", "too_many", "A request has at most %d addresses.", maxChanges)
		}
		out := []changed{}
		for _, one := range in.Suppressions {
			c := changed{EmailAddress: one.Text("EmailAddress"), Status: status}
			var e *problem.Error
			switch err := do(r, c.EmailAddress); {
			case errors.As(err, &e) && dialect.Refused(e):
				c.Status, c.Message = "Failed", &e.Detail
				if len(e.Fields) > 0 {
					c.Message = &e.Fields[0].Detail
				}
			case err != nil:
				return dialect.Answer{}, err
			}
			out = append(out, c)
		}
		return dialect.Answer{Body: map[string]any{"Suppressions": out}}, nil
	}
}

// suppress adds an address to the list.
func suppress(r *dialect.Request, address string) error {
	return everything.Add(r, client.NewSuppression{Email: address})
}

// unsuppress removes an address from the list. Like at Postmark, an address that complained stays on it.
func unsuppress(r *dialect.Request, address string) error {
	entries, err := dialect.List{models.Complaint}.Of(r, address)
	switch {
	case err != nil:
		return err
	case len(entries) > 0:
		return problem.New(problem.Invalid, "complained", "You do not have the required authority to change this suppression.")
	}
	_, err = everything.Remove(r, address, suppressions.Filter{AllMail: true})
	return err
}
