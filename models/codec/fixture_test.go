package codec

import (
	"fmt"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

var t0 = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func attempt(n int, provider string, who ...int) models.Entry {
	return models.Entry{
		Number:     n,
		Kind:       models.Attempt,
		Provider:   provider,
		Recipients: models.SetOf(who...),
		At:         t0.Add(time.Duration(n) * time.Second),
	}
}

func answer(n int, class models.Class, who ...int) models.Fact {
	parts := []models.Part{{Class: class, Recipients: models.SetOf(who...)}}
	at := t0.Add(time.Duration(n)*time.Second + 500*time.Millisecond)
	return models.Fact{Key: models.OutcomeKey(n), Outcome: &models.Outcome{Attempt: n, At: at, Parts: parts}}
}

func event(n int, provider string, kind models.EventKind, reason models.Reason, r int) models.Fact {
	e := models.Event{
		ID:        fmt.Sprint(n, provider, kind, reason, r),
		Attempt:   n,
		Provider:  provider,
		Kind:      kind,
		Reason:    reason,
		Recipient: r,
		At:        t0.Add(time.Minute),
	}
	return models.Fact{Key: "e" + e.ID, Events: []models.Event{e}}
}
