package codec

import (
	"encoding/binary"
	"fmt"

	"github.com/safedelivr/safedelivr/models"
)

// EncodeAgendaEntry returns the stored form of e without Due, Kind and ID: chunks, round, a byte of flags, the user.
func EncodeAgendaEntry(e *models.AgendaEntry) []byte {
	b := binary.AppendVarint(make([]byte, 0, 32), int64(e.Chunks))
	b = binary.AppendVarint(b, int64(e.Round))
	flags := byte(0)
	if e.Missed {
		flags |= flagMissed
	}
	if e.Unsent {
		flags |= flagUnsent
	}
	switch e.Lane {
	case models.Urgent:
		flags |= flagUrgent
	case models.Bulk:
		flags |= flagBulk
	}
	return append(append(b, flags), e.User...)
}

const (
	flagMissed = 1 << iota
	flagUrgent
	flagBulk
	flagUnsent
)

// DecodeAgendaEntry reverses EncodeAgendaEntry into e. Errors: models.ErrInvalid, models.ErrNewer.
func DecodeAgendaEntry(b []byte, e *models.AgendaEntry) error {
	chunks, n := binary.Varint(b)
	round, m := int64(0), 0
	if n > 0 {
		round, m = binary.Varint(b[n:])
	}
	if n <= 0 || m <= 0 || len(b) == n+m {
		return fmt.Errorf("%w: an agenda entry is cut off", models.ErrInvalid)
	}
	flags, user := b[n+m], b[n+m+1:]
	if flags&^(flagMissed|flagUrgent|flagBulk|flagUnsent) != 0 {
		return fmt.Errorf("%w: agenda entry", models.ErrNewer)
	}
	e.Chunks, e.Round, e.User = int(chunks), int(round), string(user)
	e.Missed, e.Unsent = flags&flagMissed != 0, flags&flagUnsent != 0
	switch {
	case flags&flagUrgent != 0:
		e.Lane = models.Urgent
	case flags&flagBulk != 0:
		e.Lane = models.Bulk
	}
	return nil
}
