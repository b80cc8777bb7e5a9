package providers_test

import (
	"strings"
	"testing"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// An event that lost our arguments has the message id of the answer to its call, and the address.
func TestUnnamedEventHasMessageID(t *testing.T) {
	eachOf(t, whole, func(t *testing.T, s *stage) {
		begun := time.Now()
		c := s.call(models.NewBatchID(begun), 0, "open@sim.test", "hardbounce@sim.test")
		parts := s.adapter.Send(t.Context(), c)
		s.settle(t)
		strip := strings.NewReplacer(`sd_log`, `other`, `sd_attempt`, `another`, `"user-variables"`, `"lost"`, `"tags"`,
			`"gone"`, `"custom_variables"`, `"lost"`, `"rcpt_meta"`, `"lost"`)
		messageID := func(address string) string { // of the answer, which may have one for each mail
			for i := range c.Recipients {
				for _, p := range parts {
					if c.Recipients[i].Email == address && p.Recipients.Has(i+1) {
						return p.MessageID
					}
				}
			}
			return ""
		}
		found := map[string]int{}
		err := s.adapter.(models.EventLookup).LookUp(t.Context(), around(begun), func(body []byte) error {
			named, unnamed := s.adapter.Parse(body), s.adapter.Parse([]byte(strip.Replace(string(body))))
			if len(unnamed.Unnamed) != len(named.Events) || len(unnamed.Events) > 0 {
				t.Fatalf("%+v", unnamed)
			}
			for i, u := range unnamed.Unnamed {
				want := named.Events[i].Event
				if u.MessageID != messageID(u.Address) || u.Event.Kind != want.Kind || u.Event.ID != want.ID ||
					!u.Event.At.Equal(want.At) || u.Event.Reason != want.Reason {
					t.Errorf("%+v, want %+v of %s", u, want, messageID(u.Address))
				}
				found[u.Address]++
			}
			return nil
		})
		if err != nil || found["open@sim.test"] != 3 || found["hardbounce@sim.test"] != 2 {
			t.Error(found, err)
		}
	})
}

// A bounce that SendGrid reports late has only its address.
func TestAsyncBounceIsUnnamed(t *testing.T) {
	s := newStage(t, "sendgrid")
	s.adapter.Send(t.Context(), s.call(models.NewBatchID(time.Now()), 0, "async@sim.test"))
	s.settle(t)
	if len(s.unnamed) != 1 || s.unnamed[0].Address != "async@sim.test" || s.unnamed[0].MessageID != "" ||
		!s.unnamed[0].Event.Async || s.unnamed[0].Event.Kind != models.Bounced {
		t.Errorf("%+v", s.unnamed)
	}
}
