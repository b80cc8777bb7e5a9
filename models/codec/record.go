package codec

import "github.com/safedelivr/safedelivr/models"

func entryFields(f *fields, e *models.Entry) {
	number(f, &e.Number)
	f.bytes(e.Token[:])
	word(f, &e.Kind)
	f.time(&e.At)
	f.set(&e.Recipients)
	word(f, &e.Provider)
	word(f, &e.Worker)
	starts, ends, repeats, account := !e.StartBy.IsZero(), !e.CallEnds.IsZero(), e.Repeats != 0, e.Account != ""
	// A process without the last flag cannot read the batches of entries that have it.
	f.flags(&starts, &ends, &e.MayDouble, &e.Together, &repeats, &account)
	if starts {
		f.time(&e.StartBy)
	}
	if ends {
		f.time(&e.CallEnds)
	}
	if repeats {
		number(f, &e.Repeats)
	}
	if account {
		word(f, &e.Account)
	}
	number(f, &e.Retry)
	number(f, &e.Split)
	text(f, &e.Because)
	word(f, &e.Reason)
	text(f, &e.Detail)
	number(f, &e.Command)
}

func factFields(f *fields, v *models.Fact) {
	answered, floor := v.Outcome != nil, v.VersionFloor != 0
	if f.flags(&answered, &floor); floor {
		number(f, &v.VersionFloor)
	}
	if answered {
		if f.reads {
			v.Outcome = new(models.Outcome)
		}
		o := v.Outcome
		number(f, &o.Attempt)
		f.time(&o.At)
		number(f, &o.Took)
		list(f, &o.Parts, partFields)
	}
	list(f, &v.Events, eventFields)
}

func partFields(f *fields, p *models.Part) {
	word(f, &p.Class)
	f.set(&p.Recipients)
	word(f, &p.Reason)
	number(f, &p.Status)
	word(f, &p.Text)
	text(f, &p.MessageID)
	later, fewer := !p.RetryAt.IsZero(), p.Fewer != 0
	if f.flags(&p.Final, &later, &fewer); later {
		f.time(&p.RetryAt)
	}
	if fewer {
		number(f, &p.Fewer)
	}
}

func eventFields(f *fields, e *models.Event) {
	text(f, &e.ID)
	number(f, &e.Recipient)
	number(f, &e.Attempt)
	word(f, &e.Provider)
	word(f, &e.Kind)
	f.time(&e.At)
	word(f, &e.Reason)
	word(f, &e.BounceClass)
	number(f, &e.Status)
	word(f, &e.Enhanced)
	word(f, &e.Text)
	f.flags(&e.Async, &e.Guess)
	number(f, &e.ParseRevision)
}
