package softbounce

import (
	"context"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

const (
	owner   = "soft-bounces" // of the documents that list what is due
	dueKind = "due"
	// maxDue is how many addresses a document lists at most, so that it stays below models.MaxDocument.
	maxDue = 8_000
)

// due lists addresses of users. One document for each shard is changed in place: rows that come and go would
// leave tombstones.
type due map[string]entry

// entry says when it is decided about an address, and which call made it due.
type entry struct {
	Token models.Token `json:"t"`
	Next  time.Time    `json:"n,omitzero"` // zero: now
}

// Due is an address whose record has enough mails for a decision.
type Due struct {
	User  string
	Hash  models.AddressHash
	Later time.Time // when it is decided; zero: it was decided
	token models.Token
}

func (d *Due) key() string { return d.User + "/" + hex.EncodeToString(d.Hash[:]) }

func shardKey(shard int) string { return fmt.Sprintf("%x", shard) }

// markDue makes addresses of a user due.
func markDue(ctx context.Context, s models.DocumentStore, user string, hashes []models.AddressHash) error {
	for shard, some := range byShard(hashes) {
		if len(some) == 0 {
			continue
		}
		token := models.NewToken()
		_, _, err := models.ChangeDocument(ctx, s, owner, dueKind, shardKey(shard), func(list *due, _ int) error {
			if *list == nil {
				*list = due{}
			}
			for _, h := range some {
				(*list)[(&Due{User: user, Hash: h}).key()] = entry{Token: token}
			}
			if len(*list) > maxDue {
				return fmt.Errorf("%w: %d addresses wait for a decision", models.ErrUnavailable, len(*list))
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("soft bounces: %w", err)
		}
	}
	return nil
}

// DueOf returns what is due in a shard at a time, by user.
func DueOf(ctx context.Context, s models.DocumentStore, shard int, now time.Time) (map[string][]Due, error) {
	list, _, err := models.ReadDocument[due](ctx, s, owner, dueKind, shardKey(shard))
	out := map[string][]Due{}
	for key, e := range list {
		if e.Next.After(now) {
			continue
		}
		user, hash, _ := strings.Cut(key, "/")
		d := Due{User: user, token: e.Token}
		if _, err := hex.Decode(d.Hash[:], []byte(hash)); err != nil {
			return nil, fmt.Errorf("%w: due soft bounce %s", models.ErrDamaged, key)
		}
		out[user] = append(out[user], d)
	}
	return out, err
}

// Done removes what was decided in a shard from the list, and notes what is decided later. It leaves what became
// due again since it was read.
func Done(ctx context.Context, s models.DocumentStore, shard int, ds []Due) error {
	_, _, err := models.ChangeDocument(ctx, s, owner, dueKind, shardKey(shard), func(list *due, _ int) error {
		for i := range ds {
			switch key := ds[i].key(); {
			case (*list)[key].Token != ds[i].token:
			case ds[i].Later.IsZero():
				delete(*list, key)
			default:
				(*list)[key] = entry{Token: ds[i].token, Next: ds[i].Later.UTC()}
			}
		}
		return nil
	})
	return err
}
