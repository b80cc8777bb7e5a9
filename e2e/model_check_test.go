//go:build full

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"pgregory.net/rapid"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/internal/testkit"
	"github.com/safedelivr/safedelivr/lab/simulator"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/telemetry"
)

// finish ends all faults and commands, waits until every log has its final state, and compares all of them with the
// copies.
func (m *model) finish(t *rapid.T) {
	m.sim.ClearAll("")
	m.unblock(t)
	for _, provider := range []string{"sg", "mg"} {
		m.must(t, "", m.commandProvider("online", provider), http.StatusOK)
	}
	for _, b := range m.batches {
		if b.stopped && !b.cancelled {
			m.must(t, "", m.commandBatch("resume", b.id), http.StatusOK)
		}
	}
	listed := 0
	for _, err := range m.client.Batches(context.Background(), client.ListOptions{}) {
		if err != nil {
			t.Fatal(err)
		}
		listed++
	}
	if listed != len(m.batches) {
		t.Fatalf("%d requests were accepted, and there are %d batches", len(m.batches), listed)
	}
	var wrong error
	// A mail that providers have refused for a while is tried again after five minutes.
	for end := time.Now().Add(2 * testkit.Patience); ; time.Sleep(50 * time.Millisecond) { // between requests
		if wrong = m.held(t); wrong == nil {
			wrong = m.published(t)
		}
		if wrong == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal(wrong)
		}
	}
	ids := make([]models.ID, len(m.batches))
	for i, b := range m.batches {
		ids[i] = b.id
	}
	m.statsAgree(ids...)
	// The server still runs: events may come after the last state of a log, and the sums must be renewed for them.
	var check telemetry.Recount
	out := m.command("check", "--json")
	if json.Unmarshal([]byte(out), &check) != nil || check.Differences > 0 || check.Batches != len(m.batches) {
		t.Fatalf("a check says %s", out)
	}
}

// held compares every log with the promises. It returns an error for a log that is not final yet, so that the caller
// waits.
func (m *model) held(t *rapid.T) error {
	if err := m.sim.Settle(context.Background()); err != nil {
		t.Fatal(err)
	}
	for _, b := range m.batches {
		v := m.read(t, b)
		if v.State != client.BatchDone {
			return fmt.Errorf("batch %s does not end: %+v", b.id, v.Counts)
		}
		logs := m.logs(b.id, "")
		if len(logs) != b.n {
			return fmt.Errorf("a batch of %d has %d logs", b.n, len(logs))
		}
		if err := m.toldSuppressed(b); err != nil {
			return err
		}
		for i := range logs {
			if err := m.log(b, &logs[i]); err != nil {
				return fmt.Errorf("%w: %+v of %+v, copies %+v", err, logs[i], *b, m.sim.Copies(logs[i].ID))
			}
		}
	}
	return nil
}

// published reads the feed of updates to its end. The updates of a log are 1, 2, 3, …. published returns an error if
// the last one is not what the log says, so that the caller waits.
func (m *model) published(t *rapid.T) error {
	last := map[string]client.Update{}
	for u, err := range m.client.Updates(client.UpdateOptions{}).All(context.Background()) {
		if err != nil {
			t.Fatal(err)
		}
		if before := last[u.Log].Number; u.Number != before+1 {
			t.Fatalf("update %d of log %s follows number %d", u.Number, u.Log, before)
		}
		last[u.Log] = u
	}
	for _, b := range m.batches {
		for _, l := range m.logs(b.id, "") {
			if u := last[l.ID]; u.State != l.State || u.Reason != l.Reason {
				return fmt.Errorf("the feed says %+v of log %+v", u, l)
			}
		}
	}
	return nil
}

// log compares one log with the copies of its mail.
func (m *model) log(b *asked, l *client.Log) error {
	copies, delivered, bounced := m.sim.Copies(l.ID), 0, strings.HasPrefix(l.Email, "hardbounce")
	for i := range copies {
		if slices.Contains([]string{"deliver", "open", "complain", "unsubscribe"}, copies[i].Outcome) {
			delivered++
		}
	}
	// It was in doubt, and its sender or an operator wanted it to be sent again.
	wanted := l.PossibleDuplicate && (b.released || !b.hold)
	early := slices.ContainsFunc(copies, func(c simulator.Copy) bool { return c.At.Before(b.batch.DeliverAt) })
	switch {
	case early:
		return errors.New("it left before its time")
	case delivered > 1 && !wanted:
		return errors.New("doubled")
	case bounced && len(copies) > 1 && !wanted:
		return errors.New("a hard bounce was sent again")
	case delivered > 0 && l.State != client.Delivered:
		return errors.New("delivered, and it does not say so")
	}
	switch l.State {
	case client.Delivered:
		if delivered == 0 {
			return errors.New("success, and nothing was delivered")
		}
	case client.Cancelled:
		if !b.cancelled {
			return errors.New("cancelled, and no command did it")
		}
	case client.Failed:
		if l.Reason == "" {
			return errors.New("failed without a reason")
		}
		switch models.Reason(l.Reason) { // the others have a cause
		case models.Expired, models.NoFinalEvent, models.BlockedByRule:
			return errors.New("ended by a cause that there was not")
		}
	case client.Queued, client.Sent:
		return errors.New("not final in a batch that is done")
	}
	return m.suppressedRightly(b, l, copies)
}
