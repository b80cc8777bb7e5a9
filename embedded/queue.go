package embedded

import (
	"container/heap"
	"context"
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
	items   []*delivery
	head    int
	unacked int
	ready   chan struct{} // holds a token while the queue may not be empty
}

func newQueue(q models.Queue) *queue {
	return &queue{Queue: q, binding: q.Binding(), ready: make(chan struct{}, 1)}
}

func (q *queue) len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.items) - q.head
}

func (q *queue) depth() (ready, unacked int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.items) - q.head, q.unacked
}

func (q *queue) push(d *delivery) {
	q.mu.Lock()
	if q.head > 1024 && q.head > len(q.items)/2 {
		q.items = append(q.items[:0:0], q.items[q.head:]...)
		q.head = 0
	}
	q.items = append(q.items, d)
	q.mu.Unlock()
	q.signal()
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
		if q.head < len(q.items) {
			d := q.items[q.head]
			q.items[q.head] = nil
			q.head++
			if q.head == len(q.items) {
				q.items, q.head = q.items[:0], 0
				if cap(q.items) > 4096 {
					q.items = nil
				}
			}
			more := q.head < len(q.items)
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
	q.items, q.head = nil, 0
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
