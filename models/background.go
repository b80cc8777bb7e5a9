package models

import "runtime"

// background has a place for each processor but one.
var background = make(chan struct{}, max(1, runtime.GOMAXPROCS(0)-1))

// InBackground runs f, which computes for milliseconds and waits for nothing, on
// behalf of work that can wait. Such work never keeps all processors busy, so
// that what somebody waits for does not stand in line behind it.
func InBackground(f func()) {
	background <- struct{}{}
	defer func() { <-background }()
	f()
}
