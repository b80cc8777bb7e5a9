package kind

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/providers/internal/parse"
)

// Ours is the metadata of a mail, as it comes back.
type Ours struct {
	Log     parse.Str `json:"sd_log"`
	Attempt parse.Str `json:"sd_attempt"`
}

// Tag returns a tag that names the chunk and the attempt of a mail. It is for a provider whose events have the tags of
// their mail, but not always its log, or that finds events by them.
func Tag(chunk models.ID, attempt int) string {
	return chunk.String() + parse.TagMark + strconv.Itoa(attempt)
}

// A Report is an event as a provider reports it, read by its kind.
type Report struct {
	Name parse.Str // of the event, as the provider calls it
	Ours
	Tag       string // as Tag makes it, if the log did not come back; the address then says which recipient it is about
	Lost      string // why nothing of it came back, although the mail may be ours
	MessageID string // as in the answer to the call
	Address   string
	Same      []string // what repeats of the event have in common, if it has no ID
	Daily     bool     // its ID is unique only within a day

	// Event has no attempt. It has no Kind if it concerns no log, and a zero At if no time is known.
	models.Event
}

// AddTo adds a report, which is number n of a webhook, to what the webhook says.
func (r *Report) AddTo(out *models.Parsed, n int) {
	skip := func(why string) {
		out.Skipped = append(out.Skipped, fmt.Sprintf("event %d: %s: %s", n, parse.Word(r.Name), why))
	}
	if r.Kind == "" {
		skip("not a kind of event that concerns a log")
		return
	}
	address := strings.ToLower(r.Address)
	if r.Lost != "" {
		if r.Address == "" || r.At.IsZero() || r.MessageID == "" && !r.Async {
			skip(r.Lost)
			return
		}
		r.identify(r.MessageID, address)
		out.Unnamed = append(out.Unnamed, models.UnnamedEvent{MessageID: r.MessageID, Address: r.Address, Event: r.Event})
		return
	}
	named := string(r.Ours.Log)
	log, attempt, why := parse.Ours(r.Ours.Log, r.Ours.Attempt)
	if named == "" && r.Tag != "" && r.Address != "" {
		named = r.Tag
		log, attempt, why = parse.OurTag(r.Tag)
	}
	if why != "" {
		skip(why)
		return
	}
	if r.Event.Attempt = attempt; r.At.IsZero() {
		r.At = log.Time() // never later than the event
	}
	r.identify(named, string(r.Ours.Attempt), address)
	out.Events = append(out.Events, models.ParsedEvent{Log: log, Address: r.Address, Event: r.Event})
}

// maxID bounds the ID of an event.
const maxID = 100

// identify sets the ID of an event. mail says which mail it is about.
func (r *Report) identify(mail ...string) {
	switch {
	case r.ID == "" || len(r.ID) > maxID:
		r.ID = parse.Hash(append(mail, r.Same...)...)
	case r.Daily:
		r.ID += "@" + r.At.Format(time.DateOnly)
	}
}
