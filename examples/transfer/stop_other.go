//go:build !unix

package main

import (
	"errors"
	"os"
)

var errNoSignals = errors.New("processes can't be stopped here")

func stop(*os.Process) error   { return errNoSignals }
func resume(*os.Process) error { return errNoSignals }
