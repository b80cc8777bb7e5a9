package service

import (
	"cmp"

	"github.com/safedelivr/safedelivr/service/caller"
)

// Caller is caller.Caller. The entrances use this name.
type Caller = caller.Caller

// MayResume reports whether a caller who may control a batch may resume it. Only an
// operator resumes a batch that an operator stopped.
func MayResume(who Caller, b *BatchView) bool {
	return who.MayRelease(b.StoppedBy, cmp.Or(b.User, who.User))
}
