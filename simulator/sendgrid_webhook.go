package simulator

import (
	"crypto"
	"crypto/sha256"
	"encoding/base64"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"time"
)

const (
	sgBatchBytes = 768 << 10
	sgEventBytes = 480 // about the size of an event
	sgRetryFor   = 24 * time.Hour
	sgFirstGap   = time.Minute
	sgLongestGap = time.Hour

	sgSignatureHeader = "X-Twilio-Email-Event-Webhook-Signature"
	sgTimestampHeader = "X-Twilio-Email-Event-Webhook-Timestamp"
)

// sgFields are the names of the vendor's own event fields; they win over custom
// args.
var sgFields = func() map[string]bool {
	m := map[string]bool{}
	for _, name := range []string{"email", "timestamp", "event", "smtp-id", "category", "sg_event_id", "sg_message_id", "reason", "status",
		"response", "attempt", "type", "bounce_classification", "ip", "tls", "useragent", "url", "url_offset", "sg_machine_open",
		"sg_content_type", "asm_group_id", "pool", "cert_err", "marketing_campaign_id", "marketing_campaign_name"} {
		m[name] = true
	}
	return m
}()

func (g *sendgrid) reserved(key string) bool { return sgFields[key] }

func (g *sendgrid) urls(*stage) []string { return g.a.hookURLs("") }

// due reports whether the collected events are to be sent now: the timer ran
// out, there are enough of them, or a flush was asked for.
func (g *sendgrid) due(ob *outbox, now int64) bool {
	o := &g.a.s.opts
	return ob.waiting >= o.FlushCount || ob.waiting*sgEventBytes >= sgBatchBytes ||
		(*ob.ready.front()).gen <= ob.force || now >= ob.since+int64(g.a.s.scaled(o.FlushEvery))
}

func (g *sendgrid) flushAt(ob *outbox, now int64) (at int64, posts int) {
	if !g.due(ob, now) {
		return ob.since + int64(g.a.s.scaled(g.a.s.opts.FlushEvery)), 0
	}
	return now, 1 + ob.waiting/g.a.s.opts.FlushCount
}

func (g *sendgrid) collect(ob *outbox, now int64) (post, bool) {
	if !g.due(ob, now) {
		return post{}, false
	}
	var p post
	for room := g.a.s.opts.FlushCount; room > 0 && ob.waiting > 0; {
		e := *ob.ready.front()
		s := e.take(int32(room))
		if e.left == 0 {
			ob.ready.pop()
		}
		room -= int(s.n)
		ob.waiting -= int(s.n)
		if p.emission == nil {
			p.segment = s
			continue
		}
		if p.batch == nil {
			p.batch = &batch{}
		}
		p.batch.more = append(p.batch.more, s)
	}
	if ob.waiting > 0 {
		ob.since = (*ob.ready.front()).due
	}
	return p, true
}

func (g *sendgrid) acknowledged(status int) bool { return status >= 200 && status < 300 }

// again repeats at growing gaps for 24 hours after the event. No status stops
// it.
func (g *sendgrid) again(p *post, _ int, now int64) (at int64, retry bool) {
	gap := sgLongestGap
	if p.tries < 7 {
		gap = min(gap, sgFirstGap<<(p.tries-1))
	}
	at = now + int64(g.a.s.scaled(gap))
	return at, at <= p.due+int64(g.a.s.scaled(sgRetryFor))
}

// plan asks the standing faults about each event of p.
func (g *sendgrid) plan(p *post) {
	p.planned = true
	fs := &g.a.s.faults
	list := fs.standing(g.a.name, func(f *fault) bool {
		return f.Mode == ModeEventsDuplicate || f.Mode == ModeEventsShuffle || f.Mode == ModeEventsOff && f.Times == 0
	})
	if len(list) == 0 {
		return
	}
	if p.batch == nil {
		p.batch = &batch{}
	}
	p.batch.plan = make([]fate, p.events())
	for _, f := range list {
		if f.Mode != ModeEventsOff && !(p.concerns(f) && fs.take(f)) {
			continue
		}
		i := 0
		p.segments(func(s segment) {
			st := s.stageOf()
			s.each(func(r record, _ cursor) bool {
				if f.pattern.match(r.addr) && f.events.has(st.event, st.kind) {
					switch f.Mode {
					case ModeEventsOff:
						p.batch.plan[i] = fateMute
					case ModeEventsDuplicate:
						if p.batch.plan[i] != fateMute {
							p.batch.plan[i] = fateTwice
						}
					case ModeEventsShuffle:
						p.batch.shuffle = fs.s.mix(saltShuffle, g.a.salt, s.m.serial, uint64(s.stage), uint64(r.i)) | 1
					}
				}
				i++
				return true
			})
		})
	}
}

// concerns reports whether any event of p is one that f is about.
func (p *post) concerns(f *fault) (any bool) {
	p.segments(func(s segment) {
		if st := s.stageOf(); any || !f.events.has(st.event, st.kind) {
			return
		}
		s.each(func(r record, _ cursor) bool { any = f.pattern.match(r.addr); return !any })
	})
	return any
}

