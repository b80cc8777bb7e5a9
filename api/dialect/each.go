package dialect

import (
	"fmt"
	"runtime/debug"
	"strconv"
	"sync"
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
			begun, err := r.Service.Begun(r.Context(), r.Who, part(repeat, 0))
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
// of the least number that has one. If f panics, each does.
func each(n int, f func(i int) error) error {
	errs, crash := make([]error, n), error(nil)
	var failed atomic.Bool
	var once sync.Once
	call := func(i int) {
		defer func() {
			if v := recover(); v != nil {
				once.Do(func() { crash = fmt.Errorf("%v\n\n%s", v, debug.Stack()) })
				failed.Store(true)
			}
		}()
		if errs[i] = f(i); errs[i] != nil {
			failed.Store(true)
		}
	}
	call(0)
	var g errgroup.Group
	g.SetLimit(acceptAtOnce)
	for i := 1; i < n && !failed.Load(); i++ {
		g.Go(func() error {
			call(i)
			return nil
		})
	}
	_ = g.Wait() // the errors are in errs
	if crash != nil {
		panic(crash)
	}
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

const maxKey = 255 // bytes of an idempotency key

// part returns the repeat of mail n of a request.
func part(repeat service.Repeat, n int) service.Repeat {
	if repeat.Key += "/" + strconv.Itoa(n); len(repeat.Key) > maxKey {
		repeat.Key = Digest(repeat.Key)
	}
	return repeat
}
