package intake

import (
	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/service/problem"
)

// Join adds the recipients of other builders to a batch whose message and options are the same, and so are the
// recipients if they have times or header fields of their own. All of them were checked and have no mistakes. Repeated addresses are dropped, also those of different builders, unless duplicates are
// allowed.
func (b *Builder) Join(batch *models.Batch, others []*Builder) error {
	if len(others) == 0 {
		return nil
	}
	old := b.spool
	b.spool = newSpool(old.dir, b.cfg.Spooling)
	b.spool.all.whole, b.spool.distinct.whole = old.all.whole, old.distinct.whole
	defer old.close()
	number := 0
	add := b.paced(func(at place, r models.Recipient) error {
		if number++; number > b.cfg.MaxRecipients {
			return problem.New(problem.TooLarge, "too_many_recipients",
				"A batch may have at most %d recipients.", b.cfg.MaxRecipients)
		}
		return b.spool.add(place{index: number - 1, times: at.times}, &r)
	})
	err := old.each(add)
	for i := 0; i < len(others) && err == nil; i++ {
		err = others[i].spool.each(add)
	}
	b.keepRepeats()
	b.count(batch)
	return spoolError(err)
}
