//go:build unix

package drill

import (
	"os"
	"syscall"
)

// canFreeze reports whether processes can be stopped and woken here.
const canFreeze = true

func freeze(p *os.Process) error { return p.Signal(syscall.SIGSTOP) }
func wake(p *os.Process) error   { return p.Signal(syscall.SIGCONT) }
