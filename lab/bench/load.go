package main

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"
)

// writeBatch writes the JSON of a batch of n recipients, each with a name and two
// variables.
func writeBatch(w io.Writer, first, n int, fields string) error {
	b := bufio.NewWriter(w)
	fmt.Fprintf(
		b,
		`{"from":"Shop <shop@bench.test>","subject":"Your order {{order}}",`+
			`"text":"Dear {{first}}, order {{order}} is on its way.",`+
			`"html":"<p>Dear <b>{{first}}</b>, order {{order}} is on its way.</p>"%s,"to":[`,
		fields,
	)
	for i := first; i < first+n; i++ {
		if i > first {
			_ = b.WriteByte(',')
		}
		fmt.Fprintf(b, `{"email":"user%d@bench.test","name":"Person %d","vars":{"first":"P%d","order":"%08d"}}`, i, i, i, i)
	}
	_, _ = b.WriteString("]}")
	return b.Flush()
}

func batchText(first, n int, fields string) string {
	var s strings.Builder
	_ = writeBatch(&s, first, n, fields) // a Builder never fails
	return s.String()
}

// batchStream streams such a batch without holding it in memory.
func batchStream(n int, fields string) io.Reader {
	r, w := io.Pipe()
	go func() { _ = w.CloseWithError(writeBatch(w, 0, n, fields)) }()
	return r
}

// load is the result of many calls.
type load struct {
	took  time.Duration
	times []time.Duration // of each call, sorted
}

func (l *load) rate(units int) float64 { return float64(units) / l.took.Seconds() }

func (l *load) quantile(q float64) time.Duration {
	if len(l.times) == 0 {
		return 0
	}
	return l.times[min(len(l.times)-1, int(q*float64(len(l.times))))]
}

// each calls f n times from several goroutines and measures each call. It ends with the
// first error.
func each(n, at int, f func(i int) error) (load, error) {
	times := make([]time.Duration, n)
	var mu sync.Mutex
	var failed error
	next := 0
	take := func() int {
		mu.Lock()
		defer mu.Unlock()
		if failed != nil || next == n {
			return -1
		}
		next++
		return next - 1
	}
	var wg sync.WaitGroup
	begin := time.Now()
	for range at {
		wg.Go(func() {
			for i := take(); i >= 0; i = take() {
				start := time.Now()
				if err := f(i); err != nil {
					mu.Lock()
					failed = err
					mu.Unlock()
					return
				}
				times[i] = time.Since(start)
			}
		})
	}
	wg.Wait()
	l := load{took: time.Since(begin), times: times}
	slices.Sort(l.times)
	return l, failed
}

// median calls f several times and returns the result with the median value.
func median[T any](runs int, f func() (float64, T, error)) (float64, T, error) {
	type one struct {
		v float64
		t T
	}
	var all []one
	for range runs {
		v, t, err := f()
		if err != nil {
			return 0, t, err
		}
		all = append(all, one{v, t})
	}
	slices.SortFunc(all, func(a, b one) int {
		if a.v < b.v {
			return -1
		}
		return 1
	})
	m := all[len(all)/2]
	return m.v, m.t, nil
}
