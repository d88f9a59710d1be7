package main

import (
	"errors"
	"fmt"
)

// The statuses that distsync exits with, beside 0, 1 for what nobody expects, and those of a command that it runs. Their numbers
// are those of sysexits.h, as far as it knows them.
const (
	exitFailed      = 1
	exitUsage       = 64 // the command line is wrong
	exitUnavailable = 69 // the store doesn't answer, or doesn't let us in
	exitNotAcquired = 75 // somebody else has the lock
	exitLost        = 76 // the lock was lost while the command ran
)

// An exitError says which status to exit with, and why. Without an error there is nothing to print.
type exitError struct {
	status int
	err    error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit status %d", e.status)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// exit returns an error that ends the program with a status, and prints err unless that is nil.
func exit(status int, err error) error { return &exitError{status, err} }

// exitf is exit with a text.
func exitf(status int, format string, args ...any) error {
	return exit(status, fmt.Errorf(format, args...))
}

// statusOf returns the status to exit with after err.
func statusOf(err error) int {
	if e, ok := errors.AsType[*exitError](err); ok {
		return e.status
	}
	if err != nil {
		return exitFailed
	}
	return 0
}

// message returns what to print of err: a single line without control characters, or nothing.
func message(err error) string {
	if e, ok := errors.AsType[*exitError](err); err == nil || ok && e.err == nil {
		return ""
	}
	return escape(err.Error())
}
