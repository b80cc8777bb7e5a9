package simulator

// A queue is first in, first out. It grows by pieces, so that a million waiting
// posts cost no more than they are, and gives back what it has handed out.
type queue[T any] struct {
	pieces [][]T
	head   int // within the first piece
	size   int
}

const (
	smallPiece = 16
	largePiece = 1024
)

func (q *queue[T]) len() int { return q.size }

// front returns the oldest element; there must be one.
func (q *queue[T]) front() *T { return &q.pieces[0][q.head] }

func (q *queue[T]) push(x T) {
	last := len(q.pieces) - 1
	if last < 0 || len(q.pieces[last]) == cap(q.pieces[last]) {
		q.pieces = append(q.pieces, make([]T, 0, max(smallPiece, min(q.size, largePiece))))
		last++
	}
	q.pieces[last] = append(q.pieces[last], x)
	q.size++
}

// pop removes the oldest element; there must be one.
func (q *queue[T]) pop() T {
	x := *q.front()
	var zero T
	*q.front() = zero // it may hold pointers
	q.head++
	if q.size--; q.head == len(q.pieces[0]) {
		if q.head = 0; len(q.pieces) == 1 {
			q.pieces[0] = q.pieces[0][:0]
		} else {
			q.pieces[0] = nil
			q.pieces = q.pieces[1:]
		}
	}
	return x
}
