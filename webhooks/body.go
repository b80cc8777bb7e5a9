package webhooks

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"time"

	"github.com/gin-gonic/gin"
	"golang.org/x/sync/semaphore"

	"github.com/safedelivr/safedelivr/internal/perclient"
	"github.com/safedelivr/safedelivr/models"
)

// A post is verified only after all of it was read. So the posts that are not answered yet have
// two budgets of bytes: one for the first bytes of each, and one for all others. Strangers who send large posts
// therefore do not keep out small ones. Each address has a quarter of both, and takes bytes as they arrive.
const (
	firstBytes    = 16 << 10 // of a post
	firstBudget   = 16 << 20
	otherBudget   = 48 << 20
	addressBudget = (firstBudget + otherBudget) / 4
	addressPosts  = 256             // that one address may have open
	startBytes    = 512             // that a post has before any of it arrived
	firstTime     = 5 * time.Second // until a post begins; from its first byte on it has readTime
)

// budget has the unused parts of both budgets, and the part that each address holds.
type budget struct {
	first, other *semaphore.Weighted
	bytes, posts *perclient.Counts
}

func newBudget() budget {
	return budget{semaphore.NewWeighted(firstBudget), semaphore.NewWeighted(otherBudget), &perclient.Counts{},
		&perclient.Counts{}}
}

// grow takes the bytes that a post of an address needs to grow from one size to another, if they are left.
func (b budget) grow(address netip.Addr, from, to int64) bool {
	if from == 0 && !b.posts.Add(address, 1, addressPosts) {
		return false
	}
	if b.take(address, from, to) {
		return true
	}
	if from == 0 {
		b.posts.Remove(address, 1)
	}
	return false
}

// take takes bytes of the address and of both budgets, or of none.
func (b budget) take(address netip.Addr, from, to int64) bool {
	n, first := to-from, min(to, firstBytes)-min(from, firstBytes)
	if !b.bytes.Add(address, n, addressBudget) {
		return false
	}
	if b.first.TryAcquire(first) {
		if b.other.TryAcquire(n - first) {
			return true
		}
		b.first.Release(first)
	}
	b.bytes.Remove(address, n)
	return false
}

// release gives back the bytes of a post of an address.
func (b budget) release(address netip.Addr, size int64) {
	if size == 0 {
		return
	}
	b.first.Release(min(size, firstBytes))
	b.other.Release(max(size-firstBytes, 0))
	b.bytes.Remove(address, size)
	b.posts.Remove(address, 1)
}

var (
	errBusy     = errors.New("posts that are not answered yet hold all memory that is set aside for them")
	errTooLarge = errors.New("the post is too large")
)

// read returns the body of a post of at most limit bytes. The body counts against the budgets
// until release is called, which may be called again. Errors: errTooLarge, errBusy, others if the post ended too early.
func (s *Server) read(c *gin.Context, limit int64) (body []byte, release func(), err error) {
	held := int64(0)
	address := perclient.Address(c.Request)
	release = func() {
		s.budget.release(address, held)
		held = 0
	}
	deadline := time.Now().Add(readTime)
	setReadDeadline(c, time.Now().Add(firstTime))
	length := c.Request.ContentLength
	if length > limit {
		return nil, release, errTooLarge
	}
	most := limit + 1 // a byte more shows that the post is too large, or where it ends
	if length >= 0 {
		most = length + 1
	}
	for {
		if int64(len(body)) == held {
			size := min(max(2*held, startBytes), most)
			if !s.budget.grow(address, held, size) {
				return nil, release, errBusy
			}
			held = size
			body = append(make([]byte, 0, size), body...)
		}
		n, err := c.Request.Body.Read(body[len(body):cap(body)])
		if n > 0 && len(body) == 0 {
			setReadDeadline(c, deadline)
		}
		body = body[:len(body)+n]
		switch {
		case int64(len(body)) > limit:
			return nil, release, errTooLarge
		case errors.Is(err, io.EOF):
			return body, release, nil
		case err != nil:
			return nil, release, err
		case time.Now().After(deadline):
			return nil, release, context.DeadlineExceeded
		}
	}
}

// unreadable refuses a post that could not be read.
func (s *Server) unreadable(c *gin.Context, provider string, err error) {
	switch {
	case errors.Is(err, errTooLarge):
		s.refuse(c, provider, &models.WebhookError{
			Status: http.StatusRequestEntityTooLarge,
			Code:   "too_large",
			Detail: fmt.Sprintf("the post is larger than %d bytes", s.providers[provider].MaxWebhook()),
		})
	case errors.Is(err, errBusy):
		s.providers[provider].lost.note(time.Now().UTC())
		c.Header("Retry-After", "10")
		s.refuse(c, provider, &models.WebhookError{
			Status: http.StatusServiceUnavailable,
			Code:   "busy",
			Detail: err.Error(),
		})
	default:
		s.refuse(c, provider, &models.WebhookError{
			Status: http.StatusBadRequest,
			Code:   "cut_off",
			Detail: "the post ended too early",
		})
	}
}

// closeConnection closes the connection once the request is answered. It keeps the server from
// reading the rest of the body.
func closeConnection(c *gin.Context) {
	c.Header("Connection", "close")
	setReadDeadline(c, time.Now())
}

// setReadDeadline sets the deadline for reading. A recorder in a test has none.
func setReadDeadline(c *gin.Context, t time.Time) {
	_ = http.NewResponseController(c.Writer).SetReadDeadline(t)
}
