package updates

import (
	"net/http"
	"time"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/operation"
)

// part selects a part of a feed.
type part struct {
	// `next_cursor` of the answer before. Without it, the oldest one that is kept is the first.
	Cursor string `query:"cursor"`
	// Only those with this `at` or a later one.
	From time.Time `query:"from"`
	// Only those with an `at` before this time.
	To time.Time `query:"to"`
}

// size says how much of a feed is read, and how long a read waits.
type size struct {
	// How long to wait if there is none, at most 1m. A request that waits does not count as one of those that you make at
	// once.
	Wait string `query:"wait" default:"0s"`
	// How many; up to 100,000 of NDJSON, where it is also the default.
	Limit int `query:"limit" min:"1" max:"1000" default:"100"`
}

// selection selects updates of a user.
type selection struct {
	part
	// Only updates of this batch.
	Batch string `query:"batch" format:"uuid"`
	// Only updates of batches with this tag. It is known as long as the content of the batch is kept.
	Tag string `query:"tag"`
	// Only updates to this state.
	State string `query:"state" schema:"UpdateState"`
	// Only updates of these types, separated by commas; `all`: all. Default: all changes of the state.
	Events []string `query:"events" schema:"ChosenUpdate"`
}

type (
	updatesQuery struct {
		selection
		size
	}
	noticesQuery struct {
		part
		size
		// Only notices of these types, separated by commas. Default: all but `suppression.added`.
		Events []string `query:"events" schema:"NoticeType"`
	}
)

// Operations are the calls that read feeds.
func Operations() []operation.Operation {
	gone := []int{http.StatusGone}
	return []operation.Operation{
		operation.Declared[updatesQuery, client.UpdatePage](operation.Operation{
			Name: "listUpdates", Route: "GET /v1/updates", Tag: "batches", Scope: models.ScopeRead, Errors: gone,
			Title: "Read what changed", Returns: "The updates.", Media: "application/x-ndjson", Call: operation.ByHand,
			Text: "Every change of the state, the reason or the provider of a log is an update, in one order " +
				"that never changes. Call it again with `next_cursor`, which is there even if there is nothing " +
				"new: each update comes exactly once, also after a broken connection. The updates of a log have " +
				"the numbers 1, 2, 3, … without a hole. Changes of a log that follow each other within about a " +
				"second may be one update.\n\n" +
				"With `events` you choose the types of updates, and may ask for events, too: deferrals, bounces, " +
				"complaints, unsubscriptions, opens and clicks, and the ends of batches. Each kind of event is " +
				"reported once for a log and provider, however often it was reported. The events of a log have " +
				"numbers 1, 2, 3, … of their own, so that the numbers of changes do not depend on what you ask " +
				"for.\n\n" +
				"With `wait` the answer comes as soon as there is an update. A page that is empty, or has fewer " +
				"updates than `limit`, is not the end while `more` is true: the server has read a part of the " +
				"feed that has none that you want.\n\n" +
				"`from` and `to` select by `at`: ranges that touch have each update in one of them. Until " +
				"`complete_until` nothing is missing any more. Updates are kept for 30 days by default.\n\n" +
				"With `Accept: application/x-ndjson` each line is an update, up to 100,000 of them, and the last " +
				"line has `next_cursor`, `more` and `complete_until`. If the updates cannot be read, the connection " +
				"is closed before it.",
		}),
		operation.Declared[selection, client.UpdateCounts](operation.Operation{
			Name: "countUpdates", Route: "GET /v1/updates/counts", Tag: "batches", Scope: models.ScopeRead, Errors: gone,
			Title: "Count what changed", Returns: "The counts.", Call: operation.ByHand,
			Text: "Counts the updates that the same parameters select in `GET /v1/updates`, by type. A call " +
				"counts a part of the feed: while `more` is true, call it again with `next_cursor` and add what it " +
				"counts.",
		}),
		operation.Declared[noticesQuery, client.NoticePage](operation.Operation{
			Name: "listNotices", Route: "GET /v1/notices", Tag: operation.TagControl, Scope: models.ScopeOperate, Errors: gone,
			Title: "Read what happened to the installation", Returns: "The notices.", Media: "application/x-ndjson",
			Call: operation.ByHand,
			Text: "What operators want to hear of: providers that are suspended and recover, outages, sums that " +
				"differ, unknown outcomes, and limits of users that are nearly used up. Each is reported once, with " +
				"a number. With `events=suppression.added` additions to everyone's suppression list, too, at least " +
				"once, with an `id`. Cursors, ranges, `wait` and NDJSON are as in `GET /v1/updates`.",
		}),
	}
}
