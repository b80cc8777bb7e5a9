package simulator

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"time"
)

// mgHookRetries are the gaps after which Mailgun repeats a webhook. The older
// documentation has 10, 10, 15, 30 minutes, 1, 2, 4 hours.
var mgHookRetries = []time.Duration{5 * time.Minute, 10 * time.Minute, 15 * time.Minute, time.Hour, 2 * time.Hour, 4 * time.Hour}

const (
	mgToken   = 50  // characters
	mgShuffle = 128 // events that are put out of order together
)

func (g *mailgun) urls(st *stage) []string {
	if st.kind == "" {
		return nil
	}
	return g.a.hookURLs(st.kind)
}

func (g *mailgun) flushAt(ob *outbox, now int64) (at int64, posts int) { return now, ob.waiting }

// collect takes one event: Mailgun posts each by itself.
func (g *mailgun) collect(ob *outbox, _ int64) (post, bool) {
	faults := g.a.s.faults.standing(g.a.name, func(f *fault) bool { return f.Mode == ModeEventsShuffle })
	if len(faults) == 0 {
		return post{segment: ob.takeOne()}, true
	}
	g.mixUp(ob, faults)
	return ob.posts.pop(), true
}

// takeOne takes the next waiting event. The outbox is locked, and has one.
func (ob *outbox) takeOne() segment {
	e := *ob.ready.front()
	s := e.take(1)
	if e.left == 0 {
		ob.ready.pop()
	}
	ob.waiting--
	return s
}

// mixUp moves waiting events to the posts, and in another order if one of the
// faults concerns any of them. It takes them from all emissions alike, so that
// events of one copy change places too.
func (g *mailgun) mixUp(ob *outbox, faults []*fault) {
	var list []post
	for len(list) < mgShuffle && ob.waiting > 0 {
		e := ob.ready.pop()
		list = append(list, post{segment: e.take(1)})
		ob.waiting--
		if e.left > 0 {
			ob.ready.push(e)
		}
	}
	if slices.ContainsFunc(faults, func(f *fault) bool {
		return slices.ContainsFunc(list, func(p post) bool { return p.concerns(f) }) && g.a.s.faults.take(f)
	}) {
		seed := g.a.s.mix(saltShuffle, g.a.salt, list[0].m.serial, uint64(list[0].from))
		rng := rand.New(rand.NewPCG(seed, seed))
		rng.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
		order := make([]happening, len(list))
		for i := range list {
			p := &list[i]
			p.each(func(r record, _ cursor) bool { order[i] = happening{p.m.serial, r.i, p.stage}; return false })
		}
		overtaken(order, func(i int) { list[i].behind = true })
	}
	for _, p := range list {
		ob.posts.push(p)
	}
}

func (g *mailgun) acknowledged(status int) bool { return status == http.StatusOK }

// again repeats by the vendor's schedule. 406 ends it, and delivered is not
// repeated at all (Options.RetryDelivered).
func (g *mailgun) again(p *post, status int, now int64) (at int64, retry bool) {
	if status == http.StatusNotAcceptable || int(p.tries) > len(mgHookRetries) ||
		p.stageOf().event == "delivered" && !g.a.s.opts.RetryDelivered {
		return 0, false
	}
	return now + int64(g.a.s.scaled(mgHookRetries[p.tries-1])), true
}

func (g *mailgun) send(ob *outbox, p *post) (status, sent int) {
	st := p.stageOf()
	urls := g.urls(st)
	if int(p.hook) >= len(urls) {
		return 0, 0
	}
	var copy record
	p.each(func(r record, _ cursor) bool { copy = r; return false })
	if !p.planned {
		p.planned = true
		if g.muted(p, st, copy) {
			p.muted = 1
			return 0, 0
		}
		if p.hook == 0 && !p.repeat {
			for i := 1; i < len(urls); i++ {
				other := post{segment: p.segment, planned: true, hook: uint8(i)}
				ob.enqueue(other, true)
			}
			for _, f := range g.a.s.faults.standing(g.a.name, func(f *fault) bool { return f.Mode == ModeEventsDuplicate }) {
				if p.concerns(f) && g.a.s.faults.take(f) {
					ob.enqueue(post{segment: p.segment, planned: true, repeat: true}, true)
					break
				}
			}
		}
	}
	status = g.a.postJSON(urls[p.hook], g.body(p, copy), http.Header{"User-Agent": {"mailgun/treq-22.10.0"}})
	g.a.disturbed(p, g.disturbance(p))
	return status, 1
}

// disturbance is what faults did to the event of the post.
func (g *mailgun) disturbance(p *post) (d disturbance) {
	if p.repeat {
		d.twice++
	}
	if p.behind {
		d.overtaken++
	}
	if p.m.group(p.group).delay > 0 && !p.repeat {
		d.late++
	}
	return d
}

// muted reports whether the event gets no webhook.
func (g *mailgun) muted(p *post, st *stage, r record) bool {
	if st.quiet {
		return true
	}
	if f := p.m.group(p.group).mute; f != nil && f.events.has(st.event, st.kind) {
		return true
	}
	return slices.ContainsFunc(g.a.s.faults.standing(g.a.name, func(f *fault) bool { return f.Mode == ModeEventsOff && f.Times == 0 }),
		func(f *fault) bool { return f.pattern.match(r.addr) && f.events.has(st.event, st.kind) })
}

// body renders the post with its signature: HMAC-SHA256 over timestamp and
// token. A repeated post carries the same signature block, unless
// Options.ResignRetries is set.
func (g *mailgun) body(p *post, r record) []byte {
	nonce := uint64(p.hook)
	if p.repeat {
		nonce |= 1 << 8
	}
	if now := time.Now().Unix(); p.signed == 0 {
		p.signed = uint32(now)
	} else if g.a.s.opts.ResignRetries {
		p.signed = uint32(now)
		nonce |= uint64(p.tries) << 16
	}
	token := g.a.s.randomHex(mgToken, saltToken, g.a.salt, p.m.serial, uint64(r.i), uint64(p.outcome), uint64(p.stage), nonce)
	return g.sign(p, token, func(b []byte) []byte { return g.eventData(b, p.emission, r) })
}

// sign wraps the event data.
func (g *mailgun) sign(p *post, token string, data func([]byte) []byte) []byte {
	ts := strconv.FormatUint(uint64(p.signed), 10)
	mac := hmac.New(sha256.New, []byte(g.signingKey))
	mac.Write([]byte(ts + token))
	sum := mac.Sum(nil)
	if g.a.forge(p) {
		sum[len(sum)-1] ^= 1
	}
	b := make([]byte, 0, 2048)
	b = append(b, `{"signature":{"timestamp":"`...)
	b = append(b, ts...)
	b = append(b, `","token":"`...)
	b = append(b, token...)
	b = append(b, `","signature":"`...)
	b = hex.AppendEncode(b, sum)
	b = append(b, `"},"event-data":`...)
	return append(data(b), '}')
}
