//go:build !unix

package main

import (
	"context"
	"io"
)

// run says that it can't: there are no process groups here, and nothing like a signal that can't be ignored.
func (*runner) run(context.Context, io.Writer, string, []string) error {
	return exitf(exitInternal, "run isn't there on this system")
}
