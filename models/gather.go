package models

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

const (
	// slowGather is how long those that ask wait for what is under way; then more
	// begins beside it.
	slowGather = 100 * time.Millisecond
	// gathersAtOnce is how often Do runs at the same time.
	gathersAtOnce = 4
)

// Gather does together what many ask for at the same time: at once when nothing
// is under way, and what comes meanwhile when that is done, when it takes long, or
// when more waits than is done together. Do must be set.
type Gather[In, Out any] struct {
	// Do does it, and answers each in its place, or fails for all.
	Do func(asked []In) ([]Out, error)
	// Cut says how many, from the front of the line, are done together, one at
	// least. nil: all.
	Cut func(line []In) int
	// Rest is a pause after n were done, so that those who were answered may come
	// along again. nil: none.
	Rest func(n int) time.Duration

	mu    sync.Mutex
	line  []In
	who   []chan<- answered[Out] // of each in line
	runs  int
	began time.Time // of the newest Do
}

type answered[Out any] struct {
	out Out
	err error
}

// Ask has it done and returns the answer. Errors, when ctx ends before: ErrUnavailable
// if nothing was begun, and else ErrOutcomeUnknown.
func (g *Gather[In, Out]) Ask(ctx context.Context, in In) (out Out, err error) {
	answer := make(chan answered[Out], 1)
	g.mu.Lock()
	g.line, g.who = append(g.line, in), append(g.who, answer)
	if g.runs == 0 || g.runs < gathersAtOnce && (time.Since(g.began) > slowGather || g.cut() < len(g.line)) {
		g.runs++
		go g.run()
	}
	g.mu.Unlock()
	select {
	case a := <-answer:
		return a.out, a.err
	case <-ctx.Done():
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if i := slices.Index(g.who, chan<- answered[Out](answer)); i >= 0 {
		g.line, g.who = slices.Delete(g.line, i, i+1), slices.Delete(g.who, i, i+1)
		return out, fmt.Errorf("%w: %w", ErrUnavailable, ctx.Err())
	}
	return out, fmt.Errorf("%w: %w", ErrOutcomeUnknown, ctx.Err())
}

func (g *Gather[In, Out]) cut() int {
	if g.Cut == nil {
		return len(g.line)
	}
	return g.Cut(g.line)
}

// run works until nobody waits.
func (g *Gather[In, Out]) run() {
	for {
		asked, who := g.next()
		if len(asked) == 0 {
			return
		}
		outs, err := g.Do(asked)
		for i, w := range who {
			if err != nil {
				w <- answered[Out]{err: err}
			} else {
				w <- answered[Out]{out: outs[i]}
			}
		}
		if g.Rest != nil {
			time.Sleep(g.Rest(len(asked)))
		}
	}
}

// next takes what is done together; nothing: who asks is done.
func (g *Gather[In, Out]) next() ([]In, []chan<- answered[Out]) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.line) == 0 {
		g.runs--
		g.line, g.who = nil, nil // they may be large
		return nil, nil
	}
	g.began = time.Now()
	n := g.cut()
	asked, who := slices.Clone(g.line[:n]), slices.Clone(g.who[:n])
	g.line, g.who = slices.Delete(g.line, 0, n), slices.Delete(g.who, 0, n)
	return asked, who
}
