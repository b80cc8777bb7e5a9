package client

import (
	"cmp"
	"context"
	"iter"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// The types of updates: changes of the state of a log, and events.
const (
	LogDelivered    = "log.delivered"
	LogFailed       = "log.failed"
	LogCancelled    = "log.cancelled"
	LogQueued       = "log.queued"
	LogDeferred     = "log.deferred"
	LogBounced      = "log.bounced"
	LogComplained   = "log.complained"
	LogUnsubscribed = "log.unsubscribed"
	LogOpened       = "log.opened"
	LogClicked      = "log.clicked"
	// BatchEnded says that no log of a batch is queued any more.
	BatchEnded = "batch.done"
	// SuppressionAdded says that mail to an address is not sent any more.
	SuppressionAdded = "suppression.added"
	// EndpointDisabled says that nothing is posted to an endpoint any more, because its posts failed.
	EndpointDisabled = "endpoint.disabled"
	// AllTypes selects all of them.
	AllTypes = "all"
)

// Update is a change of the state, the reason or the provider of a log, or an event. A log has an event once for each
// provider, however often it was reported.
type Update struct {
	Log string `json:"log,omitempty" format:"uuid"`
	// The changes of a log are 1, 2, 3, …, and so are its events, and the ends of a batch. Of `suppressed` and
	// `endpoint_disabled` it is 1.
	Number int    `json:"number" min:"1"`
	User   string `json:"user,omitempty"` // ID of the user, in posts to an endpoint with `everyone`.
	// Your id of the message, if you gave it one. It is there as long as the content is kept.
	ID    string `json:"id,omitempty"`
	Batch string `json:"batch,omitempty" format:"uuid"`
	State State  `json:"state,omitempty" schema:"UpdateState"`
	// What a provider reported. `bounced`: it has given up, for any reason. `done`: no log of the batch is queued any
	// more. `suppressed`: an address was added to the suppression list. `endpoint_disabled`: nothing is posted to an
	// endpoint any more.
	Event string `json:"event,omitempty" schema:"UpdateEvent"`
	// Why it failed or was cancelled; `unconfirmed` or `implied` if no delivery was reported. Of an event: why it was
	// deferred or bounced.
	Reason   string    `json:"reason,omitempty"`
	Provider string    `json:"provider,omitempty"` // The provider that decided, if one did, or that reported the event.
	At       time.Time `json:"at"`                 // When the update was written.
	// That of the recipient and, for other keys, of the batch. It is there as long as their content is kept, and so are
	// the tags.
	Metadata map[string]string `json:"metadata,omitempty"`
	Tags     []string          `json:"tags,omitempty"`
	// The Message-ID of the mail, in angle brackets, if `headers` had one.
	RFCMessageID string            `json:"rfc_message_id,omitempty"`
	Suppression  *AddedSuppression `json:"suppression,omitempty"`
	Endpoint     *DisabledEndpoint `json:"endpoint,omitempty"`
}

// DisabledEndpoint is an endpoint that was disabled because its posts failed.
type DisabledEndpoint struct {
	ID    string    `json:"id"`
	Why   string    `json:"why"`
	Since time.Time `json:"since"` // When its posts began to fail.
}

// AddedSuppression is an addition to a suppression list. A repeat has the same ID.
type AddedSuppression struct {
	ID string `json:"id"`
	Suppression
}

// UpdateOptions select updates. The zero value selects all that are kept.
type UpdateOptions struct {
	// PageSize is how many updates each request asks for, 1 to 1,000. The default is 1,000.
	PageSize int
	// Cursor is where to begin: that of an earlier read. By default it is the oldest update that is kept.
	Cursor string
	// From and To bound the time of the updates: [From, To).
	From, To time.Time
	// Batch is the ID of a batch.
	Batch string
	Tag   string
	State State
	// Events are types; the default is all changes of the state.
	Events []string
	// Wait is how long each request waits for an update, up to a minute. Zero: it does not wait.
	Wait time.Duration
}

func (o *UpdateOptions) query() url.Values {
	query := parameters(map[string]string{
		"cursor": o.Cursor,
		"from":   moment(o.From),
		"to":     moment(o.To),
		"batch":  o.Batch,
		"tag":    o.Tag,
		"state":  string(o.State),
		"events": strings.Join(o.Events, ","),
	})
	if o.Wait > 0 {
		query.Set("wait", o.Wait.String())
	}
	query.Set("limit", strconv.Itoa(cmp.Or(o.PageSize, maxUpdates)))
	return query
}

const maxUpdates = 1000

// UpdatePage is a part of the updates.
type UpdatePage struct {
	Updates []Update `json:"updates"`
	UpdatesEnd
}

// UpdatesEnd says where a page ends.
type UpdatesEnd struct {
	Next string `json:"next_cursor"` // Where the next call begins.
	More bool   `json:"more"`        // There is more to read now.
	// No update with an `at` before this time follows. Absent: nothing was ever written.
	Complete time.Time `json:"complete_until,omitzero"`
}

// UpdatePage reads one page of updates. Call it again with its Next as the Cursor.
func (c *Client) UpdatePage(ctx context.Context, o UpdateOptions, options ...CallOption) (UpdatePage, error) {
	var out UpdatePage
	return out, c.get(ctx, route("updates"), o.query(), &out, options)
}

// UpdateCounts are numbers of updates by type. Those without an update are left out.
type UpdateCounts struct {
	// By type, like `log.delivered`. Types without an update are left out.
	Counts map[string]int64 `json:"counts"`
	UpdatesEnd
}

// CountUpdates counts the updates that options select, by type, with as many requests as that takes. PageSize and Wait
// mean nothing.
func (c *Client) CountUpdates(ctx context.Context, o UpdateOptions, options ...CallOption) (UpdateCounts, error) {
	total := UpdateCounts{Counts: map[string]int64{}, UpdatesEnd: UpdatesEnd{More: true}}
	for total.More {
		query := o.query()
		query.Del("limit")
		query.Del("wait")
		var page UpdateCounts
		if err := c.get(ctx, route("updates", "counts"), query, &page, options); err != nil {
			return total, err
		}
		for kind, n := range page.Counts {
			total.Counts[kind] += n
		}
		o.Cursor = page.Next
		total.UpdatesEnd = page.UpdatesEnd
	}
	return total, nil
}

// Updates reads updates one after the other. It is for one goroutine.
type Updates struct {
	client   *Client
	options  UpdateOptions
	complete time.Time
	page     []Update // those that were read and not returned
	read     bool     // page was read, and next and more are about what follows it
	next     string
	more     bool
}

// Updates returns a reader of updates. It makes no request.
func (c *Client) Updates(o UpdateOptions) *Updates {
	return &Updates{client: c, options: o}
}

// All returns the updates in order. With the option Wait it waits for those that come, and ends only with ctx, after an
// error, or when no update before To can follow. Without it, it ends when there is none. It may be called again, also
// after an error: it goes on behind the last update that it has returned.
func (u *Updates) All(ctx context.Context) iter.Seq2[Update, error] {
	return func(yield func(Update, error) bool) {
		for {
			for len(u.page) > 0 {
				v := u.page[0]
				u.page = u.page[1:]
				if !yield(v, nil) {
					return
				}
			}
			if u.read {
				u.options.Cursor, u.read = u.next, false
				ended := !u.options.To.IsZero() && !u.complete.Before(u.options.To)
				if !u.more && (u.options.Wait <= 0 || ended) {
					return
				}
			}
			p, err := u.client.UpdatePage(ctx, u.options)
			if err != nil {
				yield(Update{}, err)
				return
			}
			u.page, u.read, u.next, u.more, u.complete = p.Updates, true, p.Next, p.More, p.Complete
		}
	}
}

// Cursor returns the place behind the last page whose updates were all returned by All. A reader that begins with it
// returns the next update, and before it those of the present page again.
func (u *Updates) Cursor() string { return u.options.Cursor }

// Complete returns a time: no update before it follows behind the present page.
func (u *Updates) Complete() time.Time { return u.complete }
