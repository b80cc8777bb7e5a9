package intake

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/safedelivr/safedelivr/models"
)

// maxEnvelope is the maximum number of recipients of an envelope.
const maxEnvelope = 50

// carbon is an address that gets the mail to the first one in to.
type carbon struct {
	role    models.Role
	address models.Address
}

// gather takes the recipients behind the first one out of a batch that is one mail to all. It reports mistakes in cc and
// bcc, and in what such a mail cannot have.
func (in *Intake) gather() error {
	b, m := &in.Batch, &in.Mistakes
	tooMany := func(field string) {
		m.Wrong(field, "too_many", "A message may have at most %d addresses in to, cc and bcc together.", maxEnvelope)
	}
	in.together = b.Together && in.index > 1 || len(b.CC)+len(b.BCC) > 0
	var first *models.Recipient
	same := func(a, b map[string]string) bool { return len(b) == 0 || maps.Equal(a, b) }
	move := func(at *place, r *models.Recipient) error {
		switch {
		case first == nil:
			first = r
			return nil
		case same(first.Vars, r.Vars) && same(first.Metadata, r.Metadata) && len(r.Headers) == 0:
			in.copies = append(in.copies, carbon{models.To, models.Address{Email: r.Email, Name: r.Name}})
			return errMoved
		}
		in.Wrong(pointerTo(at.index), "conflict",
			"All addresses of one message have the values of the first in to. The others have none of their own.")
		return nil
	}
	if b.Together && in.index > maxEnvelope {
		tooMany("/to")
	} else if b.Together {
		if err := in.respool(move); err != nil {
			return err
		}
	}
	for _, list := range []struct {
		role  models.Role
		texts []string
	}{{models.CC, b.CC}, {models.BCC, b.BCC}} {
		for i, text := range list.texts {
			if len(in.copies) == maxEnvelope-1 {
				tooMany("/" + string(list.role))
				break
			}
			if at := "/" + string(list.role) + "/" + strconv.Itoa(i); !m.noted(at, text) {
				in.copies = append(in.copies, carbon{list.role, m.address(at, text)})
			}
		}
	}
	if !in.together {
		return nil
	}
	if in.index > 1 && !b.Together {
		m.Wrong("/"+string(map[bool]models.Role{true: models.CC, false: models.BCC}[len(b.CC) > 0]), "conflict",
			"With cc or bcc, several recipients in to need together: true, because all get one message.")
	}
	for i := range in.own.list {
		o := &in.own.list[i]
		m.Mistakes.Wrong(pointerTo(o.first)+"/"+o.names()[0], "conflict",
			"All addresses of one message have the times of the batch.")
	}
	if b.AllowDuplicates {
		m.Wrong("/allow_duplicates", "conflict", "One message goes to each of its addresses once.")
	}
	return nil
}

// addCopies adds the other recipients of one mail to a batch without mistakes, behind the first one in to. An
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
		switch c.role {
		case models.To:
			e.To = max(e.To, 1) + 1
		case models.CC:
			e.CC++
		case models.BCC:
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
