package models

import "runtime"

// Background is how many processors work that can wait may keep busy: all but one.
var Background = max(1, runtime.GOMAXPROCS(0)-1)

var background = make(chan struct{}, Background)

// InBackground runs f, which computes for milliseconds and waits for nothing, on
// behalf of work that can wait. Such work never keeps all processors busy, so
// that what somebody waits for does not stand in line behind it.
func InBackground(f func()) {
	background <- struct{}{}
	defer func() { <-background }()
	f()
}
