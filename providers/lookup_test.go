package providers_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/safedelivr/safedelivr/lab/simulator"
	"github.com/safedelivr/safedelivr/models"
)

// An eventID identifies a reported event.
type eventID struct {
	log  models.ID
	id   string
	kind models.EventKind
}

// posted returns the events that the stage received.
func (s *stage) posted() map[eventID]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[eventID]bool{}
	for _, e := range s.events {
		out[eventID{e.Log, e.Event.ID, e.Event.Kind}] = true
	}
	return out
}

// lookUp returns the events that a query finds.
func (s *stage) lookUp(t *testing.T, q models.LookupQuery) (map[eventID]bool, error) {
	t.Helper()
	out := map[eventID]bool{}
	err := s.adapter.(models.EventLookup).LookUp(t.Context(), q, func(body []byte) error {
		parsed := s.adapter.Parse(body)
		if len(parsed.Skipped) > 0 {
			t.Fatalf("%s: %+v", body, parsed)
		}
		s.mu.Lock()
		events := s.named(parsed.Events)
		s.mu.Unlock()
		for _, e := range events {
			if e.Event.Attempt != 1 || time.Since(e.Event.At) > time.Hour {
				t.Errorf("event %+v", e)
			}
			out[eventID{e.Log, e.Event.ID, e.Event.Kind}] = true
		}
		return nil
	})
	return out, err
}

func around(t time.Time) models.LookupQuery {
	return models.LookupQuery{From: t.Add(-time.Hour), To: t.Add(time.Hour)}
}

// before returns a query for a time that ended an hour before t. Postmark's times are those of the US East Coast
// without a zone ("Messages API"), so its look-up covers an hour more, and the time ended two hours before.
func (s *stage) before(t time.Time) models.LookupQuery {
	q := around(t)
	q.From, q.To = q.From.Add(-time.Hour), q.To.Add(-2*time.Hour)
	if s.kind == simulator.Postmark {
		q.From, q.To = q.From.Add(-time.Hour), q.To.Add(-time.Hour)
	}
	return q
}

func addresses(n int) (list []string) {
	for i := range n {
		list = append(list, fmt.Sprintf("deliver+%d@sim.test", i))
	}
	return list
}

// LookUp must find the events that webhooks carry, with the same IDs, over many pages, and
// only those that the query selects.
func TestSimulatedLookUp(t *testing.T) {
	eachLog(t, func(t *testing.T, s *stage) {
		begun := time.Now()
		n := min(350, s.adapter.MaxRecipients())
		c := s.call(models.NewBatchID(begun), 3, addresses(n)...)
		other := s.call(models.NewBatchID(begun), 0, "hardbounce@sim.test", "open@sim.test", "suppressed-bounce@sim.test")
		s.adapter.Send(t.Context(), c)
		s.adapter.Send(t.Context(), other)
		s.settle(t)
		posted := s.posted()
		if len(posted) < n {
			t.Fatalf("%d events posted", len(posted))
		}
		found, err := s.lookUp(t, around(begun))
		if err != nil {
			t.Fatal(err)
		}
		for id := range posted {
			if !found[id] {
				t.Fatalf("%v was posted and not found among %d", id, len(found))
			}
		}
		if found, err := s.lookUp(t, s.before(begun)); err != nil || len(found) > 0 {
			t.Errorf("of another time: %v %v", found, err)
		}
		q := around(begun)
		q.Recipient = c.Recipients[7].Email
		found, err = s.lookUp(t, q)
		if err != nil || len(found) == 0 {
			t.Error(found, err)
		}
		for id := range found {
			if id.log != c.Recipients[7].Log {
				t.Errorf("an event of another recipient: %v", id)
			}
		}
		stop := errors.New("enough")
		err = s.adapter.(models.EventLookup).LookUp(t.Context(), around(begun), func([]byte) error { return stop })
		if !errors.Is(err, stop) {
			t.Errorf("error of the caller: %v", err)
		}
	})
}

// SendGrid lists messages, and each must be read alone. LookUp reads only those of requests
// that are wanted.
func TestLookUpReadsOnlyWantedRequests(t *testing.T) {
	s := newStage(t, simulator.SendGrid)
	begun := time.Now()
	loud, quiet := models.NewBatchID(begun), models.NewBatchID(begun)
	s.adapter.Send(t.Context(), s.call(loud, 0, addresses(40)...))
	s.adapter.Send(t.Context(), s.call(quiet, 0, "deliver@sim.test"))
	s.settle(t)
	q := around(begun)
	q.Chunks = map[models.ID]bool{quiet.Chunk(0): true}
	found, err := s.lookUp(t, q)
	if err != nil || len(found) != 2 {
		t.Errorf("%v %v", found, err)
	}
}

// If there are more messages than SendGrid lists, their time must be read in parts.
func TestLookUpOfMoreThanOneList(t *testing.T) {
	s := newStage(t, simulator.SendGrid)
	begun := time.Now()
	for chunk := range 2 {
		s.adapter.Send(t.Context(), s.call(models.NewBatchID(begun), chunk, addresses(600)...))
		next := time.Now().Truncate(time.Second).Add(time.Second)
		for chunk == 0 && time.Now().Before(next) { // the list has whole seconds
			time.Sleep(time.Until(next))
		}
	}
	s.settle(t)
	found, err := s.lookUp(t, around(begun))
	if err != nil || len(found) != 2400 {
		t.Errorf("%d events, %v", len(found), err)
	}
}

