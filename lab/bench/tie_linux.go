package main

import (
	"os/exec"
	"syscall"
)

// tie has the kernel kill the process when this one ends.
func tie(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
