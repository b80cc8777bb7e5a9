package providertest

import (
	"strings"
	"testing"

	"github.com/safedelivr/safedelivr/models"
)

// testManyBytes makes a call that is too large because of the values of its recipients together. No request is made,
// and smaller calls are asked for. A call with too much content is not helped by them.
func testManyBytes(t *testing.T, s Suite) {
	p, rec := serve(t, s)
	n := p.MaxRecipients()
	c := call(n)
	c.Content.Subject, c.Content.Text, c.Content.HTML = "s", "{{v}}", strings.Repeat("x", s.ManyContent)
	value := strings.Repeat("y", s.ManyBytes)
	for i := range c.Recipients {
		c.Recipients[i].Vars = map[string]string{"v": value}
	}
	parts := p.Send(t.Context(), c)
	only(t, c, parts, models.RejectedHereClass)
	if parts[0].Fewer < 1 || parts[0].Reason != models.TooLarge {
		t.Errorf("%s asks for %d recipients", show(parts), parts[0].Fewer)
	}
	c.Content.HTML = strings.Repeat("x", int(s.Carries.Size)+1_000_000)
	if parts := p.Send(t.Context(), c); parts[0].Fewer != 0 {
		t.Errorf("the content is too large, and %d recipients are asked for", parts[0].Fewer)
	}
	if rec.calls != 0 {
		t.Errorf("%d requests were made", rec.calls)
	}
}
