//go:build unix

package main

import (
	"os"
	"syscall"
)

// stop stops a process, and resume continues it.
func stop(p *os.Process) error   { return p.Signal(syscall.SIGSTOP) }
func resume(p *os.Process) error { return p.Signal(syscall.SIGCONT) }
