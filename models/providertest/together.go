package providertest

import (
	"fmt"
	"html"
	"net/mail"
	"slices"
	"testing"

	"github.com/safedelivr/safedelivr/models"
)

// together returns call(6) as one mail to all, with two recipients in each role.
func together() *models.Call {
	c := call(6)
	for i, role := range []models.Role{models.To, models.To, models.CC, models.CC, models.BCC, models.BCC} {
		c.Recipients[i].Role = role
	}
	return c
}

// Person is an address with a name, as most providers read it.
type Person struct{ Email, Name string }

func (p Person) String() string { return (&mail.Address{Name: p.Name, Address: p.Email}).String() }

// People reads a list of addresses.
func People(list ...string) (out []Person, err error) {
	for _, text := range list {
		some, err := mail.ParseAddressList(text)
		if text != "" && err != nil {
			return nil, fmt.Errorf("addresses %q: %w", text, err)
		}
		for _, a := range some {
			out = append(out, Person{Email: a.Address, Name: a.Name})
		}
	}
	return out, nil
}

// Shared returns the copies of one mail with the content of c. A recipient who is the only one has no role.
func Shared(c Copy, to, cc, bcc []Person) (out []Copy) {
	alone := len(to)+len(cc)+len(bcc) == 1
	for role, list := range map[models.Role][]Person{models.To: to, models.CC: cc, models.BCC: bcc} {
		for _, r := range list {
			one := c
			if one.To, one.Name = r.Email, r.Name; !alone {
				one.Role = string(role)
			}
			for _, other := range slices.Concat(to, cc) {
				if other.Email != r.Email {
					one.Visible = append(one.Visible, other.Email)
				}
			}
			out = append(out, one)
		}
	}
	return out
}

// sameTogether compares a copy of a mail to several. It need not name a recipient in Bcc.
func sameTogether(t *testing.T, got, want Copy) {
	t.Helper()
	if want.Role == string(models.BCC) {
		want.Name = got.Name
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("mail to %s:\n got %+v\nwant %+v", want.To, got, want)
	}
}

// testTogether sends one mail to all recipients, if the kind carries that.
func testTogether(t *testing.T, s Suite) {
	p, rec := serve(t, s)
	c := together()
	if !s.Carries.Copies {
		only(t, c, p.Send(t.Context(), c), models.RejectedHereClass)
		if rec.calls != 0 {
			t.Errorf("%d requests for a mail that it does not carry", rec.calls)
		}
		return
	}
	c.Content.Headers = []models.Header{{Name: "X-Order", Value: "no {{order}}"}}
	c.Recipients[0].Vars["order"] = `<b>"1" & 2</b>`
	only(t, c, p.Send(t.Context(), c), models.Accepted)
	if rec.calls != 1 || len(rec.copies) != 6 {
		t.Fatalf("%d requests and %d mails for one mail to 6", rec.calls, len(rec.copies))
	}
	to := &c.Recipients[0]
	order := to.Vars["order"]
	for i := range c.Recipients {
		r := &c.Recipients[i]
		at := slices.IndexFunc(rec.copies, func(m Copy) bool { return m.To == r.Email })
		if at < 0 {
			t.Errorf("%s has no mail", r.Email)
			continue
		}
		m := rec.copies[at]
		var visible []string
		for k := range c.Recipients[:4] {
			if k != i {
				visible = append(visible, c.Recipients[k].Email)
			}
		}
		want := Copy{
			To: r.Email, Name: r.Name, Role: string(r.Role), Visible: visible,
			Log: to.Log.String(), Attempt: fmt.Sprint(c.Attempt),
			From: m.From, ReplyTo: m.ReplyTo, Headers: map[string]string{"X-Order": "no " + order},
			Subject: "Order " + order,
			Text:    "Hello Name 1, order " + order + ".",
			HTML:    "<p>Hello Name 1, order " + html.EscapeString(order) + ".</p>",
		}
		sameTogether(t, m, want)
	}

	// A mistake in the content is one for all, and no address is tried alone.
	c = together()
	delete(c.Recipients[0].Vars, "order")
	before := rec.calls
	only(t, c, p.Send(t.Context(), c), models.RejectedRequest)
	c = together()
	c.Recipients[0].Role = models.CC
	only(t, c, p.Send(t.Context(), c), models.RejectedHereClass)
	if rec.calls != before {
		t.Errorf("%d requests for calls that cannot be made", rec.calls-before)
	}
	parsed := p.Parse(s.Post(batch.Log(1), 3))
	if len(parsed.Events) != 1 || parsed.Events[0].Address != "a@b.test" {
		t.Errorf("the address of an event is lost: %+v", parsed)
	}
}
