//go:build !linux

package drill

import (
	"context"
	"errors"
)

// diskFull needs limits that can be set on another process.
func diskFull(context.Context, *drill) error { return errors.ErrUnsupported }
