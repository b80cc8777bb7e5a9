package policy

import "github.com/safedelivr/safedelivr/models"

// history returns a hash of what is known of recipient r. Recipients with the same hash
// have the same next step. Plan computes it up to a thousand times for a chunk, so it
// avoids allocations.
func history(v *models.View, r int) uint64 {
	h := hasher(14695981039346656037)
	if v.Status(r).Released {
		h.number(1)
	}
	if v.Status(r).Accepted != nil { // a released recipient may have the same tries without it
		h.number(2)
	}
	v.EachTry(r, func(t *models.Try) {
		h.number(int64(t.Attempt))
		h.number(int64(t.Status))
		h.text(string(t.Verdict))
		h.text(string(t.Class))
		h.text(string(t.Reason))
		if t.Guess {
			h.number(3)
		}
		switch t.Verdict {
		case models.VerdictAccepted:
			h.number(t.At.Unix() / 60)
		case models.VerdictFailed, models.VerdictDelivered: // the next step does not depend on the time
		case models.VerdictPending, models.VerdictUnknown, models.VerdictRefused:
			h.number(t.At.UnixMilli())
			h.number(int64(t.Fewer))
		}
	})
	return uint64(h)
}

// withBlocks returns a hash that also depends on the blocks that match a recipient.
func withBlocks(h uint64, blocks []*models.Block) uint64 {
	m := hasher(h)
	for _, b := range blocks {
		m.text(b.ID)
	}
	return uint64(m)
}

// hasher is FNV-1a.
type hasher uint64

func (h *hasher) byte(b byte) { *h = (*h ^ hasher(b)) * 1099511628211 }

func (h *hasher) number(n int64) {
	for range 8 {
		h.byte(byte(n)) //nolint:gosec // the lowest byte is meant
		n >>= 8
	}
}

func (h *hasher) text(s string) {
	for i := range len(s) {
		h.byte(s[i])
	}
	h.byte(0)
}
