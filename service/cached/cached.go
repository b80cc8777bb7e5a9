// Package cached shares values that take long to read.
package cached

import (
	"sync"
	"time"
)

// Value is a value that was read from the store. The zero value is empty.
type Value[T any] struct {
	mu   sync.Mutex
	read time.Time
	v    T
}

// Get returns the cached value if it is younger than age. Otherwise it calls read, once for all concurrent callers.
func (c *Value[T]) Get(age time.Duration, read func() (T, error)) (T, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.read.IsZero() && time.Since(c.read) < age {
		return c.v, nil
	}
	v, err := read()
	if err == nil {
		c.v, c.read = v, time.Now()
	}
	return v, err
}
