package consumers

import "sync"

// cache keeps up to size values in two generations: what was not used while a
// generation filled up is forgotten. It costs no bookkeeping per read.
type cache[K comparable, V any] struct {
	mu       sync.Mutex
	size     int
	now, old map[K]V
}

func newCache[K comparable, V any](size int) *cache[K, V] {
	return &cache[K, V]{size: max(1, size/2), now: map[K]V{}}
}

func (c *cache[K, V]) get(k K) (V, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v, ok := c.now[k]
	if !ok {
		if v, ok = c.old[k]; ok {
			c.add(k, v)
		}
	}
	return v, ok
}

// Take is get, and forgets.
func (c *cache[K, V]) take(k K) (V, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v, ok := c.now[k]
	if !ok {
		v, ok = c.old[k]
	}
	delete(c.now, k)
	delete(c.old, k)
	return v, ok
}

// Join puts a value, and reports whether there was none.
func (c *cache[K, V]) first(k K, v V) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.now[k]; ok {
		return false
	}
	_, ok := c.old[k]
	c.add(k, v)
	return !ok
}

func (c *cache[K, V]) put(k K, v V) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.add(k, v)
}

func (c *cache[K, V]) add(k K, v V) {
	if len(c.now) >= c.size {
		c.now, c.old = make(map[K]V, c.size), c.now
	}
	c.now[k] = v
}
