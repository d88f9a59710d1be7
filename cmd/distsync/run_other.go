//go:build !unix

package main

import (
	"context"
	"io"
	"os"
	"syscall"
)

// Signals that end the wait for a lock.
var ending = []os.Signal{syscall.SIGINT, syscall.SIGTERM}

// run says that it can't: there are no process groups here, and nothing like a signal that can't be
// ignored.
func (*runner) run(context.Context, io.Writer, string, []string) error {
	return exitf(exitInternal, "run isn't there on this system")
}
