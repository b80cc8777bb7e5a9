package intake

import (
	"cmp"
	"iter"
	"slices"
	"strconv"
	"strings"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/problem"
)

// carbon is an address of cc or bcc.
type carbon struct {
	role    models.Role
	at      string // its pointer
	text    string // as the request has it
	address models.Address
}

// setCopies adds the addresses of cc or bcc.
func (b *Builder) setCopies(role models.Role, addresses iter.Seq2[int, string]) {
	for i, text := range addresses {
		if len(b.copies) == models.MaxEnvelope-1 {
			b.Wrong("/"+string(role), "too_many",
				"A message may have at most %d addresses in to, cc and bcc together.", models.MaxEnvelope)
			return
		}
		b.copies = append(b.copies, carbon{role: role, at: "/" + string(role) + "/" + strconv.Itoa(i), text: text})
	}
}

// checkCopies reports mistakes in cc and bcc, and in what a mail to several addresses cannot have.
func (b *Builder) checkCopies() {
	if len(b.copies) == 0 {
		return
	}
	for i := range b.copies {
		c := &b.copies[i]
		c.address = b.parseAddress(c.at, c.text)
	}
	if b.index > 1 {
		b.Wrong("/"+string(b.copies[0].role), "conflict", "A message with cc or bcc has exactly one recipient in to.")
	}
	for i := range b.own.list {
		o := &b.own.list[i]
		b.Wrong("/to/"+strconv.Itoa(o.first)+"/"+o.names()[0], "conflict",
			"All addresses of a message with cc or bcc have the times of the batch.")
	}
	if b.AllowDuplicates {
		b.Wrong("/"+AllowDuplicates, "conflict", "A message with cc or bcc goes to each address once.")
	}
}

// addCopies adds the recipients of cc and bcc to a batch without mistakes, behind the one in to. An
// address that is named several times stays where it is named first: in to, in cc, in bcc.
func (b *Builder) addCopies(batch *models.Batch) error {
	if len(b.copies) == 0 || b.Mistakes.Found() > 0 {
		return nil
	}
	seen := map[string]bool{}
	err := b.each(func(_ int, r models.Recipient) error {
		seen[strings.ToLower(r.Email)] = true
		return nil
	})
	if err != nil {
		return err
	}
	slices.SortStableFunc(b.copies, func(x, y carbon) int { return -cmp.Compare(x.role, y.role) }) // cc before bcc
	var e models.Envelope
	b.spool.all.whole, b.spool.distinct.whole = true, true
	for i := range b.copies {
		c := &b.copies[i]
		email := strings.ToLower(c.address.Email)
		if seen[email] {
			b.merged++
			continue
		}
		seen[email] = true
		if c.role == models.CC {
			e.CC++
		} else {
			e.BCC++
		}
		r := models.Recipient{Email: c.address.Email, Name: c.address.Name}
		if err := b.spool.add(place{index: i + 1}, &r); err != nil {
			return spoolError(err)
		}
	}
	if batch.Envelope = &e; e == (models.Envelope{}) {
		batch.Envelope = nil
	}
	if b.count(batch); batch.Recipients > b.cfg.MaxRecipients {
		return problem.New(problem.TooLarge, "too_many_recipients",
			"A batch may have at most %d recipients.", b.cfg.MaxRecipients)
	}
	return nil
}
