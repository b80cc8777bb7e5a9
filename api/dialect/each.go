package dialect

import (
	"cmp"
	"fmt"
	"runtime/debug"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/safedelivr/safedelivr/service"
)

// Helpers store mails of requests that have several, beside the goroutines of these requests.
const (
	maxHelpers = 16 // of the process, so that no user takes the store for such requests
	ofRequest  = 7  // of these for one request

	// A request with more bytes of JSON, or with large files, has none: its mails are in memory and on disk one by one.
	helpedBytes = 1 << 20
)

var helpers = make(chan struct{}, maxHelpers)

// Each has the mails of a request accepted: the first one, and then the others, some at the same time. accept gets the
// number of a mail and its repeat. If none is to be accepted unless all can be, Each first calls accept without repeats.
// It returns the error of the first mail that has one. After an error it begins no other mail, and a repeat of the
// request does the rest. hash is that of the request, and hashes are those of its mails.
func (r *Request) Each(
	hash string, hashes []string, orNone bool, accept func(i int, repeat *service.Repeat) error,
) error {
	return r.Once(hash, func(repeat service.Repeat) error {
		n := len(hashes)
		parts := make([]service.Repeat, n)
		for i := range parts {
			parts[i] = part(repeat, i, hashes[i])
		}
		if orNone && n > 1 {
			before, err := r.checks().Accepted(r.Context(), parts[0])
			for i := 0; i < n && err == nil && !before; i++ {
				err = accept(i, nil)
			}
			if err != nil {
				return err
			}
		}
		most := ofRequest
		if r.bytes > helpedBytes || r.spool != nil {
			most = 0
		}
		return each(n, most, func(i int) error { return accept(i, &parts[i]) })
	})
}

// each calls f with the numbers below n: with 0, and then with the others, in this goroutine and in most helpers at
// most. It returns the error of the least number that has one. If f panics, each does.
func each(n, most int, f func(i int) error) error {
	errs := make([]error, n)
	var failed atomic.Bool
	var crash atomic.Pointer[string]
	call := func(i int) {
		defer func() {
			if v := recover(); v != nil {
				crash.Store(new(fmt.Sprintf("%v\n\n%s", v, debug.Stack())))
				failed.Store(true)
			}
		}()
		if errs[i] = f(i); errs[i] != nil {
			failed.Store(true)
		}
	}
	call(0)
	var next atomic.Int64 // the last number that was begun
	work := func() {
		for i := next.Add(1); i < int64(n) && !failed.Load(); i = next.Add(1) {
			call(int(i))
		}
	}
	var all sync.WaitGroup
	for range min(most, n-2) {
		select {
		case helpers <- struct{}{}:
			all.Go(func() {
				defer func() { <-helpers }()
				work()
			})
		default: // all help others
		}
	}
	work()
	all.Wait()
	if text := crash.Load(); text != nil {
		panic(*text)
	}
	return cmp.Or(errs...)
}

const maxKey = 255 // bytes of an idempotency key

// part returns the repeat of mail n of a request.
func part(repeat service.Repeat, n int, hash string) service.Repeat {
	repeat.Hash = hash
	if repeat.Key += "/" + strconv.Itoa(n); len(repeat.Key) > maxKey {
		repeat.Key = Digest(repeat.Key)
	}
	return repeat
}
