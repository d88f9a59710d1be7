// Package protocol determines what a client of package dlock may conclude from its requests to a
// store and the answers. It uses no goroutines, clocks, contexts, mutexes or I/O: its callers pass
// the time. A test enforces that.
package protocol

import "time"

// An Instant is a time on the monotonic clock of a client.
type Instant = time.Duration

// 1/driftShare of each lease is held in reserve, since clocks differ in speed.
const driftShare = 100

// Promised returns how much of a granted lease can be relied on.
func Promised(lease time.Duration) time.Duration { return lease - lease/driftShare }
