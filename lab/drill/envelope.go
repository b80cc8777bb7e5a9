package drill

import (
	"context"
	"fmt"
	"strings"

	"github.com/safedelivr/safedelivr/client"
	"github.com/safedelivr/safedelivr/models"
)

// envelopeSize is the number of addresses of one mail to several, inTo those of them in To. It is less than callSize.
const envelopeSize, inTo = 6, 2

// sharing returns the address of recipient n of a mail to several.
func sharing(n int) string { return fmt.Sprintf("copy%d@rehearse.test", n) }

// newEnvelope returns one mail to several addresses.
func (t *traffic) newEnvelope() client.NewBatch {
	b := t.newBatch(1)
	b.Unsubscribe = nil // the addresses would share the link
	b.To[0].Email, b.Together = sharing(1), true
	for n := 2; n <= envelopeSize; n++ {
		if n <= inTo {
			b.To = append(b.To, client.Recipient{Email: sharing(n)})
		} else if n <= envelopeSize/2 {
			b.CC = append(b.CC, sharing(n))
		} else {
			b.BCC = append(b.BCC, sharing(n))
		}
	}
	return b
}

// logOf returns the log that a copy belongs to, by its ID at the simulator: of one mail to several, the log of the
// first address, a slash and the address of the copy.
func logOf(id string) string {
	first, address, several := strings.Cut(id, "/")
	if !several {
		return id
	}
	log, err := models.ParseLogID(first)
	n := 0
	if _, serr := fmt.Sscanf(address, "copy%d@", &n); err != nil || serr != nil {
		return id
	}
	return log.ChunkID().Log(n).String()
}

// leftOutWrongly says why a log may not have failed because the addresses in To did; "" if it may. Why those failed is
// checked with their own logs.
func (v *verdict) leftOutWrongly(ctx context.Context, l *client.Log) (string, error) {
	id, err := models.ParseLogID(l.ID)
	if err != nil || !v.mail.isEnvelope(id.Batch()) {
		return "its mail has one address", err
	}
	for n := 1; n <= inTo; n++ {
		to, err := v.user.client.Log(ctx, id.ChunkID().Log(n).String())
		switch {
		case err != nil:
			return "", err
		case id.Recipient() == n || to.State != client.Failed:
			return "an address in To has not failed", nil
		}
	}
	return "", nil
}
