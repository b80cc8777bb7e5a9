package policy

import "github.com/safedelivr/safedelivr/models"

// history is equal for recipients whose next step is the same. It is a hash, made
// by hand because a chunk asks for it a thousand times.
func history(v *models.View, r int) uint64 {
	h := mixer(14695981039346656037)
	if v.Status(r).Released {
		h.number(1)
	}
	if v.Status(r).Accepted != nil { // Who was let go by hand may have the same tries, and none
		h.number(2)
	}
	v.EachTry(r, func(t *models.Try) {
		h.number(int64(t.Attempt))
		h.number(int64(t.Status))
		h.text(string(t.Verdict))
		h.text(string(t.Class))
		h.text(string(t.Reason))
		switch t.Verdict {
		case models.VerdictAccepted:
			h.number(t.At.Unix() / 60)
		case models.VerdictFailed, models.VerdictDelivered: // the time changes nothing about what follows
		case models.VerdictPending, models.VerdictUnknown, models.VerdictRefused:
			h.number(t.At.UnixMilli())
		}
	})
	return uint64(h)
}

// mixed tells apart recipients that different blocks meet.
func mixed(h uint64, blocks []*models.Block) uint64 {
	m := mixer(h)
	for _, b := range blocks {
		m.text(b.ID)
	}
	return uint64(m)
}

// mixer is FNV-1a.
type mixer uint64

func (m *mixer) byte(b byte) { *m = (*m ^ mixer(b)) * 1099511628211 }

func (m *mixer) number(n int64) {
	for range 8 {
		m.byte(byte(n)) //nolint:gosec // the lowest byte is meant
		n >>= 8
	}
}

func (m *mixer) text(s string) {
	for i := range len(s) {
		m.byte(s[i])
	}
	m.byte(0)
}
