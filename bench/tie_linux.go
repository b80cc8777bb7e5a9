package main

import (
	"os/exec"
	"syscall"
)

// tie makes a process go down with this one, however that ends.
func tie(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
