package sendgrid

import (
	"fmt"
	"testing"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/providertest"
	"github.com/safedelivr/safedelivr/providers/internal/transport"
)

// TestRefusalOfOneMail: of one mail to several, only addresses that SendGrid names are refused alone. The mail is never
// divided.
func TestRefusalOfOneMail(t *testing.T) {
	p := adapter(t, "http://127.0.0.1:1")
	defer p.Close()
	c := providertest.SampleCall(4)
	for i, role := range []models.Role{models.To, models.CC, models.CC, models.BCC} {
		c.Recipients[i].Role = role
	}
	const bad = "Does not contain a valid address."
	for field, want := range map[string]string{
		"personalizations.0.to.0.email":  "rejected_recipient 1, split 2-4, ",
		"personalizations.0.cc.1.email":  "rejected_recipient 3, split 1-2,4, ",
		"personalizations.0.bcc.0.email": "rejected_recipient 4, split 1-3, ",
		"personalizations.0.bcc.1.email": "rejected_here 1-4, ",
		"personalizations.0.headers":     "rejected_here 1-4, ",
		"personalizations":               "rejected_here 1-4, ",
		"null":                           "rejected_here 1-4, ",
		"from.email":                     "rejected_request 1-4, ",
	} {
		got := ""
		for _, part := range p.classify(c, transport.Answer{Status: 400, Body: []byte(errorOf(bad, field))}, time.Now()) {
			got += fmt.Sprintf("%s %s, ", part.Class, part.Recipients)
		}
		if got != want {
			t.Errorf("%s: %s, want %s", field, got, want)
		}
	}
}
