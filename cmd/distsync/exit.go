package main

import (
	"errors"
	"fmt"
)

// The exit statuses of all commands, besides 0. Where possible, they are taken from sysexits.h.
// exitFailed is for unexpected errors.
const (
	exitFailed      = 1
	exitUsage       = 64 // the command line is wrong
	exitUnavailable = 69 // the store doesn't answer, or rejects the user or password
	exitNotAcquired = 75 // another client holds the lock
	exitLost        = 76 // the lock was lost before its release
)

// An exitError is an error with an exit status. If err is nil, nothing is printed.
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

// exit returns an error that makes the program exit with the given status. The program prints err
// unless it is nil.
func exit(status int, err error) error { return &exitError{status, err} }

// exitf is like exit with a formatted error.
func exitf(status int, format string, args ...any) error {
	return exit(status, fmt.Errorf(format, args...))
}

// statusOf returns the exit status for err.
func statusOf(err error) int {
	if e, ok := errors.AsType[*exitError](err); ok {
		return e.status
	}
	if err != nil {
		return exitFailed
	}
	return 0
}

// message returns the line to print for err, with control characters escaped. It returns "" if
// there is nothing to print.
func message(err error) string {
	if e, ok := errors.AsType[*exitError](err); err == nil || ok && e.err == nil {
		return ""
	}
	return escape(err.Error())
}
