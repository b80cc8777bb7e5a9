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

// delivery is a message in a queue, in a delay or with a handler.
type delivery struct {
	m      models.Message
	q      *queue
	panics int       // of its handlers
	at     time.Time // when its delay ends
}

// queue holds deliveries, first in, first out.
type queue struct {
	models.Queue
	binding string

	mu      sync.Mutex
	shapes  []shape        // of the messages so far
	blocks  []*[block]item // waiting items, from head in the first block to tail in the last
	head    int
	tail    int
	unacked int
	serving int           // handlers that take deliveries
	ready   chan struct{} // holds a token while the queue may not be empty
}

// item is a delivery that waits. Millions may wait, so it is small: the fields that
// most messages of a queue have in common are stored once, in a shape.
type item struct {
	id        models.ID
	at        int64 // when it was enqueued, in Unix nanoseconds
	notBefore int64 // in Unix nanoseconds; 0: none
	retry     int32
	shape     uint16
	panics    uint16
}

// shape holds the fields that have few different values in a queue.
type shape struct {
	kind     models.MessageKind
	provider string
	lane     models.Lane
}

// block is how many items are allocated, and released, together.
const block = 512

func newQueue(q models.Queue) *queue {
	return &queue{Queue: q, binding: q.Binding(), ready: make(chan struct{}, 1)}
}

// pack turns a delivery into an item.
func (q *queue) pack(d *delivery) item {
	s := shape{d.m.Kind, d.m.Provider, d.m.Lane}
	n := slices.Index(q.shapes, s)
	if n < 0 { // there are few: one for each provider
		n = len(q.shapes)
		q.shapes = append(q.shapes, s)
	}
	it := item{
		id:     d.m.ID,
		at:     d.m.At.UnixNano(),
		retry:  int32(min(d.m.Retry, math.MaxInt32)), //nolint:gosec // bounded here
		shape:  uint16(n),                            //nolint:gosec // few providers
		panics: uint16(d.panics),                     //nolint:gosec // at most MaxDeliveries
	}
	if !d.m.NotBefore.IsZero() {
		it.notBefore = d.m.NotBefore.UnixNano()
	}
	return it
}

// unpack reverses pack.
func (q *queue) unpack(it *item) *delivery {
	s := q.shapes[it.shape]
	d := &delivery{q: q, panics: int(it.panics), m: models.Message{
		Kind:     s.kind,
		Provider: s.provider,
		ID:       it.id,
		Retry:    int(it.retry),
		Lane:     s.lane,
		At:       time.Unix(0, it.at).UTC(),
	}}
	if it.notBefore != 0 {
		d.m.NotBefore = time.Unix(0, it.notBefore).UTC()
	}
	return d
}

// waiting returns the number of deliveries that wait. q.mu is held.
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
	q.put(d)
	q.mu.Unlock()
	q.signal()
}

// handOver is push if a handler has nothing to do. Otherwise it returns false.
func (q *queue) handOver(d *delivery) bool {
	q.mu.Lock()
	idle := q.waiting()+q.unacked < q.serving
	if idle {
		q.put(d)
	}
	q.mu.Unlock()
	if idle {
		q.signal()
	}
	return idle
}

// put adds a delivery. q.mu is held.
func (q *queue) put(d *delivery) {
	if len(q.blocks) == 0 || q.tail == block {
		q.blocks = append(q.blocks, new([block]item))
		q.tail = 0
	}
	q.blocks[len(q.blocks)-1][q.tail] = q.pack(d)
	q.tail++
}

// serve counts n more handlers that take deliveries.
func (q *queue) serve(n int) {
	q.mu.Lock()
	q.serving += n
	q.mu.Unlock()
}

// first removes and returns the first delivery, or nil. q.mu is held.
func (q *queue) first() *delivery {
	if q.waiting() == 0 {
		return nil
	}
	d := q.unpack(&q.blocks[0][q.head])
	q.head++
	switch {
	case q.waiting() == 0 && len(q.blocks) == 1:
		q.head, q.tail = 0, 0 // the block is used again
	case q.head == block:
		q.blocks[0] = nil
		q.blocks, q.head = q.blocks[1:], 0
	}
	return d
}

// all removes and returns all deliveries that wait.
func (q *queue) all() (out []*delivery) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for d := q.first(); d != nil; d = q.first() {
		out = append(out, d)
	}
	return out
}

// signal puts the token into ready.
func (q *queue) signal() {
	select {
	case q.ready <- struct{}{}:
	default:
	}
}

// pop waits for a delivery and returns it, or nil when ctx ends. A worker passes the
// token on while more deliveries wait.
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

// ended counts the end of a handler.
func (q *queue) ended() {
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
	d := &delays{
		due:  due,
		wake: make(chan struct{}, 1),
		stop: make(chan struct{}),
		done: make(chan struct{}),
	}
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

func (d *delays) len() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.heap)
}

// run calls due for each delivery whose delay has ended, until close is called.
func (d *delays) run() {
	defer close(d.done)
	t := time.NewTimer(time.Hour)
	defer t.Stop()
	for {
		now := time.Now()
		var ready []*delivery
		d.mu.Lock()
		for len(d.heap) > 0 && !d.heap[0].at.After(now) {
			x, _ := heap.Pop(&d.heap).(*delivery) // the heap holds nothing else
			ready = append(ready, x)
		}
		wait := time.Hour
		if len(d.heap) > 0 {
			wait = d.heap[0].at.Sub(now)
		}
		d.mu.Unlock()
		for _, x := range ready {
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

// delayHeap orders deliveries by the end of their delay.
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
