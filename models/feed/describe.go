package feed

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/sync/errgroup"

	"github.com/safedelivr/safedelivr/models"
)

// Described is an update as users see it, with what they gave along with the mail.
type Described struct {
	*models.Notice // nil: it is of a log

	User     string           `json:"user,omitempty"` // whose mail it is, if that is not known; of a notice: whose limit
	Log      models.ID        `json:"log,omitzero"`
	ID       string           `json:"id,omitempty"` // of the message, if its sender gave it one; kept with the content
	Number   int              `json:"number"`       // see Update
	Batch    models.ID        `json:"batch,omitzero"`
	State    models.State     `json:"state,omitempty"` // there is none if it is an event
	Event    models.EventKind `json:"event,omitempty"`
	Reason   models.Reason    `json:"reason,omitempty"`
	Provider string           `json:"provider,omitempty"`
	At       time.Time        `json:"at"`

	// Metadata is that of the recipient and, for other keys, of the batch. It is there as long as their content is kept,
	// and so are the tags.
	Metadata map[string]string `json:"metadata,omitempty"`
	Tags     []string          `json:"tags,omitempty"`
	// RFCMessageID is the Message-ID that the sender gave the mail, in angle brackets.
	RFCMessageID string `json:"rfc_message_id,omitempty"`

	// Endpoint is the disabled one, for the event models.EndpointFailed, which is about no log.
	Endpoint *models.FailedEndpoint `json:"endpoint,omitempty"`

	// Suppression is the addition to the list of the event models.AddressSuppressed, which is of no log.
	Suppression *Suppression `json:"suppression,omitempty"`

	batch      *Batch
	to, values *models.Recipient // nil: they are not known
	listed     models.SuppressionReason
}

// Listed returns why the address is on the suppression list that stopped the mail, or "". Describer.AddListed sets it.
func (d *Described) Listed() models.SuppressionReason { return d.listed }

// Request returns the first batch of the request that the mail came by. Nearly always it is the batch of the mail.
func (d *Described) Request() models.ID {
	if d.batch == nil || d.batch.request.IsZero() {
		return d.Batch
	}
	return d.batch.request
}

// Category returns the category of the mail, or "".
func (d *Described) Category() string {
	if d.batch == nil {
		return ""
	}
	return d.batch.Category
}

// Headers returns the header fields that the sender gave the mail. Of large ones only the Message-ID is kept.
func (d *Described) Headers() []models.Header {
	if d.values == nil {
		return nil
	}
	out := slices.Clone((&models.Content{Headers: d.batch.headers}).HeadersOf(d.values))
	for i := range out {
		out[i].Value = d.values.Fill(out[i].Value, nil)
	}
	return out
}

// From returns the sender of the mail. It is empty if the content was removed.
func (d *Described) From() models.Address {
	if d.batch == nil {
		return models.Address{}
	}
	return d.batch.from
}

// To returns the recipient of the mail. It is empty if it was removed.
func (d *Described) To() models.Address {
	if d.to == nil {
		return models.Address{}
	}
	return models.Address{Email: d.to.Email, Name: d.to.Name}
}

// Subject returns the subject of the mail to the recipient.
func (d *Described) Subject() string {
	if d.values == nil {
		return ""
	}
	return d.values.Fill(d.batch.subject, nil)
}

// Type returns the type of the update.
func (d *Described) Type() Type {
	if d.Notice != nil {
		return Type(d.Kind)
	}
	return TypeOf(d.State, d.Event)
}

// Batch is the description of a batch in updates.
type Batch struct {
	Tags     []string
	Category string
	Metadata map[string]string

	request models.ID // first batch of the request
	from    models.Address
	subject string
	headers []models.Header // of the sender; without others than the Message-ID if they have more than maxHeaders bytes
	shared  bool            // all recipients have one mail
	removed bool            // its content was removed
	read    time.Time       // when it was read
}

// Describer describes updates. Its methods may be called by many goroutines at once.
type Describer struct {
	store   DescribedStore
	batches *lru.Cache[models.ID, Batch]
}

// DescribedStore is the part of models.Store that a Describer needs.
type DescribedStore interface {
	Batch(ctx context.Context, id models.ID) (models.Batch, error)
	Recipients(ctx context.Context, chunk models.ID) ([]models.Recipient, error)
	SuppressionsOf(ctx context.Context, list string, hashes ...models.AddressHash) ([]models.Suppression, error)
}

const (
	readAtOnce = 8

	// A batch is read again after batchAge, because its content may be removed.
	batchAge    = time.Minute
	keptBatches = 4096

	maxHeaders = 16 << 10 // bytes of the header fields of a batch that are kept
)

// NewDescriber returns a Describer.
func NewDescriber(store DescribedStore) *Describer {
	return &Describer{store: store, batches: newCache[models.ID, Batch](keptBatches)}
}

// Describe returns updates of a feed with descriptions of their batches, recipients and suppressions.
func (d *Describer) Describe(ctx context.Context, owner string, found []Update) ([]Described, error) {
	out := make([]Described, len(found))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(readAtOnce)
	for from := 0; from < len(found); {
		u, to := &found[from], from+1
		for to < len(found) && found[to].together(u) {
			to++
		}
		some, into := found[from:to], out[from:to]
		switch {
		case u.Notice != nil:
			describeNotices(owner, some, into)
		case u.Suppression != nil:
			g.Go(func() error { return d.describeSuppressions(ctx, ListOf(owner), some, into) })
		default:
			g.Go(func() error { return d.describeChunk(ctx, u.Log.ChunkID(), some, into) })
		}
		from = to
	}
	return out, g.Wait()
}

