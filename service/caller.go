package service

import (
	"github.com/safedelivr/safedelivr/service/caller"
)

// Caller is caller.Caller. The entrances use this name.
type Caller = caller.Caller
