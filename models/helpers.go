package models

import (
	"context"
	"iter"
	"strings"
	"time"
)

// Clip returns s cut to MaxText bytes. It never cuts a character in two.
func Clip(s string) string {
	if len(s) <= MaxText {
		return s
	}
	return strings.ToValidUTF8(s[:MaxText], "")
}

// EarlierOf returns the earlier of two times.
func EarlierOf(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// LaterOf returns the later of two times.
func LaterOf(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// Every yields the time after each pause until ctx ends.
func Every(ctx context.Context, pause time.Duration) iter.Seq[time.Time] {
	return func(yield func(time.Time) bool) {
		t := time.NewTicker(pause)
		defer t.Stop()
		for {
			select {
			case now := <-t.C:
				if ctx.Err() != nil || !yield(now) {
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}
}

// Pause waits for d, or until ctx ends.
func Pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
