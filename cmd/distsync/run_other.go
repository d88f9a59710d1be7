//go:build !unix

package main

import (
	"context"
	"io"
	"os"
	"syscall"
)

// ending lists the signals that end the wait for a lock.
var ending = []os.Signal{syscall.SIGINT, syscall.SIGTERM}

// run returns an error, since this system has no process groups and no signal like SIGKILL.
func (*runner) run(context.Context, io.Writer, string, []string) error {
	return exitf(exitInternal, "run isn't supported on this system")
}
