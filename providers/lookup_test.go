package providers_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// LookUp must find the events that webhooks carry, with the same IDs, over many pages, and
// only those within the time range.
func TestSimulatedLookUp(t *testing.T) {
	s := newStage(t, "mailgun")
	looker, ok := s.adapter.(models.EventLookup)
	if !ok {
		t.Fatal("Mailgun can be asked")
	}
	var addresses []string
	for i := range 700 {
		addresses = append(addresses, fmt.Sprintf("deliver+%d@sim.test", i))
	}
	begun := time.Now()
	c := s.call(models.NewBatchID(begun), 3, addresses...)
	s.adapter.Send(t.Context(), c)
	s.settle(t)
	type key struct {
		log models.ID
		id  string
	}
	posted := map[key]models.EventKind{}
	for _, e := range s.events {
		posted[key{e.Log, e.Event.ID}] = e.Event.Kind
	}
	found := map[key]models.EventKind{}
	err := looker.LookUp(t.Context(), begun.Add(-time.Hour), time.Now().Add(time.Hour), "", func(body []byte) error {
		parsed := s.adapter.Parse(body)
		if len(parsed.Events) != 1 {
			t.Fatalf("%s: %+v", body, parsed)
		}
		found[key{parsed.Events[0].Log, parsed.Events[0].Event.ID}] = parsed.Events[0].Event.Kind
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(posted) < 700 {
		t.Fatalf("%d events posted", len(posted))
	}
	for k, kind := range posted {
		if found[k] != kind {
			t.Fatalf("%v was posted as %s and found as %q", k, kind, found[k])
		}
	}
	err = looker.LookUp(t.Context(), begun.Add(-2*time.Hour), begun.Add(-time.Hour), "", func(body []byte) error {
		t.Errorf("not of that time: %s", body)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	one := 0
	err = looker.LookUp(t.Context(), begun.Add(-time.Hour), time.Now().Add(time.Hour), "deliver+7@sim.test",
		func(body []byte) error {
			for _, e := range s.adapter.Parse(body).Events {
				if one++; e.Log != c.Recipients[7].Log {
					t.Errorf("an event of another recipient: %s", body)
				}
			}
			return nil
		})
	if err != nil || one == 0 {
		t.Fatal(one, err)
	}
	stop := fmt.Errorf("enough")
	if err := looker.LookUp(t.Context(), begun.Add(-time.Hour), time.Now().Add(time.Hour), "", func([]byte) error {
		return stop
	}); err != stop { //nolint:errorlint // it is passed through
		t.Errorf("error of the caller: %v", err)
	}
	s.adapter.Close()
}
