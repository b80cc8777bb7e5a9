package endpoints

import (
	"context"
	"errors"
	"maps"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/feed"
)

// view is an update as receivers get it, with what the sender has given along.
type view struct {
	Log      string            `json:"log"`
	Number   int               `json:"number"`
	Batch    string            `json:"batch"`
	State    models.State      `json:"state"`
	Reason   models.Reason     `json:"reason,omitempty"`
	Provider string            `json:"provider,omitempty"`
	At       time.Time         `json:"at"`
	Metadata map[string]string `json:"metadata,omitempty"`
	Tags     []string          `json:"tags,omitempty"`
}

func (p *Poster) view(ctx context.Context, u *feed.Update) (view, error) {
	v := view{
		Log: u.Log.String(), Number: u.Number, Batch: u.Log.Batch().String(),
		State: u.State, Reason: u.Reason, Provider: u.Provider, At: u.At,
	}
	b, err := p.batch(ctx, u.Log.Batch())
	if err != nil {
		return v, err
	}
	own, err := p.metadata(ctx, b, u.Log.ChunkID())
	if err != nil {
		return v, err
	}
	v.Tags, v.Metadata = b.Content.Tags, b.Metadata
	if r := u.Log.Recipient(); r <= len(own) && len(own[r-1]) > 0 {
		v.Metadata = maps.Clone(b.Metadata)
		if v.Metadata == nil {
			v.Metadata = map[string]string{}
		}
		maps.Copy(v.Metadata, own[r-1])
	}
	return v, nil
}

// batch returns a batch. One that does not exist any more, or cannot be read, is empty.
func (p *Poster) batch(ctx context.Context, id models.ID) (*models.Batch, error) {
	if b, ok := p.batches.Get(id); ok {
		return b, nil
	}
	b, err := p.store.Batch(ctx, id)
	if unreadable(err) {
		b, err = models.Batch{ID: id, Redacted: true}, nil
	}
	if err != nil {
		return nil, err
	}
	b.Content.Text, b.Content.HTML = "", "" // only tags and metadata are needed
	p.batches.Add(id, &b)
	return &b, nil
}

// metadata returns the metadata of the recipients of a chunk, in their order; nil: none has any.
func (p *Poster) metadata(ctx context.Context, b *models.Batch, chunk models.ID) ([]map[string]string, error) {
	if b.Redacted {
		return nil, nil
	}
	if all, ok := p.chunks.Get(chunk); ok {
		return all, nil
	}
	rs, err := p.store.Recipients(ctx, chunk)
	if unreadable(err) {
		rs, err = nil, nil
	}
	if err != nil {
		return nil, err
	}
	var all []map[string]string
	for i := range rs {
		if len(rs[i].Metadata) == 0 {
			continue
		}
		if all == nil {
			all = make([]map[string]string, len(rs))
		}
		all[i] = rs[i].Metadata
	}
	p.chunks.Add(chunk, all)
	return all, nil
}

func unreadable(err error) bool {
	return errors.Is(err, models.ErrNotFound) || errors.Is(err, models.ErrDamaged)
}
