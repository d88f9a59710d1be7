//go:build !unix

package main

import (
	"context"
	"io"
	"os"
	"syscall"
)

// ending are the signals that end the wait for a lock.
var ending = []os.Signal{syscall.SIGINT, syscall.SIGTERM}

// run isn't supported on this system. It has no process groups, and no signal like SIGKILL.
func (*runner) run(context.Context, io.Writer, string, []string) error {
	return exitf(exitInternal, "run isn't supported on this system")
}
