//go:build race

package recipes

import "runtime"

// In a bubble, timers that are due run on whichever thread looks at them, and all share one state
// of the race detector. Two threads that do so at once end the program with a segmentation
// violation: https://github.com/golang/go/issues/78156.
func init() { runtime.GOMAXPROCS(1) }