func (g *sendgrid) send(ob *outbox, p *post) (status, sent int) {
	url := g.a.hookURL()
	if url == "" {
		return 0, 0
	}
	if !p.planned {
		g.plan(p)
	}
	body, sent, d := g.body(ob, p)
	if sent == 0 {
		return 0, 0
	}
	if now := time.Now().Unix(); p.signed == 0 || g.a.s.opts.ResignRetries {
		p.signed = uint32(now)
	}
	ts := strconv.FormatUint(uint64(p.signed), 10)
	hash := sha256.New()
	hash.Write([]byte(ts))
	hash.Write(body)
	// Without a source of randomness the signature follows from the content, so
	// that a repeated post carries the same one.
	signature, err := g.sign.Sign(nil, hash.Sum(nil), crypto.SHA256)
	if err != nil {
		g.a.s.log.Error("simulator: signing events", "account", g.a.name, "err", err)
		return 0, sent
	}
	if g.a.forge(p) {
		signature[len(signature)-1] ^= 1
	}
	status = g.a.postJSON(url, body, http.Header{
		"User-Agent":      {"SendGrid Event API"},
		sgSignatureHeader: {base64.StdEncoding.EncodeToString(signature)},
		sgTimestampHeader: {ts},
	})
	g.a.disturbed(p, d)
	return status, sent
}

// body renders the events of p: a JSON array with CRLF after each element and
// after the end. What exceeds 768 KB becomes a post of its own. It depends on
// nothing that changes from try to try but Options.NewEventIDOnRetry.
func (g *sendgrid) body(ob *outbox, p *post) (body []byte, sent int, d disturbance) {
	body = make([]byte, 1, min(p.events()*sgEventBytes*5/4, sgBatchBytes)+2*sgEventBytes)
	body[0] = '['
	var ends []int
	var order []happening // of what is shuffled
	var plan []fate
	if p.batch != nil {
		plan = p.batch.plan
	}
	muted, at, part := uint32(0), 0, -1 // part: number of the segment
	var rest *post
	p.segments(func(s segment) {
		part++
		if rest != nil {
			return
		}
		pen := g.pen(s.emission, p.tries)
		mute := s.stageOf().quiet
		if f := s.m.group(s.group).mute; f != nil {
			mute = mute || f.events.has(s.stageOf().event, s.stageOf().kind)
		}
		var done int32
		s.each(func(r record, after cursor) bool {
			fate := fateSend
			if plan != nil {
				fate = plan[at]
			}
			at++
			done++
			times := 1
			switch {
			case mute || fate == fateMute:
				muted++
				times = 0
			case fate == fateTwice:
				times = 2
				d.twice++
			}
			if times > 0 && s.m.group(s.group).delay > 0 {
				d.late++
			}
			for ; times > 0; times-- {
				if sent++; sent > 1 {
					body = append(body, ',', '\r', '\n')
				}
				body = pen.event(body, r)
				if p.batch != nil && p.batch.shuffle != 0 {
					ends = append(ends, len(body))
					order = append(order, happening{s.m.serial, r.i, s.stage})
				}
			}
			if len(body) > sgBatchBytes-2*sgEventBytes {
				rest = p.split(part, done, at, after)
				return false
			}
			return true
		})
	})
	if rest != nil {
		ob.enqueue(*rest, false)
	}
	p.muted = muted
	if len(ends) > 1 {
		body = shuffle(body, ends, order, p.batch.shuffle)
		overtaken(order, func(int) { d.overtaken++ })
	}
	return append(body, ']', '\r', '\n'), sent, d
}

// split cuts p after done events of the segment part, which are at events of
// the post, and returns the rest, or nil if there is none.
func (p *post) split(part int, done int32, at int, after cursor) *post {
	var list []segment
	p.segments(func(s segment) { list = append(list, s) })
	tail := list[part].rest(done, after)
	list[part].n = done
	more := append([]segment{tail}, list[part+1:]...)
	if tail.n == 0 {
		more = more[1:]
	}
	if len(more) == 0 {
		return nil
	}
	rest := post{segment: more[0], batch: &batch{more: more[1:]}, planned: true}
	old := p.batch
	p.segment, p.batch = list[0], &batch{more: list[1 : part+1]}
	if old != nil {
		p.batch.shuffle, rest.batch.shuffle = old.shuffle, old.shuffle
		if old.plan != nil {
			p.batch.plan, rest.batch.plan = old.plan[:at], old.plan[at:]
		}
	}
	return &rest
}

// shuffle puts the elements of the array, which end at ends, into another order,
// and what they are along with them.
func shuffle(body []byte, ends []int, what []happening, seed uint64) []byte {
	out := append(make([]byte, 0, cap(body)), '[')
	rng := rand.New(rand.NewPCG(seed, seed))
	was := slices.Clone(what)
	for n, i := range rng.Perm(len(ends)) {
		what[n] = was[i]
		if n > 0 {
			out = append(out, ',', '\r', '\n')
		}
		begin := 1
		if i > 0 {
			begin = ends[i-1] + 3
		}
		out = append(out, body[begin:ends[i]]...)
	}
	return out
}