// While a provider answers 429, LookUp waits and goes on where it was.
func TestLookUpWaitsForTheLimit(t *testing.T) {
	for _, kind := range []string{simulator.SendGrid, simulator.Mailgun} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			s := newStageWith(t, kind, simulator.Options{LookupsPerSecond: 4})
			begun := time.Now()
			n := map[string]int{simulator.SendGrid: 6, simulator.Mailgun: 300}[kind]
			s.adapter.Send(t.Context(), s.call(models.NewBatchID(begun), 0, addresses(n)...))
			s.settle(t)
			found, err := s.lookUp(t, around(begun))
			if err != nil || len(found) != 2*n {
				t.Errorf("%d events, %v", len(found), err)
			}
		})
	}
}

// An event is found after the lag and until the end of the window, as at the providers.
func TestLookUpSeesLagAndWindow(t *testing.T) {
	for _, kind := range []string{simulator.SendGrid, simulator.Mailgun} {
		for name, o := range map[string]simulator.Options{
			"lag":    {LookupLag: time.Hour},
			"window": {LookupWindow: time.Nanosecond},
		} {
			t.Run(kind+" "+name, func(t *testing.T) {
				t.Parallel()
				s := newStageWith(t, kind, o)
				begun := time.Now()
				s.adapter.Send(t.Context(), s.call(models.NewBatchID(begun), 0, "deliver@sim.test"))
				s.settle(t)
				if found, err := s.lookUp(t, around(begun)); err != nil || len(found) > 0 {
					t.Errorf("%v %v", found, err)
				}
			})
		}
	}
}

// Where the Logs API refuses the key, Mailgun's Events API is the fall-back. SendGrid has
// none, so that nothing may wait for a look-up.
func TestLookUpWithoutLogs(t *testing.T) {
	for kind, want := range map[string]error{simulator.SendGrid: models.ErrNoLookup, simulator.Mailgun: nil} {
		s := newStageWith(t, kind, simulator.Options{NoLogs: true})
		begun := time.Now()
		s.adapter.Send(t.Context(), s.call(models.NewBatchID(begun), 0, addresses(120)...))
		s.settle(t)
		found, err := s.lookUp(t, around(begun))
		if !errors.Is(err, want) || want == nil && len(found) != 240 {
			t.Errorf("%s: %d events, %v", kind, len(found), err)
		}
	}
}

// An asynchronous bounce comes without arguments. SendGrid's log has them.
func TestLookUpNamesTheMailOfAnAsyncBounce(t *testing.T) {
	s := newStage(t, simulator.SendGrid)
	begun := time.Now()
	c := s.call(models.NewBatchID(begun), 0, "async@sim.test")
	s.adapter.Send(t.Context(), c)
	s.settle(t)
	found, err := s.lookUp(t, around(begun))
	var kinds []models.EventKind
	for id := range found {
		if id.log == c.Recipients[0].Log {
			kinds = append(kinds, id.kind)
		}
	}
	slices.Sort(kinds)
	if err != nil || !slices.Equal(kinds, []models.EventKind{models.Bounced, models.Delivered, models.Processed}) {
		t.Error(kinds, err)
	}
}

// SendGrid's log knows when it accepted a mail. A query need not read the mail of days to find
// the late events of one call.
func TestLookUpReadsOnlyMailOfItsTime(t *testing.T) {
	for kind, want := range map[string]int{simulator.SendGrid: 0, simulator.Mailgun: 2} {
		s := newStage(t, kind)
		begun := time.Now()
		s.adapter.Send(t.Context(), s.call(models.NewBatchID(begun), 0, "deliver@sim.test"))
		s.settle(t)
		q := around(begun)
		q.SentBy = begun.Add(-time.Minute)
		if found, err := s.lookUp(t, q); err != nil || len(found) != want {
			t.Errorf("%s: %v %v", kind, found, err)
		}
		q.SentBy = begun.Add(time.Minute)
		if found, err := s.lookUp(t, q); err != nil || len(found) != 2 {
			t.Errorf("%s: %v %v", kind, found, err)
		}
	}
}

// TestLookUpGivesNoNegativeEvidence: a look-up that finds nothing posts nothing and is no error, so it proves nothing.
func TestLookUpGivesNoNegativeEvidence(t *testing.T) {
	eachLog(t, func(t *testing.T, s *stage) {
		begun := time.Now()
		s.adapter.Send(t.Context(), s.call(models.NewBatchID(begun), 0, "deliver@sim.test"))
		s.settle(t)
		another := around(begun)
		another.Recipient = "another@sim.test"
		for name, q := range map[string]models.LookupQuery{"no mail": s.before(begun), "other mail": another} {
			err := s.adapter.(models.EventLookup).LookUp(t.Context(), q, func(body []byte) error {
				return fmt.Errorf("posted %s", body)
			})
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}
