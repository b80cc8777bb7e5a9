// Package softbounce stores which mails to an address could not be delivered for a reason that may pass, and which
// addresses have enough of them to be decided about.
package softbounce

import (
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// Bounce is a mail that could not be delivered, by the newest report that says so.
type Bounce struct {
	Log      models.ID     `json:"l"`
	At       time.Time     `json:"at"`
	Provider string        `json:"p"`
	Reason   models.Reason `json:"r"`
}

func (b *Bounce) compare(o *Bounce) int {
	return cmp.Or(
		b.At.Compare(o.At),
		bytes.Compare(b.Log[:], o.Log[:]),
		cmp.Compare(b.Provider, o.Provider),
		cmp.Compare(b.Reason, o.Reason),
	)
}

// newest returns the newest report of each of the n newest mails, oldest first. The newest of some reports and of the
// newest of others are the newest of all. So the order of reports does not matter, and neither do repeats.
func newest(reports []Bounce, n int) []Bounce {
	slices.SortFunc(reports, func(a, b Bounce) int { return b.compare(&a) })
	var out []Bounce
	for _, b := range reports {
		known := slices.ContainsFunc(out, func(o Bounce) bool { return o.Log == b.Log })
		if !known && len(out) < n {
			out = append(out, b)
		}
	}
	slices.Reverse(out)
	return out
}

// Record has the newest mails of a user to an address that bounced, oldest first.
type Record struct {
	Hash    models.AddressHash
	Bounces []Bounce
	version int // of its document; 0: there is none
}

// After removes the bounces that are not after a time from the record.
func (r *Record) After(t time.Time) {
	r.Bounces = slices.DeleteFunc(r.Bounces, func(b Bounce) bool { return !b.At.After(t) })
}

// document returns the record as a document of the next version.
func (r *Record) document() (d models.Document, err error) {
	d = models.Document{Key: hex.EncodeToString(r.Hash[:]), Version: r.version + 1}
	d.Value, err = json.Marshal(r.Bounces)
	return d, err
}

func decode(d *models.Document) (r Record, err error) {
	r.version = d.Version
	if n, err := hex.Decode(r.Hash[:], []byte(d.Key)); err != nil || n != len(r.Hash) {
		return r, fmt.Errorf("%w: document %s", models.ErrDamaged, d.Key)
	}
	return r, d.Decode(&r.Bounces)
}

// Shards is the number of parts of the records of a user, and of the list of what is due. It must never change.
const Shards = 16

func shardOf(h models.AddressHash) int { return int(h[0]) * Shards / 256 }

// kind returns the kind of the documents of a shard of a user's records.
func kind(shard int) string { return fmt.Sprintf("soft-bounces/%x", shard) }

// byShard divides addresses by shard.
func byShard(hashes []models.AddressHash) (out [Shards][]models.AddressHash) {
	for _, h := range hashes {
		out[shardOf(h)] = append(out[shardOf(h)], h)
	}
	return out
}

// Records returns the records of addresses of a user that exist, in any order.
func Records(
	ctx context.Context, s models.DocumentStore, user string, hashes []models.AddressHash,
) (out []Record, err error) {
	for shard, some := range byShard(hashes) {
		if len(some) == 0 {
			continue
		}
		keys := make([]string, len(some))
		for i, h := range some {
			keys[i] = hex.EncodeToString(h[:])
		}
		ds, err := s.DocumentsOf(ctx, user, kind(shard), keys)
		if err != nil {
			return nil, err
		}
		for i := range ds {
			r, err := decode(&ds[i])
			if err != nil {
				return nil, err
			}
			out = append(out, r)
		}
	}
	return out, nil
}

// attempts is how often a change is tried for which others race.
const attempts = 20

// Note adds bounces to the records of a user, which have up to n mails. Records with n of them become due. Note may be
// repeated, and noting in another order gives the same records. Errors: those of the store; models.ErrConflict means
// that others change the records all the time.
func Note(
	ctx context.Context, s models.DocumentStore, user string, n int, bounces map[models.AddressHash][]Bounce,
) error {
	left := make([]models.AddressHash, 0, len(bounces))
	for h := range bounces {
		left = append(left, h)
	}
	var full []models.AddressHash
	for range attempts {
		there, err := Records(ctx, s, user, left)
		if err != nil {
			return err
		}
		change := map[models.AddressHash]Record{}
		for _, h := range left {
			change[h] = Record{Hash: h}
		}
		for _, r := range there {
			change[r.Hash] = r
		}
		for h, r := range change {
			before := slices.Clone(r.Bounces)
			r.Bounces = newest(slices.Concat(before, bounces[h]), n)
			if len(r.Bounces) >= n {
				full = append(full, h)
			}
			if change[h] = r; slices.EqualFunc(before, r.Bounces, func(a, b Bounce) bool { return a.compare(&b) == 0 }) {
				delete(change, h)
			}
		}
		if left, err = put(ctx, s, user, change); err != nil {
			return err
		}
		if len(left) == 0 {
			return markDue(ctx, s, user, full)
		}
	}
	return fmt.Errorf("soft bounces: %w", models.ErrConflict)
}

// put stores records of a user. It returns the addresses of those that others have changed.
func put(
	ctx context.Context, s models.DocumentStore, user string, records map[models.AddressHash]Record,
) (lost []models.AddressHash, err error) {
	var hashes []models.AddressHash
	for h := range records {
		hashes = append(hashes, h)
	}
	for shard, some := range byShard(hashes) {
		if len(some) == 0 {
			continue
		}
		ds := make([]models.Document, len(some))
		for i, h := range some {
			r := records[h]
			if ds[i], err = r.document(); err != nil {
				return nil, err
			}
		}
		conflicts, err := s.PutDocuments(ctx, user, kind(shard), ds)
		if err != nil {
			return nil, err
		}
		for _, i := range conflicts {
			lost = append(lost, some[i])
		}
	}
	return lost, nil
}

// Keep stores a record after bounces were removed from it, or removes it if none are left. It does nothing if the
// record was changed since it was read.
func Keep(ctx context.Context, s models.DocumentStore, user string, r Record) error {
	if len(r.Bounces) == 0 {
		d := models.Document{Key: hex.EncodeToString(r.Hash[:]), Version: r.version}
		return s.RemoveDocuments(ctx, user, kind(shardOf(r.Hash)), []models.Document{d})
	}
	_, err := put(ctx, s, user, map[models.AddressHash]Record{r.Hash: r})
	return err
}

// Erase removes the record of an address of a user.
func Erase(ctx context.Context, s models.DocumentStore, user, address string) error {
	h := models.HashAddress(address)
	return s.DeleteDocument(ctx, user, kind(shardOf(h)), hex.EncodeToString(h[:]))
}

// dropPage is the number of records that Drop reads at a time.
const dropPage = 500

// Drop removes the records of a user without a bounce after a time.
func Drop(ctx context.Context, s models.DocumentStore, user string, before time.Time) error {
	for shard := range Shards {
		for after := ""; ; {
			page, err := s.Documents(ctx, user, kind(shard), after, dropPage)
			if err != nil {
				return err
			}
			var old []models.Document
			for i := range page {
				r, err := decode(&page[i])
				if err != nil {
					return err
				}
				if r.After(before); len(r.Bounces) == 0 {
					old = append(old, page[i])
				}
			}
			if len(old) > 0 {
				if err := s.RemoveDocuments(ctx, user, kind(shard), old); err != nil {
					return err
				}
			}
			if len(page) < dropPage {
				break
			}
			after = page[len(page)-1].Key
		}
	}
	return nil
}