// together reports whether one read describes two updates.
func (u *Update) together(o *Update) bool {
	mail := u.Notice == nil && u.Suppression == nil
	return (u.Notice == nil) == (o.Notice == nil) && (u.Suppression == nil) == (o.Suppression == nil) &&
		(!mail || u.Log.ChunkID() == o.Log.ChunkID())
}

func describeNotices(owner string, found []Update, out []Described) {
	for i := range found {
		n := found[i].Notice
		if owner != Installation { // of EndpointDisabled
			out[i] = Described{Number: n.Number, Event: models.EndpointFailed, Endpoint: n.Endpoint, At: found[i].At}
			continue
		}
		out[i] = Described{
			Notice: n, User: n.User, Number: n.Number, Reason: models.Reason(n.Reason), Provider: n.Provider,
			Endpoint: n.Endpoint, At: found[i].At,
		}
	}
}

// describeChunk describes updates of one chunk.
func (d *Describer) describeChunk(ctx context.Context, chunk models.ID, found []Update, out []Described) error {
	b, err := d.Batch(ctx, chunk.Batch())
	if err != nil {
		return err
	}
	var recipients []models.Recipient
	if !b.removed {
		if recipients, err = d.store.Recipients(ctx, chunk); err != nil && !unreadable(err) {
			return err
		}
	}
	for i := range found {
		u := &found[i]
		out[i] = Described{
			Log:      u.Log,
			Number:   u.Number,
			Batch:    chunk.Batch(),
			State:    u.State,
			Event:    u.Event,
			Reason:   u.Reason,
			Provider: u.Provider,
			At:       u.At,
			Metadata: b.Metadata,
			Tags:     b.Tags,
			batch:    &b,
		}
		n := u.Log.Recipient()
		if n == 0 {
			out[i].Log = models.ID{} // it is of the batch
		}
		if n == 0 || n > len(recipients) {
			continue
		}
		r := &recipients[n-1]
		if out[i].ID = r.ClientID; len(r.Metadata) > 0 {
			out[i].Metadata = merged(b.Metadata, r.Metadata)
		}
		out[i].to, out[i].values = r, r
		if b.shared {
			out[i].values = &recipients[0]
		}
		out[i].RFCMessageID = (&models.Content{Headers: b.headers}).MessageID(out[i].values)
	}
	return nil
}

// AddListed reads why addresses are on a suppression list of the owner of a feed, for the mail that one has stopped.
func (d *Describer) AddListed(ctx context.Context, owner string, described []Described) error {
	var hashes []models.AddressHash
	stopped := map[models.AddressHash][]*Described{}
	for i := range described {
		u := &described[i]
		if u.to == nil || u.Reason != models.Suppressed && u.Reason != models.SuppressedUnsubscribe {
			continue
		}
		hash := models.HashAddress(u.to.Email)
		hashes, stopped[hash] = append(hashes, hash), append(stopped[hash], u)
	}
	if len(hashes) == 0 {
		return nil
	}
	entries, err := d.store.SuppressionsOf(ctx, ListOf(owner), hashes...)
	for i := range entries {
		e := &entries[i]
		for _, u := range stopped[e.Hash] {
			strength := func(r models.SuppressionReason) int { return slices.Index(models.SuppressionReasons, r) }
			if e.InEffect(time.Now()) && (u.listed == "" || strength(e.Reason) < strength(u.listed)) {
				u.listed = e.Reason
			}
		}
	}
	return err
}

// Example returns the update of a mail that was never sent: it was delivered at a time.
func Example(at time.Time) *Described {
	id := models.NewBatchID(at)
	to := &models.Recipient{Email: "test@example.com"}
	return &Described{
		Log: id.Log(1), Batch: id, Number: 1, State: models.Success, At: at, Tags: []string{"test"},
		Metadata: map[string]string{"test": "yes"}, RFCMessageID: "<" + id.String() + "@example.com>", to: to, values: to,
		batch: &Batch{from: models.Address{Email: "sender@example.com"}, subject: "This is a test post of Safedelivr."},
	}
}

// merged returns the values of both maps; those of the second count.
func merged(a, b map[string]string) map[string]string {
	out := make(map[string]string, len(a)+len(b))
	maps.Copy(out, a)
	maps.Copy(out, b)
	return out
}

// Batch returns the description of a batch in updates. Nothing is known of one that was removed or cannot be read.
func (d *Describer) Batch(ctx context.Context, id models.ID) (Batch, error) {
	if b, ok := d.batches.Get(id); ok && time.Since(b.read) < batchAge {
		return b, nil
	}
	b, err := d.store.Batch(ctx, id)
	gone := unreadable(err)
	if err != nil && !gone {
		return Batch{}, err
	}
	out := Batch{
		Tags: b.Content.Tags, Category: b.Category, Metadata: b.Metadata, shared: b.Envelope != nil,
		request: b.PartOf, from: b.Content.From, subject: b.Content.Subject,
		removed: gone || b.Redacted, read: time.Now(),
	}
	size := 0
	for _, h := range b.Content.Headers {
		size += len(h.Name) + len(h.Value)
	}
	if out.headers = b.Content.Headers; size > maxHeaders {
		out.headers = nil
		if at := models.FindHeader(b.Content.Headers, models.MessageIDField); at >= 0 {
			out.headers = []models.Header{b.Content.Headers[at]}
		}
	}
	d.batches.Add(id, out)
	return out, nil
}

func unreadable(err error) bool {
	return errors.Is(err, models.ErrNotFound) || errors.Is(err, models.ErrDamaged)
}
