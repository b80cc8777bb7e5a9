package intake

import (
	"slices"
	"strconv"
	"strings"

	"github.com/safedelivr/safedelivr/models"
)

// maxEnvelope is the maximum number of recipients of an envelope.
const maxEnvelope = 50

// carbon is an address of cc or bcc.
type carbon struct {
	role    models.Role
	address models.Address
}

// checkCopies reports mistakes in cc and bcc, and in what a mail to several addresses cannot have.
func (in *Intake) checkCopies() {
	b, m := &in.Batch, &in.Mistakes
	for _, list := range []struct {
		role  models.Role
		texts []string
	}{{models.CC, b.CC}, {models.BCC, b.BCC}} {
		for i, text := range list.texts {
			if len(in.copies) == maxEnvelope-1 {
				m.Wrong("/"+string(list.role), "too_many",
					"A message may have at most %d addresses in to, cc and bcc together.", maxEnvelope)
				break
			}
			if at := "/" + string(list.role) + "/" + strconv.Itoa(i); !m.noted(at, text) {
				in.copies = append(in.copies, carbon{list.role, m.address(at, text)})
			}
		}
	}
	if len(in.copies) == 0 {
		return
	}
	if in.index > 1 {
		m.Wrong("/"+string(in.copies[0].role), "conflict", "A message with cc or bcc has exactly one recipient in to.")
	}
	for i := range in.own.list {
		o := &in.own.list[i]
		m.Mistakes.Wrong(pointerTo(o.first)+"/"+o.names()[0], "conflict",
			"All addresses of a message with cc or bcc have the times of the batch.")
	}
	if b.AllowDuplicates {
		m.Wrong("/allow_duplicates", "conflict", "A message with cc or bcc goes to each address once.")
	}
}

// addCopies adds the recipients of cc and bcc to a batch without mistakes, behind the one in to. An
// address that is named several times stays where it is named first: in to, in cc, in bcc.
func (in *Intake) addCopies(batch *models.Batch) error {
	if len(in.copies) == 0 || in.Mistakes.Mistakes.Found() > 0 {
		return nil
	}
	var seen []string
	err := in.each(func(_ place, r models.Recipient) error {
		seen = append(seen, strings.ToLower(r.Email))
		return nil
	})
	if err != nil {
		return err
	}
	var e models.Envelope
	in.spool.all.whole, in.spool.distinct.whole = true, true
	for i, c := range in.copies {
		email := strings.ToLower(c.address.Email)
		if slices.Contains(seen, email) {
			in.merged++
			continue
		}
		seen = append(seen, email)
		if c.role == models.CC {
			e.CC++
		} else {
			e.BCC++
		}
		r := models.Recipient{Email: c.address.Email, Name: c.address.Name}
		if err := in.spool.add(place{index: i + 1}, &r); err != nil {
			return spoolError(err)
		}
	}
	if e != (models.Envelope{}) {
		batch.Envelope = &e
	}
	if in.count(batch); batch.Recipients > in.cfg.MaxRecipients {
		return in.tooManyRecipients()
	}
	return nil
}
