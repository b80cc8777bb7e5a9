package mail

import (
	"context"
	"encoding/binary"
	"slices"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/operation"
	"github.com/safedelivr/safedelivr/service/walk"
)

// place is where a page of a listing begins.
type place struct {
	at   models.ID // the page comes after it; zero: the first page
	back bool      // the page is before at, not behind it
	pos  int       // entries of the list before the place
}

// placeLength is the length of a place in a cursor: direction, position, ID.
const placeLength = 1 + 4 + len(models.ID{})

func (p place) cursor(list string) string {
	b := []byte{0}
	if p.back {
		b[0] = 1
	}
	b = binary.BigEndian.AppendUint32(b, uint32(max(p.pos, 0))) //nolint:gosec // lists are shorter
	return operation.CursorOf(list, append(b, p.at[:]...))
}

// placeOf returns the place in p.Cursor. The cursor must belong to the list.
func placeOf(q *operation.Query, p operation.Page, list string) (out place) {
	if b := q.Cursor(p, list, placeLength); b != nil {
		out.at, out.back, out.pos = models.ID(b[5:]), b[0] == 1, int(binary.BigEndian.Uint32(b[1:]))
	}
	return out
}

// PageInfo describes a page of a list that can be read in both directions.
type PageInfo = client.PageInfo

// listing is a list of entries in the order of their IDs.
type listing[T any] struct {
	walk.List[T]
	name   string // binds cursors to the list
	up     bool   // the entry with the lowest ID comes first
	oneWay bool   // it can only be read forwards
}

// page reads a page of at most n entries.
func (l *listing[T]) page(ctx context.Context, n int, p place) ([]T, PageInfo, error) {
	got, err := l.Read(ctx, p.at, l.up != p.back, n, walk.MaxRead)
	switch {
	case err != nil:
		return nil, PageInfo{}, err
	case p.back && !got.More && len(got.Items) < n: // the beginning: a whole page
		return l.page(ctx, n, place{})
	}
	var info PageInfo
	if p == (place{}) && !got.More { // the page is the list
		n := int64(len(got.Items))
		info.Total = &n
	}
	if got.Spent {
		info.Until = got.End.Time()
	}
	first := p.pos // entries before the page
	last := place{at: got.End, pos: p.pos + len(got.Items)}
	if p.back {
		slices.Reverse(got.Items)
		first = max(p.pos-len(got.Items), 0)
		last = place{at: nudge(p.at, !l.up), pos: p.pos}
		if got.More {
			info.Prev = place{at: got.End, back: true, pos: first}.cursor(l.name)
		} else {
			first = 0
		}
		info.Next = last.cursor(l.name)
	} else {
		if got.More {
			info.Next = last.cursor(l.name)
		}
		if !p.at.IsZero() && !l.oneWay {
			info.Prev = place{at: nudge(p.at, l.up), back: true, pos: p.pos}.cursor(l.name)
		}
	}
	info.First = first + 1
	return got.Items, info, nil
}

// count adds the total to a page that ends with entry number last: what the sums tell, or what a bounded count finds.
func (l *listing[T]) count(ctx context.Context, c *walk.Counts, info *PageInfo, last int, sums *int64) error {
	if info.Total != nil {
		return nil
	}
	if info.Total = sums; sums != nil {
		return nil
	}
	n, all, err := walk.CountList(ctx, c, l.name, &l.List, l.up)
	switch {
	case err != nil || n < int64(last): // it has grown, or goes on
		return err
	case all:
		info.Total = &n
	default:
		info.AtLeast = n
	}
	return nil
}

// nudge returns the ID beside an ID, so that a page that begins there includes the ID.
func nudge(id models.ID, up bool) models.ID {
	for i := len(id) - 1; i >= 0; i-- {
		if up {
			id[i]++
			if id[i] != 0 {
				return id
			}
		} else {
			id[i]--
			if id[i] != 0xff {
				return id
			}
		}
	}
	return id
}
