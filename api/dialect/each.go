package dialect

import (
	"cmp"
	"fmt"
	"runtime/debug"
	"strconv"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/safedelivr/safedelivr/service"
)

// acceptAtOnce is how many mails of a request are accepted at the same time.
const acceptAtOnce = 8

// Each has the n mails of a request accepted: the first one, and then the others, some at the same time. accept gets the
// number of a mail and its repeat. If none is to be accepted unless all can be, Each first calls accept without repeats.
// It returns the error of the first mail that has one. After an error it begins no other mail, and a repeat of the
// request does the rest. hash is the same for equal requests.
func (r *Request) Each(hash string, n int, orNone bool, accept func(i int, repeat *service.Repeat) error) error {
	return r.Once(hash, func(repeat service.Repeat) error {
		if orNone && n > 1 {
			begun, err := r.checks().Begun(r.Context(), part(repeat, 0))
			for i := 0; i < n && err == nil && !begun; i++ {
				err = accept(i, nil)
			}
			if err != nil {
				return err
			}
		}
		return each(n, func(i int) error {
			repeat := part(repeat, i)
			return accept(i, &repeat)
		})
	})
}

// each calls f with the numbers below n: with 0, and then with the others, some at the same time. It returns the error
// of the least number that has one. A panic of f is its error.
func each(n int, f func(i int) error) error {
	errs := make([]error, n)
	var failed atomic.Bool
	call := func(i int) error {
		defer func() {
			if v := recover(); v != nil {
				errs[i] = fmt.Errorf("panic: %v\n\n%s", v, debug.Stack())
			}
			if errs[i] != nil {
				failed.Store(true)
			}
		}()
		errs[i] = f(i)
		return nil
	}
	_ = call(0) // its error is in errs
	var g errgroup.Group
	g.SetLimit(acceptAtOnce)
	for i := 1; i < n && !failed.Load(); i++ {
		g.Go(func() error { return call(i) })
	}
	_ = g.Wait()
	return cmp.Or(errs...)
}

const maxKey = 255 // bytes of an idempotency key

// part returns the repeat of mail n of a request.
func part(repeat service.Repeat, n int) service.Repeat {
	if repeat.Key += "/" + strconv.Itoa(n); len(repeat.Key) > maxKey {
		repeat.Key = Digest(repeat.Key)
	}
	return repeat
}
