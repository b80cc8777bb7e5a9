//go:build !unix

package app

import "math"

// freeSpace returns the largest number, because the free space is not known.
func freeSpace(string) (int64, error) { return math.MaxInt64, nil }
