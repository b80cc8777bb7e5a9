package dispatch

import (
	"context"
	"slices"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/suppression"
)

// giveUpRepeat notes in the ledger that a call is not repeated any more, if one of its recipients was erased or
// suppressed meanwhile, or the provider has another account, which does not know the key. It reports whether that is so.
// Without the recipient the call has other bytes, and with it the mail may go to somebody who does not want it.
func (u *unwanted) giveUpRepeat(ctx context.Context, c *Chunk, j *job) (given bool, err error) {
	entry := models.Entry{
		Kind:       models.Repeat,
		Repeats:    j.Step.Repeats,
		Provider:   j.Provider.Name,
		Recipients: j.Who,
		At:         time.Now().UTC(),
	}
	numbers := slices.Collect(j.Who.All())
	address := func(i int) string { return c.Recipients[numbers[i]-1].Email }
	j.found, err = u.suppressions.Suppressed(ctx, suppression.MailOf(c.Batch), len(numbers), address, rulesMaxAge)
	switch {
	case err != nil:
		return false, err
	case c.View.Entry(j.Step.Repeats).Account != j.Provider.Account():
		entry.Reason = models.ProviderAccount
	case !models.ErasedRecipients(c.Recipients).And(j.Who).Empty(),
		c.Batch.Envelope != nil && c.Recipients[0].Erased():
		entry.Reason = models.Erased
	case len(j.found.Suppressed) > 0:
		entry.Reason = models.Suppressed
	default:
		return false, nil
	}
	_, err = u.chunks.appendEntry(ctx, c, entry)
	return true, err
}

// settled returns the parts of the answer to a repeat as they are true of the attempt. If no call was made, or if
// something else than the provider's judgement of the mail may have refused it, that says nothing of the calls before.
func settled(parts []models.Part) []models.Part {
	out := slices.Clone(parts)
	for i := range out {
		p := &out[i]
		judged := p.Class == models.RejectedRecipient || p.Class == models.RejectedRequest || p.Class == models.Split
		if p.Class.Refused() && (!judged || p.Status == 0) { // without a status, this process has refused it
			p.Class, p.Reason, p.Fewer = models.Unknown, models.OutcomeUnknown, 0
		}
	}
	return out
}
