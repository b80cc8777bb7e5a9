package mailgun

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/providertest"
	"github.com/safedelivr/safedelivr/providers/internal/transport"
)

// oneMail returns a call with one mail to all: one in To, two in Cc and one in Bcc.
func oneMail() *models.Call {
	c := providertest.SampleCall(4)
	for i, role := range []models.Role{models.To, models.CC, models.CC, models.BCC} {
		c.Recipients[i].Role = role
	}
	return c
}

// TestRefusalOfOneMail: of one mail to several, an address is refused alone only if it is the only one in the parameter
// that Mailgun names. The mail is never divided.
func TestRefusalOfOneMail(t *testing.T) {
	p := adapter(t, "http://127.0.0.1:1")
	defer p.Close()
	for name, want := range map[string]string{
		"to":    "rejected_recipient 1, split 2-4, ",
		"'cc'":  "rejected_here 1-4, ",
		"\"bcc": "rejected_recipient 4, split 1-3, ",
	} {
		body := fmt.Appendf(nil, `{"message": %q}`, name+" parameter is not a valid address. please check documentation")
		got := ""
		for _, part := range p.classify(oneMail(), transport.Answer{Status: 400, Body: body}, time.Now()) {
			got += fmt.Sprintf("%s %s, ", part.Class, part.Recipients)
		}
		if got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}

// TestVariableInOneMail: text that Mailgun would replace cannot be protected in one mail to several, so that it is left
// to another provider. In HTML it can.
func TestVariableInOneMail(t *testing.T) {
	c := oneMail()
	c.Content = &models.Content{From: c.Content.From, Subject: "s", Text: "see %recipient.x%"}
	if _, refused := compose(c); len(refused) != 1 || refused[0].Class != models.RejectedHereClass {
		t.Errorf("%+v", refused)
	}
	c.Content = &models.Content{From: c.Content.From, Subject: "s", HTML: "see %unsubscribe_url%"}
	p := adapter(t, "http://127.0.0.1:1")
	defer p.Close()
	r, refused := p.Compose(c)
	if refused != nil || !strings.Contains(string(r.Body), "see &#37;unsubscribe_url%") {
		t.Errorf("%+v, %s", refused, r.Body)
	}
}
