//go:build race

package main

import "runtime"

// In a bubble, due timers run on whichever thread checks them, and all of them share one state of
// the race detector. If two threads do so at the same time, the program crashes with a segmentation
// violation: https://github.com/golang/go/issues/78156.
func init() { runtime.GOMAXPROCS(1) }
