package inproc

import (
	"container/heap"
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// delivery is a message on its way.
type delivery struct {
	m    models.Message
	q    *queue
	died int // handlers that died over it
	at   time.Time
}

// queue is first in, first out.
type queue struct {
	models.Queue
	binding string

	mu      sync.Mutex
	shapes  []shape        // of the messages that came
	blocks  []*[block]item // what waits, from head in the first to tail in the last
	head    int
	tail    int
	unacked int
	ready   chan struct{} // holds a token while the queue may not be empty
}

// item is a delivery while it waits. Millions may wait, so it is small: the
// words that most messages of a queue have in common are kept once.
type item struct {
	id        models.ID
	at        int64 // when it came, Unix nanoseconds
	notBefore int64 // the same; 0: none
	retry     int32
	shape     uint16
	died      uint16
}

// shape is what the messages of a queue differ in little.
type shape struct {
	kind     models.MessageKind
	provider string
	lane     models.Lane
}

// block is how many items are kept together, and let go of together.
const block = 512

func newQueue(q models.Queue) *queue {
	return &queue{Queue: q, binding: q.Binding(), ready: make(chan struct{}, 1)}
}

// shrink makes an item of a delivery.
func (q *queue) shrink(d *delivery) item {
	s := shape{d.m.Kind, d.m.Provider, d.m.Lane}
	n := slices.Index(q.shapes, s)
	if n < 0 { // as many as there are providers
		n = len(q.shapes)
		q.shapes = append(q.shapes, s)
	}
	it := item{id: d.m.ID, at: d.m.At.UnixNano(), retry: int32(min(d.m.Retry, math.MaxInt32)), shape: uint16(n), died: uint16(d.died)} //nolint:gosec // few providers, MaxDeliveries
	if !d.m.NotBefore.IsZero() {
		it.notBefore = d.m.NotBefore.UnixNano()
	}
	return it
}

// unfold reverses shrink.
func (q *queue) unfold(it *item) *delivery {
	s := q.shapes[it.shape]
	d := &delivery{q: q, died: int(it.died), m: models.Message{Kind: s.kind, Provider: s.provider, ID: it.id, Retry: int(it.retry), Lane: s.lane,
		At: time.Unix(0, it.at).UTC()}}
	if it.notBefore != 0 {
		d.m.NotBefore = time.Unix(0, it.notBefore).UTC()
	}
	return d
}

func (q *queue) waiting() int {
	if len(q.blocks) == 0 {
		return 0
	}
	return (len(q.blocks)-1)*block + q.tail - q.head
}

func (q *queue) len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.waiting()
}

func (q *queue) depth() (ready, unacked int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.waiting(), q.unacked
}

func (q *queue) push(d *delivery) {
	q.mu.Lock()
	if len(q.blocks) == 0 || q.tail == block {
		q.blocks = append(q.blocks, new([block]item))
		q.tail = 0
	}
	q.blocks[len(q.blocks)-1][q.tail] = q.shrink(d)
	q.tail++
	q.mu.Unlock()
	q.signal()
}

// first takes the first delivery; nil when nothing waits.
func (q *queue) first() *delivery {
	if q.waiting() == 0 {
		return nil
	}
	d := q.unfold(&q.blocks[0][q.head])
	q.head++
	switch {
	case q.waiting() == 0 && len(q.blocks) == 1:
		q.head, q.tail = 0, 0 // used again
	case q.head == block:
		q.blocks[0] = nil
		q.blocks, q.head = q.blocks[1:], 0
	}
	return d
}

func (q *queue) signal() {
	select {
	case q.ready <- struct{}{}:
	default:
	}
}

// pop waits for a delivery; nil when ctx ends. A worker that takes one passes
// the token on while there is more.
func (q *queue) pop(ctx context.Context) *delivery {
	for {
		if ctx.Err() != nil {
			q.signal() // the token may have been taken: another worker needs it
			return nil
		}
		q.mu.Lock()
		if d := q.first(); d != nil {
			more := q.waiting() > 0
			q.unacked++
			q.mu.Unlock()
			if more {
				q.signal()
			}
			return d
		}
		q.mu.Unlock()
		select {
		case <-q.ready:
		case <-ctx.Done():
		}
	}
}

func (q *queue) settled() {
	q.mu.Lock()
	q.unacked--
	q.mu.Unlock()
}

func (q *queue) clear() {
	q.mu.Lock()
	q.blocks, q.head, q.tail = nil, 0, 0
	q.mu.Unlock()
}

// delays holds deliveries until they are due.
type delays struct {
	due  func(*delivery)
	mu   sync.Mutex
	heap delayHeap
	wake chan struct{}
	stop chan struct{}
	done chan struct{}
}

func newDelays(due func(*delivery)) *delays {
	d := &delays{due: due, wake: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{})}
	go d.run()
	return d
}

func (d *delays) add(x *delivery, at time.Time) {
	x.at = at
	d.mu.Lock()
	heap.Push(&d.heap, x)
	first := d.heap[0] == x
	d.mu.Unlock()
	if first {
		select {
		case d.wake <- struct{}{}:
		default:
		}
	}
}

func (d *delays) run() {
	defer close(d.done)
	t := time.NewTimer(time.Hour)
	defer t.Stop()
	for {
		now := time.Now()
		var ripe []*delivery
		d.mu.Lock()
		for len(d.heap) > 0 && !d.heap[0].at.After(now) {
			x, _ := heap.Pop(&d.heap).(*delivery) // it holds nothing else
			ripe = append(ripe, x)
		}
		wait := time.Hour
		if len(d.heap) > 0 {
			wait = d.heap[0].at.Sub(now)
		}
		d.mu.Unlock()
		for _, x := range ripe {
			d.due(x)
		}
		t.Reset(wait)
		select {
		case <-t.C:
		case <-d.wake:
		case <-d.stop:
			return
		}
	}
}

func (d *delays) clear() {
	d.mu.Lock()
	d.heap = nil
	d.mu.Unlock()
}

func (d *delays) close() {
	close(d.stop)
	<-d.done
}

type delayHeap []*delivery

func (h delayHeap) Len() int           { return len(h) }
func (h delayHeap) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h delayHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *delayHeap) Push(x any)        { d, _ := x.(*delivery); *h = append(*h, d) }
func (h *delayHeap) Pop() any {
	old := *h
	x := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return x
}
