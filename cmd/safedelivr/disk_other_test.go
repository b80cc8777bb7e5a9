//go:build !linux

package main

import (
	"context"
	"errors"
)

// diskFull needs limits that can be set on another process.
func diskFull(context.Context, *drill) error { return errors.ErrUnsupported }
