//go:build unix

package main

import (
	"os"
	"syscall"
)

// stop lets a process stand still, and resume lets it go on.
func stop(p *os.Process) error   { return p.Signal(syscall.SIGSTOP) }
func resume(p *os.Process) error { return p.Signal(syscall.SIGCONT) }
